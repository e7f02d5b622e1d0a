# SPDX-License-Identifier: Apache-2.0
"""Under a privacy budget one record more changes nothing that leaves a site but what ``privacy.disclosure`` lists.

A run on a table is repeated with a record more at one site, extreme ones in every split, and an ordinary one. All
messages are real. Where the budget's mechanism has noised something, the second run goes on with what the first run's
mechanism released: whatever then differs in a message, a file or a page was not covered by the noise.
"""

import csv
import dataclasses
import json
import random
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.schema import Answer, answer_fields
from fairflare.data.site_config import SiteConfig
from fairflare.engine import audit, combination, loop, server_sums
from fairflare.engine.exchanges.sums import SiteSums
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.tasks import load as make_task
from fairflare.engine.site import Site
from fairflare.privacy.differential_privacy import SiteNoise
from fairflare.privacy.disclosure import EXCEPTIONS, FIELDS, treatment
from fairflare.report.write import write_editions, write_report

HOUSE = """fedavg fedism fedism-plus fedlwr fedheal fedufo fedce fedprox scaffold fedadam fedavgm fedbn fedper fedrep
ditto moon qffl median trimmed-mean glm solo pooled"""
ALLOWED = {
    "record": "fedavg fedheal fedprox scaffold fedadam fedavgm fedbn fedper fedrep ditto moon median trimmed-mean solo",
    "hospital": "fedavg fedprox fedadam fedavgm fedper fedrep ditto moon",
}
"""Whose budget -> the house's methods that go with it; every other one is refused."""
SITES = ("site-1", "site-2", "site-3")
COLUMNS = {
    "age": {"kind": "number", "range": [0, 120], "missing": True},
    "lab": {"kind": "number", "range": [0, 10]},
    "stage": {"kind": "category", "levels": ["I", "II"]},
}
SHARED = {
    "site_names": ",".join(SITES), "features": "age,lab,stage", "columns": json.dumps(COLUMNS), "split_by": "row",
    "attribute_values": "sex=f|m", "group_by": "sex", "batch_size": 32, "train.optimizer": "sgd", "train.lr": 0.1,
    "min_sites": 2,
}  # fmt: skip
TABLE = ("site_names", "features", "columns", "split_by", "attribute_values")
BUDGETS = {
    "record": {"trainer": "dp-sgd", "draws": "seed", "noise": 2.0, "epsilon": 1000.0},
    "hospital": {"secure_sum": "masks", "site_epsilon": 8.0, "min_sites": 3},
}
ORDINARY = ("62.5", "2.5", "II", "f", "1")
EXTREME = {
    "train": ("-1e29", "1e29", "unheard of", "x", "1"),
    "val": ("8e29", "8e29", "unheard of", "x", "0"),
    "test": ("-9e29", "9e29", "unheard of", "x", "1"),
}
"""Split -> a record that is drawn for it."""
ONE_IN_EACH = {"extremes": tuple(EXTREME.values())}
"""What differs in no field with one record more in every split does not with one of them."""


def rows(site):
    draw = random.Random(site)
    found = []
    for _ in range(120 if site == "site-1" else 150):
        age, lab, stage = draw.gauss(60, 10), draw.gauss(2, 1), draw.choice(("I", "II"))
        label = int(age / 10 + lab + (stage == "II") + draw.gauss(0, 1) > 8.5)
        found.append((f"{age:.2f}" if draw.random() > 0.1 else "", f"{lab:.3f}", stage, draw.choice("fm"), str(label)))
    return found


def write(folder, more=()):
    folder.mkdir(exist_ok=True)
    for site in SITES:
        with open(folder / f"{site}.csv", "w", newline="", encoding="utf-8") as file:
            found = [*rows(site), *more] if site == "site-1" else rows(site)
            csv.writer(file).writerows([("age", "lab", "stage", "sex", "label"), *found])


def config_of(method, budget, folder, **more):
    values = {**SHARED, "datalists": str(folder), **BUDGETS[budget], **more}
    return make_config(method, "tabular", rounds=2, values=values)


def same(one, other):
    """Whether two values of a message are equal, tensors bit by bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and one == other


class Law:
    """The first run keeps what its mechanisms release; a later one goes on with that, and notes what else differs."""

    def __init__(self, budget, patch):
        self.budget, self.kept, self.differing, self.again = budget, {}, set(), False
        handle, applied, trained = Site.handle, SiteNoise.applied, SiteSums.trained

        def as_of_the_first(key, value):
            """What the first run has under ``key``."""
            self.calls[key] = number = self.calls.get(key, 0) + 1
            at = (*key, number)
            return self.kept[at] if self.again else self.kept.setdefault(at, value)

        def handled(site, instruction):
            answer = handle(site, instruction)
            first = as_of_the_first((site.name, instruction.task), answer)
            changed = {}
            for name in answer_fields():
                own, other = getattr(answer, name), getattr(first, name)
                covered = treatment(name, budget) in ("noised", "derived")
                if name == "metrics" and instruction.task != "evaluate":
                    covered = False
                if covered and budget == "record":
                    changed[name] = other
                elif not covered and not same(own, other):
                    self.differing.add(f"{instruction.task}: {name}")
            return dataclasses.replace(answer, **changed)

        def noised(noise, update, sites):
            return as_of_the_first((noise.ledger._path.name, "noised"), applied(noise, update, sites))

        def summed(sums, answer, instruction):
            found = trained(sums, answer, instruction)
            if as_of_the_first((answer.site, "terms"), sums._terms) != sums._terms:
                self.differing.add("train: terms of a secure sum")
            return found

        patch.setattr(Site, "handle", handled)
        patch.setattr(SiteNoise, "applied", noised)
        patch.setattr(SiteSums, "trained", summed)
        clock = SimpleNamespace(monotonic=lambda: 0.0)
        for module in (loop, combination, server_sums):
            patch.setattr(module, "time", clock)
        noon = SimpleNamespace(now=lambda zone: datetime(2026, 1, 1, 12, tzinfo=timezone.utc))
        patch.setattr(audit, "datetime", noon)

    def run(self, config, folder):
        """Files and pages of a run; site by site what stays there is left out."""
        folder.mkdir()
        self.calls = {}
        run_local(config, folder)
        write_report(folder)
        write_editions(folder, (), folder / "editions")
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "sites" not in path.parts]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def holds(self, method, folder, changes=ONE_IN_EACH, **more):
        """Run, and run again with each of ``changes``, name -> records more at the first site; returns what differs."""
        write(folder / "data")
        config = config_of(method, self.budget, folder / "data", **more)
        first = self.run(config, folder / "first")
        assert {"config.json", "audit.jsonl", "report.html", "report.json", "model.safetensors"} <= set(first)
        self.again = True
        for name, records in changes.items():
            write(folder / "data", records)
            again = config_of(method, self.budget, folder / "data", **more)
            self.differing |= {"configuration"} if again != config else set()
            found = self.run(again, folder / name)
            self.differing |= {file for file in first.keys() | found.keys() if first.get(file) != found.get(file)}
        return self.differing


@each("budget, method", [(budget, method) for budget in ALLOWED for method in ALLOWED[budget].split()])
def test_one_record_more_changes_nothing_but_what_is_noised(tmp_path, monkeypatch, budget, method):
    assert Law(budget, monkeypatch).holds(method, tmp_path) == set()


@each("budget, method", [(b, m) for b in ALLOWED for m in HOUSE.split() if m not in ALLOWED[b].split()])
def test_every_other_method_is_refused(tmp_path, budget, method):
    write(tmp_path / "data")
    more = {"model": "regression"} if method == "glm" else {}
    with pytest.raises(UserError):
        build_parts(config_of(method, budget, tmp_path / "data", **more))


@each("budget", ["record", "hospital"])
def test_the_law_finds_what_a_site_does_not_withhold(tmp_path, monkeypatch, budget):
    for module in ("engine.site", "engine.exchanges.train", "engine.exchanges.evaluate", "privacy.egress"):
        monkeypatch.setattr(f"fairflare.{module}.disclosed", lambda answer, task, of: answer)
    found = Law(budget, monkeypatch).holds("fedavg", tmp_path)
    assert {"train: metrics", "weigh: metrics"} & found and "audit.jsonl" in found


def test_an_extreme_record_changes_nothing_at_an_epsilon_of_one(tmp_path, monkeypatch):
    """As installed: the trainer finds its noise, and the ledgers keep to the budget."""
    changes = {"ordinary": [ORDINARY], "extreme": [EXTREME["train"]]}
    assert Law("record", monkeypatch).holds("fedavg", tmp_path, changes, epsilon=1.0, noise=0.0) == set()
    for ledger in (tmp_path / "extreme" / "sites").glob("*.privacy.json"):
        (run,) = json.loads(ledger.read_text())["runs"].values()
        assert 0.9 < run["epsilon"] <= 1.0


def test_the_records_are_drawn_for_the_splits_that_they_are_named_after(tmp_path):
    task, sizes = make_task("tabular", None, **{name: SHARED[name] for name in TABLE}), []
    for more in ((), [ORDINARY], *([one] for one in EXTREME.values())):
        write(tmp_path, more)
        data = task.read(SiteConfig(data_root=str(tmp_path), datalist="site-1.csv"))
        sizes.append([data.size(split) for split in EXTREME])
    grown = [[size - first for size, first in zip(one, sizes[0], strict=True)] for one in sizes[1:]]
    assert grown == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_every_field_of_an_answer_has_a_treatment():
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(Answer)}


def test_the_page_on_privacy_prints_the_list():
    text = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    listed = []
    for place, of in enumerate(("dp-sgd", "site_epsilon")):
        for kind in ("noised", "derived", "withheld", "refused", "public"):
            names = [f"`{name}`" for name, kinds in FIELDS.items() if kinds[place] == kind]
            listed.append(f"- `{of}`, {kind}: {', '.join(names)}")
    signed = [f"- {words} (`{name}`)" for name, words in EXCEPTIONS.items()]
    for block, lines in (("disclosure", listed), ("exceptions", signed)):
        printed = text.split(f"<!-- {block}: begin -->\n")[1].split(f"\n<!-- {block}: end -->")[0]
        assert printed.splitlines() == lines, "\n".join(lines)
