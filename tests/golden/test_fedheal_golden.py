# SPDX-License-Identifier: Apache-2.0
"""FedHEAL against the authors' code and against its equations, over five rounds of the same updates."""

import numpy as np
import torch

from cases import each
from fairflare.aggregators.fedheal import FedHEAL
from fairflare.core.types import Info, Reply, Round
from golden import folder

GOLDEN = np.load(folder() / "fedheal.npz")
KEYS = [k for k in GOLDEN["keys"] if "num_batches" not in k]
SIZES = GOLDEN["sizes"]
ROUNDS = len(GOLDEN["paper_both/weights"])
TAU, BETA = 0.3, 0.4


def replies(t, dtype):
    return [
        Reply(
            f"site-{k}",
            {key: torch.from_numpy(GOLDEN[f"update/r{t}/c{k}/{key}"]).to(dtype) for key in KEYS},
            int(n),
            trainable=frozenset(map(str, GOLDEN["param_keys"])),
        )
        for k, n in enumerate(SIZES)
    ]


@each("parts, suffix", [("both", ""), ("both", "_tau0.6"), ("fphl", ""), ("fael", "")])
@each("variant, prefix, atol", [("paper", "paper", 1e-10), ("reference", "ref", 2e-6)])
def test_five_rounds(variant, prefix, atol, parts, suffix):
    case = f"{prefix}_{parts}{suffix}"
    rule = FedHEAL(parts=parts, tau=float(suffix.removeprefix("_tau") or TAU), beta=BETA, variant=variant)
    # The equations were evaluated in float64, the authors' code in float32.
    dtype = torch.float64 if variant == "paper" else torch.float32
    model = {key: torch.from_numpy(GOLDEN[f"init/{key}"]).to(dtype) for key in KEYS}
    state = {}
    for t in range(ROUNDS):
        outcome = rule.aggregate(model, replies(t, dtype), state, Info(Round(t + 1, ROUNDS)))
        np.testing.assert_allclose(list(outcome.weights.values()), GOLDEN[f"{case}/weights"][t], rtol=0, atol=atol)
        if f"{case}/raw_weights" in GOLDEN and parts != "fphl":
            raw = list(outcome.state["p"].values())
            np.testing.assert_allclose(raw, GOLDEN[f"{case}/raw_weights"][t], rtol=0, atol=atol)
        for key in KEYS if variant == "reference" else GOLDEN["param_keys"]:
            expected = GOLDEN[f"{case}/global/r{t}/{key}"]
            np.testing.assert_allclose(outcome.model[key].numpy(), expected, rtol=0, atol=atol, err_msg=key)
        model, state = outcome.model, outcome.state
