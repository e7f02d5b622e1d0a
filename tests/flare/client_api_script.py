# SPDX-License-Identifier: Apache-2.0
"""A plain FLARE Client API script, as a user has it, that reports what the FedISM rule needs."""

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from tiny_net import TinyNet

SHARPNESS = {"site-1": 0.01, "site-2": 0.03}
METRICS = {"site-1": {"accuracy": 0.9, "loss": 0.25, "own": 1.0}, "site-2": {"accuracy": 0.5, "loss": 0.75}}


def main() -> None:
    flare.init()
    site = flare.get_site_name()
    network = TinyNet()
    while flare.is_running():
        received = flare.receive()
        network.load_state_dict({k: torch.as_tensor(v) for k, v in received.params.items()})
        step = 1.0 if site == "site-1" else 3.0
        difference = {k: torch.full_like(v, step) for k, v in network.state_dict().items()}
        meta = {"n_examples": 100, "scalars": {"sharpness": SHARPNESS[site]}}
        flare.send(FLModel(params=difference, params_type=ParamsType.DIFF, metrics=METRICS[site], meta=meta))


if __name__ == "__main__":
    main()
