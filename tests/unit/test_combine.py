# SPDX-License-Identifier: Apache-2.0
"""``fairflare combine``: each hospital's mix as a model in use; the join from Python; groups of patients."""

from __future__ import annotations

import json
import shutil
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.special import expit

from cases import each
from fairflare import Joined, join
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine.files import read_tensors, save_json, save_tensors
from fairflare.engine.setup import tasks
from fairflare.functional.decision import Design, own_model
from fairflare.inference.mix import MIX, NUMBERS, Member, Mix, Trees, monitored, open_mix, open_model
from fairflare.report.join import OutOfFold
from fairflare.studies import candidates
from fairflare.studies.candidates import as_module, federation_odds
from fairflare.studies.joined import by_group

LABELS = ["fedavg", "fedavg + intercept", "fedavg + class shares", "glm", "glm + intercept"]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A join of two rounds whose mixes are written; half of each is the candidates', each by the same weight."""
    folder = tmp_path_factory.mktemp("joined")
    options = {"rounds": 2, "folds": 2, "repeats": 1, "settings": {"logit_tau": 1}, "progress": False}
    found = join(["fedavg", "glm"], "heart:full", out=folder / "join", **options)
    content = json.loads((folder / "join" / "join.json").read_text())
    content["weights"] = dict.fromkeys(LABELS, 1 / 5)
    for row in content["sites"].values():
        row["mix"]["share"] = 0.5
    save_json(folder / "join" / "join.json", content)
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.object(candidates, "federation_odds", wraps=federation_odds) as odds,
    ):
        patch.delattr(candidates, "own_model")  # of just these patients the join has kept its own models
        weights = Joined.open(folder / "join").combine(folder / "mixes", progress=False)
    assert odds.call_count == 1  # not once for each hospital
    return found, weights, folder


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """VA's own patients as a file, by their values before scaling where there are such; random ones else."""
    task, rng = tasks.load("heart", "full"), np.random.default_rng(0)
    inputs, path = task.table_inputs(), tmp_path_factory.mktemp("new") / "new.csv"
    ranges = {"age": (40, 80), "trestbps": (100, 170), "chol": (150, 300), "thalach": (90, 180), "oldpeak": (0, 3)}
    rows = []
    for _ in range(40):
        cells = [
            str(rng.choice(inputs.known[c])) if c in inputs.known else f"{rng.uniform(*ranges.get(c, (0, 3))):.0f}"
            for c in inputs.columns
        ]
        rows.append(",".join([*cells, str(rng.choice(task.classes))]))
    path.write_text("\n".join([",".join([*inputs.columns, "label"]), *rows]) + "\n")
    return path


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return int(ended.value.code or 0)


def test_a_join_in_python_gives_tables(joined):
    found, weights, folder = joined
    assert list(found.federation.index) == LABELS and found.federation["mean"].notna().all()
    assert len(found.benefits) == 4 * len(LABELS) and set(found.benefits["hospital"]) == set(found.mixes.index)
    assert np.allclose(found.weights.sum(axis=1), 1) and (weights["own"] == 0.5).all()
    assert {"sex=female", "sex=male"} <= set(found.groups["group"]) and found.groups["n"].min() >= 30
    assert found.answers["VA"] and found.report().is_file()
    assert Joined.open(folder / "join").benefits.equals(found.benefits)


def test_a_mix_is_the_weighted_mean_of_its_members(joined, patients):
    opened = open_mix(joined[2] / "mixes" / "VA", "VA")
    mix = opened.network
    x = torch.randn(50, mix.networks[0].shape["features"])
    risks = mix.risks(x)
    assert risks.shape == (50, 6) and opened.whose == "mix" and not risks[:, 1:].std(dim=1).eq(0).any()
    assert torch.allclose(mix(x).softmax(1)[:, 1], risks @ mix.weights, atol=1e-8)
    shares = dict(zip(LABELS, mix.intercepts[1:].tolist(), strict=True))
    assert shares["fedavg"] == 0 and shares["fedavg + class shares"] == pytest.approx(np.log(149 / 51))


def test_a_mix_predicts_is_evaluated_exported_and_monitored(joined, patients, tmp_path, capsys):
    mix = joined[2] / "mixes" / "VA"
    assert run("predict", mix, patients, "--out", tmp_path / "p") == 0
    table = np.genfromtxt(tmp_path / "p" / "predictions.csv", delimiter=",", skip_header=1, usecols=3)
    told = monitored(mix, patients)
    assert np.allclose(table, [used for _, _, used in told], atol=1e-6)
    assert run("evaluate", mix, patients, "--out", tmp_path / "e") == 0
    brier = json.loads((tmp_path / "e" / "evaluation.json").read_text())["sites"]["new"]["calibration"]["brier"]
    assert brier["value"] == pytest.approx(np.mean([(y - used) ** 2 for y, _, used in told]), abs=1e-4)
    assert run("export-model", mix, "--format", "torchscript", "--out", tmp_path / "x") == 0
    assert "50% own" in (tmp_path / "x" / "README.md").read_text()
    state = tmp_path / "state.json"
    assert run("monitor", mix, patients, "--state", state) == run("monitor", mix, patients, "--state", state) == 0
    assert json.loads(state.read_text())["certificate"]["cases"] == len(told)
    capsys.readouterr()
    for wrong in (
        ("evaluate", mix, patients, "--split", "test"),
        ("monitor", mix, patients, "--own", "a"),
        ("predict", mix, patients, "--site", "Cleveland"),
        ("predict", mix, patients, "--which", "best"),
        ("export-model", mix, "--format", "bundle", "--out", tmp_path / "b"),
        ("combine", tmp_path),
    ):
        assert run(*wrong) == 2
        assert capsys.readouterr().err.startswith("fairflare: ")


def change(folder, content=lambda found: None, tensors=lambda found: None):
    found, numbers = json.loads((folder / MIX).read_text()), read_tensors(folder / NUMBERS)
    content(found), tensors(numbers)
    save_json(folder / MIX, found)
    save_tensors(folder / NUMBERS, numbers)


@each(
    "content, tensors, words",
    [
        (lambda c: c["runs"].pop("glm"), None, "expected its model, found none"),
        (lambda c: c["members"][0].update(weight=0.9), None, "sum to 1"),
        (lambda c: c["members"][0].update(weight=float("1e400")), None, "JSON"),
        (lambda c: [c["members"][0].update(weight=0.4), c["members"][1].update(weight=0.2)], None, "those of"),
        (lambda c: c["own"].update(features=3), None, "own: expected"),
        (lambda c: c.update(own={"kind": "trees", "trees": 10**5, "nodes": 10**5, "depth": 3}), None, "own: expected"),
        (lambda c: c.update(model_sha256="0" * 64), None, "SHA-256"),
        (None, lambda t: t.pop(next(k for k in t if k.startswith("networks.1"))), "does not fit"),
        (None, lambda t: t["networks.1.head.weight"].add_(1), "SHA-256"),
        (None, lambda t: t["weights"].fill_(float("nan")), "not finite"),
    ],
)
def test_a_mix_that_is_not_whole_is_refused(content, tensors, words, joined, tmp_path):
    shutil.copytree(joined[2] / "mixes" / "VA", tmp_path / "VA")
    nothing = lambda found: None  # noqa: E731
    if words == "JSON":
        (tmp_path / "VA" / MIX).write_text(
            (tmp_path / "VA" / MIX).read_text().replace('"weight": 0.5', '"weight": NaN')
        )
    else:
        change(tmp_path / "VA", content or nothing, tensors or nothing)
    with pytest.raises(UserError, match=words):
        open_model(tmp_path / "VA")


@each("boosted", [True, False])
def test_the_own_model_is_stored_as_numbers(boosted):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32).astype(np.float64)
    y = (x[:, 0] * x[:, 1] > 0) if boosted else rng.random(300) < expit(2 * x[:, 0])
    model, kind = own_model(x, y.astype(float))
    made = as_module(model, kind, x)
    assert isinstance(made, Trees) == boosted
    new = torch.from_numpy(rng.normal(size=(500, 3)).astype(np.float32))
    assert np.allclose(torch.sigmoid(made(new)), model.predict_proba(new.double().numpy())[:, 1], atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises another format
        mix = torch.jit.trace(Mix({"own": made}, [Member("own", "own", 1.0)], 1), new[:2])
    assert torch.allclose(mix(new).softmax(1)[:, 1], torch.sigmoid(made(new)), atol=1e-12)


def test_a_group_is_told_only_where_none_of_its_attribute_is_small():
    rng = np.random.default_rng(0)
    tested = OutOfFold((rng.random(200) < 0.5).astype(float), rng.random((2, 1, 200)))
    large, small = ["a"] * 100 + ["b"] * 60 + [""] * 40, ["a"] * 180 + [""] * 20
    found = by_group(tested, {"large": large, "small": small, "one": ["a"] * 200}, ["fedavg"], Design(2, 1))
    assert list(found) == ["large=unknown", "large=a", "large=b"]
    assert found["large=a"]["n"] == 100 and {*found["large=a"]["candidates"]["fedavg"]} == {"benefit", "low", "high"}


def test_federations_of_other_data_or_one_name_are_no_candidates():
    with pytest.raises(UserError, match="different names"):
        join(["fedavg", "fedavg"], "heart:full")
    with pytest.raises(UserError, match="no_harm"):
        join("fedavg", "heart:full", no_harm=1.0)
    with pytest.raises(UserError, match="site"):
        join(["fedavg", "ditto"], "heart:full", leave_out="nowhere")
