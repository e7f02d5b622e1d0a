# SPDX-License-Identifier: Apache-2.0
"""Makes byzfl.npz, 200 random cases of ByzFL's aggregators and attacks (byzfl 0.0.11 of PyPI, MIT licence):

python tests/golden/byzfl_vectors.py FOLDER     # of the unpacked wheel; its modules are loaded without its datasets
"""

import sys
import types
from importlib import import_module
from pathlib import Path

import numpy as np

CASES, SEED = 200, 29


def main(folder):
    package = types.ModuleType("byzfl")
    package.__path__ = [str(Path(folder) / "byzfl")]
    sys.modules["byzfl"] = package
    agg, pre, attacks = (import_module(f"byzfl.{n}") for n in ("aggregators", "aggregators.preaggregators", "attacks"))
    rng, found = np.random.default_rng(SEED), {}
    for case in range(CASES):
        sites = int(rng.integers(5, 13))
        faulty = int(rng.integers(1, (sites - 3) // 2 + 1))
        x = rng.normal(size=(sites, 4)) + rng.normal(size=4)
        x[:faulty] *= rng.choice([-5.0, 1.0, 20.0])
        bucketing = pre.Bucketing(2)
        np.random.seed(case)
        order = np.random.permutation(sites)
        np.random.seed(case)
        made = {
            "x": x,
            "f": np.array(faulty),
            "sites": np.array(sites),
            "order": order,
            "median": agg.Median()(x),
            "trimmed-mean": agg.TrMean(faulty)(x),
            "multi-krum": agg.MultiKrum(faulty)(x),
            "geometric": agg.GeometricMedian(0.1, 3)(x),
            "centred": agg.CenteredClipping(tau=2.0)(x),
            "neighbours": pre.NNM(faulty)(x),
            "buckets": bucketing(x),
            "clipping": pre.Clipping(2.0)(x.copy()),
            "sign flip": attacks.SignFlipping()(x),
            "inner product": attacks.InnerProductManipulation(2.0)(x),
            "alie": attacks.ALittleIsEnough(1.5)(x),
            "mimic": attacks.Mimic(0)(x),
        }
        found |= {f"{case}/{name}": np.asarray(value) for name, value in made.items()}
    # One array per name, cases one after the other: 3,000 small files would be larger than what they hold.
    names = [name.partition("/")[2] for name in found if name.startswith("0/")]
    joined = {name: np.concatenate([found[f"{case}/{name}"].ravel() for case in range(CASES)]) for name in names}
    np.savez_compressed(Path(__file__).with_name("byzfl.npz"), **joined)


if __name__ == "__main__":
    main(sys.argv[1])
