# SPDX-License-Identifier: Apache-2.0
"""A made-up run whose numbers are small enough to check by hand."""

import copy

import pytest

from fairflare.report.summary import summarise

SITES = ("site-1", "site-2", "site-10")
EXAMPLES = {"site-1": 100, "site-2": 60, "site-10": 40}
WEIGHTS = (
    {"site-1": 0.2, "site-2": 0.3, "site-10": 0.5},
    {"site-1": 0.4, "site-2": 0.6},
    {"site-1": 0.25, "site-2": 0.25, "site-10": 0.5},
    {"site-1": 0.3, "site-2": 0.3, "site-10": 0.4},
)
TEST = {"site-1": 0.9, "site-2": 0.8, "site-10": 0.6}


def _metrics(value):
    return {"balanced_accuracy": value, "loss": 1 - value}


def _round(number, weights):
    validation = {site: TEST[site] - 0.1 * (4 - number) for site in weights}
    accepted = {
        site: {"n_examples": EXAMPLES[site], "scalars": {"sharpness": 0.1}, "metrics": _metrics(validation[site])}
        for site in weights
    }
    refused = {site: {"code": "not_finite", "detail": "update of 'w': 3 NaN"} for site in SITES if site not in weights}
    return {
        "event": "round",
        "round": number,
        "rounds": 4,
        "accepted": accepted,
        "rejected": refused,
        "weights": weights,
        "notes": {},
        "model_sha256": f"model-{number}",
        "seconds": {"exchange": 2.0, "aggregate": 0.5},
    }


def _config():
    return {
        "format": 1,
        "method": "fedism-plus",
        "title": "FedISM+ (S)",
        "paper": "Wu et al.",
        "settings": {"q": 2.0},
        "trainer": "gsam",
        "probes": ["sharpness"],
        "task": "ich-phantom",
        "preset": "small",
        "options": {"severity": 3},
        "training": {"rounds": 4, "lr": 0.001},
        "seed": 0,
        "min_sites": 2,
        "env": "local",
        "versions": {"fairflare": "0.1.0", "torch": "2.13.0"},
    }


def _chained(records):
    minutes = range(len(records))
    return [
        {"seq": i, "time": f"2026-01-01T10:{i:02d}:00Z", "prev": f"hash-{i - 1}", "hash": f"hash-{i}", **record}
        for i, record in zip(minutes, records, strict=True)
    ]


@pytest.fixture
def rounds():
    """Four rounds of three sites; in round 2 site-10 was rejected."""
    return [_round(number, weights) for number, weights in enumerate(copy.deepcopy(WEIGHTS), 1)]


@pytest.fixture
def inputs(rounds):
    """Arguments of ``summarise`` for a completed run of three sites and four rounds, as a mapping."""
    start = {"event": "start", "rounds": 4, "sites": list(SITES), "config_sha256": "config", "model_sha256": "model-0"}
    final = {site: {"val": _metrics(value - 0.05), "test": _metrics(value)} for site, value in TEST.items()}
    evaluation = {"event": "evaluation", "sites": final, "model_sha256": "model-4"}
    finish = {"event": "finish", "status": "completed", "reason": "", "model_sha256": "model-4"}
    described = {"site-1": "clean", "site-2": "clean", "site-10": "noise, severity 3"}
    return {
        "config": _config(),
        "entries": _chained([start, *rounds, evaluation, finish]),
        "facts": {
            "title": "Haemorrhage",
            "real": "nothing",
            "simulated": "all images",
            "classes": ["a", "b", "c", "d"],
            "headline": "balanced_accuracy",
            "sites": described,
        },
        "test_sets": {
            "clean": {"corrupted": False, "n": 40, "metrics": _metrics(0.9)},
            "noise 1": {"corrupted": True, "n": 40, "metrics": _metrics(0.8)},
            "noise 3": {"corrupted": True, "n": 40, "metrics": _metrics(0.5)},
        },
    }


@pytest.fixture
def summary(inputs):
    return summarise(**inputs)


@pytest.fixture
def failed_inputs(inputs):
    """The same run, failed in round 3: no evaluation, no test sets."""
    start, first, second = inputs["entries"][:3]
    finish = {"event": "finish", "status": "failed", "reason": "round 3: 1 site accepted, 2 needed", "time": "?"}
    return (
        inputs
        | {"entries": [start, first, second, finish | {"model_sha256": "model-2", "hash": "last"}]}
        | {"test_sets": {}}
    )


@pytest.fixture
def chained():
    """Adds sequence numbers, times (one minute apart) and hashes to records."""
    return _chained


@pytest.fixture
def make_run(inputs):
    """A factory of summaries: ``make_run("FedAvg", seed=1, shift=0.1)`` moves every site's test value by ``shift``."""

    def make(title="FedAvg", seed=0, shift=0.0, **config):
        changed = copy.deepcopy(inputs)
        changed["config"] |= {"title": title, "method": title.lower(), "seed": seed, **config}
        for splits in changed["entries"][-2]["sites"].values():
            splits["test"]["balanced_accuracy"] += shift
        return summarise(**changed)

    return make
