# SPDX-License-Identifier: Apache-2.0
"""A site of FLARE's own FedAvgRecipe: receive, evaluate, train, send."""

import nvflare.client as flare
from common import Network, evaluate, tensors, train


def main() -> None:
    """Until the server says that it is over."""
    flare.init()
    site, network = flare.get_site_name(), Network()
    while flare.is_running():
        received = flare.receive()
        network.load_state_dict(received.params)
        accuracy = evaluate(network, site)
        train(network, site, seed=received.current_round)
        steps = {"NUM_STEPS_CURRENT_ROUND": len(tensors(site)["train_targets"])}
        flare.send(flare.FLModel(params=network.state_dict(), metrics={"accuracy": accuracy}, meta=steps))


if __name__ == "__main__":
    main()
