# SPDX-License-Identifier: Apache-2.0
"""What a plugin declares it may send: it reaches the rule, the log and the tables, and nothing else of it passes."""

import dataclasses

import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_federation, build_site, site_names
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.traffic import NUMBER
from fairflare.studies.describe import leaving_rows


@pytest.fixture(scope="module")
def config(plugin):
    return make_config("echo", "support2", rounds=2)


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    """The folder of a run and its log."""
    folder = tmp_path_factory.mktemp("echo")
    run_local(config, folder)
    return verify(folder / "audit.jsonl")


def rounds(entries):
    return [entry for entry in entries if entry["event"] == "round"]


def test_the_number_reaches_the_log_and_the_tensors_the_rule_and_the_sites(run, config):
    first, second = rounds(run)
    width = build_parts(config).outline.features
    sizes = {site: reply["n_examples"] for site, reply in first["accepted"].items()}
    mean = sum(sizes.values()) / len(sizes)
    for site, reply in second["accepted"].items():
        assert first["accepted"][site]["scalars"]["distance"] == 0.0, "nothing is sent before there is anything"
        apart = 2 * width**0.5 * abs(sizes[site] - mean) / 1e3
        assert reply["scalars"]["distance"] == pytest.approx(apart, rel=1e-4, abs=1e-5)
        assert reply["steps"] > 0


def test_tensors_are_counted_in_both_directions(run, config):
    parts = build_parts(config)
    tensors = 2 * parts.outline.features * 4
    model = sum(value.nbytes for value in parts.model.values())
    for entry, down in zip(rounds(run), (model, model + tensors)):
        for count in entry["bytes"].values():
            assert count["down"] == down + NUMBER, "and which of the site's rounds counted last"
            assert tensors < count["up"] - model < tensors + 200, "the update, the tensors and a few numbers"


def test_its_rows_are_in_the_security_table(plugin):
    rows = {(row["method"], row["number"]): row for row in leaving_rows()}
    assert rows["echo", "distance"]["range"] == "0 to 1000"
    assert rows["echo", "centres/<entry>"]["range"] == "-100 to 100, a tensor"


@pytest.mark.parametrize(
    "change, code",
    [
        (lambda t: {}, "tensor_missing"),
        (lambda t: {**t, "centres/class7": t["centres/class0"]}, "tensor_unknown"),
        (lambda t: {**t, "centres/class0": t["centres/class0"] * float("nan")}, "tensor_nonfinite"),
        (lambda t: {**t, "centres/class0": t["centres/class0"] + 200}, "tensor_range"),
        (lambda t: {**t, "centres/class0": t["centres/class0"][:-1]}, "tensor_shape"),
    ],
)
def test_wrong_tensors_of_a_site_cost_its_round_and_leave_no_trace(plugin, config, tmp_path, change, code):
    class Faulty(InProcess):
        def exchange(self, instructions):
            for answer in super().exchange(instructions):
                wrong = answer.site == "site-2" and answer.tensors
                yield dataclasses.replace(answer, tensors=change(answer.tensors)) if wrong else answer

    class Silent(InProcess):
        def exchange(self, instructions):
            task = next(iter(instructions.values())).task
            yield from (a for a in super().exchange(instructions) if (task, a.site) != ("train", "site-2"))

    hashes = []
    for name, transport in (("faulty", Faulty), ("silent", Silent)):
        parts = build_parts(config)
        sites = {site: build_site(config, parts, site) for site in site_names(config)}
        (tmp_path / name).mkdir()
        federation = build_federation(config, parts, transport(sites), tmp_path / name, "local")
        hashes.append(model_hash(federation.run(parts.model)))
    rejected = [entry["rejected"]["site-2"]["code"] for entry in rounds(verify(tmp_path / "faulty" / "audit.jsonl"))]
    assert rejected == [code, code] and hashes[0] == hashes[1]


def test_a_site_lets_out_nothing_that_its_parts_have_not_declared(plugin, config, monkeypatch):
    parts = build_parts(config)
    site = build_site(config, parts, "site-1")
    scan = {"centres": {"class0": torch.zeros(parts.outline.features)}, "scan": {"slice": torch.ones(2)}}
    monkeypatch.setattr(plugin.Echo, "finish", lambda self, work: work.send_tensors.update(scan))
    answer = site.handle(Instruction("train", Round(1, 2), parts.model))
    assert answer.error == "egress: tensor names: unknown" and answer.update is None and not answer.tensors


def test_secure_sums_refuse_tensors_in_one_line(plugin):
    with pytest.raises(UserError, match="sends tensors .centres. beside the model") as error:
        make_config("summed", "support2", rounds=2, values={"secure_sum": "masks"})
    assert "\n" not in str(error.value)
