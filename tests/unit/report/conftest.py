# SPDX-License-Identifier: Apache-2.0
"""A made-up run whose numbers are small enough to check by hand."""

import copy
import re
from html.parser import HTMLParser

import pytest

from fairflare.aggregators.fedce import FedCE
from fairflare.aggregators.fedlwr import FedLWR
from fairflare.aggregators.fedufo import FedUFO
from fairflare.report.summary import summarise

VOID = {"meta", "br"}
SITES = ("site-1", "site-2", "site-10")
EXAMPLES = {"site-1": 100, "site-2": 60, "site-10": 40}
WEIGHTS = (
    {"site-1": 0.2, "site-2": 0.3, "site-10": 0.5},
    {"site-1": 0.4, "site-2": 0.6},
    {"site-1": 0.25, "site-2": 0.25, "site-10": 0.5},
    {"site-1": 0.3, "site-2": 0.3, "site-10": 0.4},
)
METRICS = {
    "balanced_accuracy": {
        "label": "balanced accuracy",
        "meaning": "the share of correct answers, averaged over the classes; 1 is perfect",
        "chance": 0.25,
        "higher_is_better": True,
    },
    "loss": {"label": "loss", "meaning": "", "chance": None, "higher_is_better": False},
    "auc": {"label": "AUC", "meaning": "", "chance": 0.5, "higher_is_better": True},
}
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
        "format": 2,
        "method": "fedism-plus",
        "title": "FedISM+ (S)",
        "paper": "Wu et al.",
        "settings": {"rule": {"q": 2.0}},
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
    about = {
        "title": "Haemorrhage",
        "real": "nothing",
        "simulated": "all images",
        "classes": ["a", "b", "c", "d"],
        "headline": "balanced_accuracy",
        "sites": described,
        "metrics": METRICS,
        "numbers": {"sharpness": "perturbed loss minus loss"},
    }
    sets = {
        "clean": {"corrupted": False, "n": 40, "metrics": _metrics(0.9)},
        "noise 1": {"corrupted": True, "n": 40, "metrics": _metrics(0.8)},
        "noise 3": {"corrupted": True, "n": 40, "metrics": _metrics(0.5)},
    }
    scores = {"event": "scores", "round": 4, "model_sha256": "model-4", "test_sets": sets}
    return {"config": _config() | {"about": about}, "entries": _chained([start, *rounds, scores, evaluation, finish])}


@pytest.fixture
def summary(inputs):
    return summarise(**inputs)


@pytest.fixture
def failed_inputs(inputs):
    """The same run, failed in round 3: no evaluation, no test sets."""
    start, first, second = inputs["entries"][:3]
    finish = {"event": "finish", "status": "failed", "reason": "round 3: 1 site accepted, 2 needed", "time": "?"}
    return inputs | {"entries": [start, first, second, finish | {"model_sha256": "model-2", "hash": "last"}]}


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


GROUPS = {
    "site-1": {"healthy, f": (40, 0.9), "healthy, m": (40, 0.8), "ill, f": (10, 0.5), "ill, m": (10, 0.7)},
    "site-2": {"healthy, f": (20, 0.6), "healthy, m": (20, 0.8), "ill, f": (10, 0.3)},
    "site-10": {"healthy, f": (20, 1.0), "healthy, m": (20, 0.8)},
}
SCORES = {"site-1": 0.02, "site-2": 0.01, "site-10": 0.5}
LAMBDA = {"healthy, f": 0.1, "healthy, m": 0.2, "ill, f": 0.4, "ill, m": 0.3}


def _cells(found):
    return {group: {"n": float(n), "value": value} for group, (n, value) in found.items()}


@pytest.fixture
def grouped_inputs(inputs):
    """The made-up run with groups "label+sex", of which three cells were held back."""
    inputs["config"] |= {"group_by": "label+sex", "min_count": 5, "leave_out": ""}
    inputs["config"]["about"] |= {
        "classes": ["healthy", "ill"],
        "groups": ["healthy, f", "healthy, m", "ill, f", "ill, m"],
        "group_metric": "accuracy",
    }
    for site, splits in inputs["entries"][-2]["sites"].items():
        splits["groups"] = {"val": {}, "test": _cells(GROUPS[site])}
    return inputs


@pytest.fixture
def noted_inputs(grouped_inputs):
    """The same with what FedCE, FedUFO and Fed-LWR note; site-10, absent in round 2, scores high."""
    rules = (FedCE, FedUFO, FedLWR)
    grouped_inputs["entries"][0]["declared_notes"] = [note.to_json() for rule in rules for note in rule.notes]
    for record in grouped_inputs["entries"][1:5]:
        sites = list(record["accepted"])
        record["notes"] = {
            "contribution": dict(record["weights"]),
            "novelty": {site: 2 * SCORES[site] for site in sites},
            "error_gap": dict.fromkeys(sites, 0.5),
            "free_rider_score": {site: SCORES[site] * record["round"] / 2.5 for site in sites},
            "group_lambda": dict(LAMBDA),
            "group_loss": dict.fromkeys(LAMBDA, 0.7),
            "layer_weights": {
                "conv1": {site: 1 / len(sites) for site in sites},
                "head": {site: 0.7 if site == "site-1" else 0.3 / (len(sites) - 1) for site in sites},
            },
        }
    return grouped_inputs


class Page(HTMLParser):
    """Checks that tags nest, and collects ids, references, texts and tables' captions."""

    def __init__(self, html):
        super().__init__()
        self.open, self.ids, self.references, self.tags, self.texts = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "action", "data", "srcset", "xlink:href"):
                self.references.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data


def _self_contained(html):
    page = Page(html)
    assert page.references == [] or all(reference.startswith("#") for reference in page.references)
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "http:" not in html
    assert "https:" not in html
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.tags)
    assert page.tags.count("table") == page.tags.count("caption")
    return page


@pytest.fixture
def self_contained():
    """Parses a page, which must nest and refer to nothing outside it, and returns what ``Page`` collected."""
    return _self_contained
