# SPDX-License-Identifier: Apache-2.0
"""`fairflare contribution` and the free-rider score: real runs on the smallest tasks."""

import json
import re
import shutil

import pytest

from cases import each
from command_line import call
from fairflare.core.errors import UserError
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare_lab.studies.contribution import Question, _score, contribution_of, measure_contribution


def test_leave_one_out_goes_on_where_it_stopped(tmp_path, capsys):
    command = ("contribution", "fedce", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "2", "--json")
    command += ("--out", tmp_path / "c", "--set", "model=linear", "--set", "batch_size=512")
    code, out, err = call(capsys, *command)
    found = json.loads(out)
    assert code == 0 and err.count("run ") == 4
    assert found == json.loads((tmp_path / "c" / "contribution.json").read_text())
    assert sum(row["share"] for row in found["sites"]) == pytest.approx(1)
    for row in found["sites"]:
        assert row["drop"] == pytest.approx(found["score"] - row["score_without"])
        entries = verify(tmp_path / "c" / f"without-{row['site']}" / "audit.jsonl")
        rounds = [e for e in entries if e["event"] == "round"]
        assert len(rounds) == 2 and all(row["site"] not in e["weights"] for e in rounds)
        assert row["site"] in next(e for e in entries if e["event"] == "evaluation")["sites"]
    kept = tmp_path / "c" / "without-site-2" / "model.safetensors"
    written = kept.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "c" / "without-site-3")
    code, out, _ = call(capsys, *command)
    assert code == 0 and json.loads(out) == found and kept.stat().st_mtime_ns == written


@pytest.mark.slow
def test_seeds_coalitions_and_other_methods(tmp_path, capsys):
    command = ["contribution", "fedavg", "fedavg:weighting=uniform", "--task", "support2:dirichlet", "--sites", "3"]
    command += ["--rounds", "1", "--seeds", "0,1", "--shapley", "--set", "model=linear", "--set", "batch_size=512"]
    command += ["--workers", "1", "--json", "--out", tmp_path / "c"]
    code, out, err = call(capsys, *command)
    assert code == 0, err
    found = json.loads(out)
    names = sorted(path.name for path in (tmp_path / "c").iterdir() if path.is_dir())
    assert len(names) == 2 * (1 + 3 + 3 + 1) and "only-site-2-seed1" in names
    assert found["shapley_by"] == {"exact": True, "permutations": None} and "sites" not in found
    for one in found["runs"]:
        initial = one["score"] - sum(value["value"] for value in one["shapley"].values())
        assert 0.2 < initial < 0.8, "the values sum to the score minus that of the initial model"
        assert list(one["methods"]["fedavg:weighting=uniform"].values()) == pytest.approx([1 / 3] * 3)
    assert found["together"]["leave_one_out"]["site-1"]["drop"]["n"] == 2
    log = verify(tmp_path / "c" / "only-site-2-seed1" / "audit.jsonl")
    assert [list(e["weights"]) for e in log if e["event"] == "round"] == [["site-2"]]
    again, out, err = call(capsys, *command)
    assert again == 0 and json.loads(out) == found and err.count("finished before, reused") == len(names)
    code, _, err = call(capsys, *command, "--set", "selector=share")
    assert code == 2 and "selector: is what --shapley varies" in err
    code, _, err = call(capsys, "contribution", "fedavg", "fedavg", "--task", "support2")
    assert code == 2 and "METHOD: 'fedavg' is given twice" in err


@pytest.mark.parametrize("method, values", [("scaffold", {}), ("feddyn", {"trainer.variant": "reference"})])
def test_a_coalition_is_the_federation_without_the_others(tmp_path, method, values):
    """To what a site that only is evaluated adds nothing: the number of sites and of examples that the server knows."""
    values = values | {"n_sites": 3, "model": "linear", "batch_size": 512, "min_sites": 1, "optimizer": "sgd"}
    models = {}
    for name, more in {
        "all": {},
        "without": {"leave_out": "site-3"},
        "only": {"selector": "list", "select.sites": "site-1,site-2"},
    }.items():
        (tmp_path / name).mkdir()
        run_local(make_config(method, "support2:dirichlet", rounds=2, values=values | more), tmp_path / name)
        rounds = [e for e in verify(tmp_path / name / "audit.jsonl") if e["event"] == "round"]
        models[name] = [e["model_sha256"] for e in rounds]
    assert models["only"] == models["without"] and models["only"][1] != models["all"][1]


def test_coalitions_of_many_sites_have_folders(tmp_path, monkeypatch):
    class Enough(Exception):
        pass

    def run_all(runs, folder, *args):
        for name in runs:
            (folder / name).mkdir()
        raise Enough

    monkeypatch.setattr("fairflare.studies.study.run_all", run_all)
    values = {"n_sites": 40, "min_sites": 1}
    choices = {"shapley": True, "permutations": 2, "choices": {"values": values}}
    question = Question("fedavg", "support2:dirichlet", (0,), **choices)
    with pytest.raises(Enough):
        measure_contribution(question, tmp_path / "c")
    names = [path.name for path in (tmp_path / "c").iterdir()]
    assert sum(name.startswith("only-") for name in names) >= 2 * 37 and max(map(len, names)) <= 255
    assert any(re.fullmatch("only-site-[0-9]+[+]site-[0-9]+", name) for name in names), "short ones say it all"


def test_shares_by_hand():
    """Scores .8 with all; .7, .8 and .82 without a, b, c: drops .1, 0 and -.02, so that a has it all."""

    def report(value, weights=(0.5, 0.3, 0.2)):
        rows = {s: {"metrics": {"auc": value}, "weight": [w], "n_train": 10} for s, w in zip("abc", weights)}
        return {"method": "m", "task": "t", "seed": 0, "fairness": {"metric": "auc"}, "sites": rows}

    reports = {"all-sites": report(0.8), **{f"without-{s}": report(v) for s, v in zip("abc", (0.7, 0.8, 0.82))}}
    found = contribution_of(reports, ["a", "b", "c"])
    assert [row["share"] for row in found["sites"]] == [1.0, 0.0, 0.0]
    assert found["agreement"]["examples"]["pearson_x100"] is None
    assert found["agreement"]["weights"]["cosine"] == pytest.approx(0.5 / (0.38**0.5))


def test_what_cannot_be_left_out(tmp_path, capsys):
    code, _, err = call(capsys, "run", "fedavg", "--task", "support2", "--set", "leave_out=site-9", "--out", tmp_path)
    assert code == 2 and "leave_out: expected a site of task support2, got 'site-9'" in err
    two = ("--task", "support2:dirichlet", "--sites", "2", "--out", tmp_path / "x")
    code, _, err = call(capsys, "contribution", "fedavg", *two)
    assert code == 2 and "at least 3 sites, got 2" in err


def notes_of(folder, free_rider):
    values = {"n_sites": 4, "images": 96, "size": 32, "site_test_images": 0, "free_rider": free_rider}
    folder.mkdir()
    run_local(make_config("fedce", "brain-seg:small", rounds=2, values=values), folder)
    return [e["notes"] for e in verify(folder / "audit.jsonl") if e["event"] == "round"]


def test_a_site_that_repeats_one_image_is_less_like_the_others(tmp_path):
    honest, riding = (notes_of(tmp_path / str(k), k) for k in (0, 2))
    for notes in riding:
        for site, score in notes["free_rider_score"].items():
            assert score == pytest.approx(notes["novelty"][site] * notes["error_gap"][site])
    for before, after in zip(honest, riding):
        assert after["novelty"]["site-2"] > before["novelty"]["site-2"] + 0.05
        assert after["novelty"]["site-2"] == max(after["novelty"].values())


@each(
    "method, task, values, message",
    [
        ("fedce", "support2", {"score_metric": "dice"}, "fedce on task support2: .*no metric 'dice'; it has: accuracy"),
        ("fedufo", "support2", {"group_by": "hair"}, "task support2 has no attribute 'hair'; it has: label, race, sex"),
        ("fedufo", "support2", {"group_by": "none"}, "fedufo on task support2: level=multi needs at least two groups"),
        ("fedufo", "brain-seg", {}, "fedufo on task brain-seg: level=multi needs at least two groups"),
        (
            "fedavg",
            "brain-seg",
            {"group_by": "label"},
            "group_by: task brain-seg has no attribute 'label'; it has: none",
        ),
        ("fedism", "brain-seg", {"logit_tau": 1}, "logit_tau: task brain-seg has no class labels"),
        ("fedavg", "support2", {"group_by": "sex+sex"}, "group_by: expected different attributes"),
        ("fedavg", "support2", {"min_count": -1}, "min_count: expected a whole number from 0 to 1000000, got -1"),
        ("fedlwr", "support2", {"cka_batch": 2}, "cka_batch must be 0 or at least 4, got 2"),
        ("fedheal", "support2", {"beta": 2}, r"beta must be in \[0, 1\], got 2"),
    ],
)
def test_a_method_that_needs_what_a_task_lacks_is_refused(method, task, values, message):
    with pytest.raises(UserError, match=message) as error:
        make_config(method, task, values=values)
    assert "\n" not in str(error.value)


def test_a_method_runs_on_what_a_task_does_offer():
    assert make_config("fedufo", "brain-seg", values={"level": "client"}).group_by == "none"
    assert make_config("fedism-plus", "brain-seg").training.logit_tau == 0
    assert make_config("fedavg", "support2", values={"min_count": "none"}).min_count is None


def test_a_score_is_that_of_the_models_that_sites_use():
    sites = {
        site: {"metrics": {"auc": 0.5}, "personal_metrics": own} for site, own in (("a", {"auc": 0.9}), ("b", None))
    }
    assert [_score({"sites": sites, "detail": used}, "auc") for used in ({}, {"used": "personal"})] == [0.5, 0.7]
