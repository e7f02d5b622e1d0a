# SPDX-License-Identifier: Apache-2.0
"""Whole runs with personal models: what the folder, the report, the terminal and a comparison show of them."""

import dataclasses
import json

import pytest
import torch

from fairflare.cli.main import main
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_federation, build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.trainers.base import Trainer

SMALL = ("--no-solo", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "2")
DIGITS = (
    *("--task", "digits:small", "--sites", "4", "--rounds", "2", "--set", "images_per_site=64"),
    *("--set", "test_images=40", "--set", "site_test_images=40", "--set", "model=small-cnn-bn"),
)


def command(*arguments):
    """Run a command; its exit code."""
    try:
        main([*map(str, arguments)])
    except SystemExit as end:
        return end.code or 0
    return 0


def models(folder):
    """Site -> the personal model that lies in a run's folder."""
    files = sorted((folder / "sites").glob("*.personal.safetensors"))
    return {file.name.removesuffix(".personal.safetensors"): read_tensors(file) for file in files}


def same(one, other):
    flat, beside = ({(site, key): v for site in found for key, v in found[site].items()} for found in (one, other))
    return flat.keys() == beside.keys() and all(torch.equal(flat[key], beside[key]) for key in flat)


@pytest.fixture(scope="module")
def ditto(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "ditto"
    assert command("run", "ditto", *SMALL, "--out", folder) == 0
    return folder


def test_the_run_keeps_a_personal_model_for_every_site_and_its_memory(ditto):
    assert sorted(item.name for item in (ditto / "sites").glob("*.safetensors")) == [
        f"site-{k}{what}.safetensors" for k in (1, 2, 3) for what in (".personal", "")
    ]
    shared = read_tensors(ditto / "model.safetensors")
    for own in models(ditto).values():
        assert own.keys() == shared.keys() and not all(torch.equal(own[key], shared[key]) for key in shared)


def test_audit_log_report_and_page_have_both_results_side_by_side(ditto):
    entries = [json.loads(line) for line in (ditto / "audit.jsonl").read_text().splitlines()]
    told = next(entry for entry in entries if entry["event"] == "evaluation")["sites"]
    report = json.loads((ditto / "report.json").read_text())
    found = report["detail"]["personal"]
    assert [row["site"] for row in found["rows"]] == sorted(told) and found["metric"] == "auc"
    for row in found["rows"]:
        both = told[row["site"]]
        assert (row["shared"], row["personal"]) == (both["test"]["auc"], both["personal"]["test"]["auc"])
        assert row["difference"] == pytest.approx(row["personal"] - row["shared"])
        assert report["sites"][row["site"]]["personal_metrics"] == both["personal"]["test"]
        assert report["sites"][row["site"]]["metrics"] == both["test"]
    values = [both["personal"]["test"]["auc"] for both in told.values()]
    assert found["personal"]["mean"] == pytest.approx(sum(values) / 3)
    assert found["personal"]["worst"]["value"] == min(values)
    assert found["shared"]["mean"] == pytest.approx(report["fairness"]["mean"])
    assert any("Fairness over sites is that of the shared model" in line for line in report["detail"]["caveats"])
    page = (ditto / "report.html").read_text()
    assert "Shared and personal models" in page and f"{min(values):.3f}" in page
    risk = report["detail"]["risks"][0]
    assert (risk["metric"], risk["label"]) == ("personal_auc", "AUC, personal models")
    assert f"AUC, personal models {sum(values) / 3:.2f} on average" in page
    assert f"AUC {report['fairness']['mean']:.2f} on average" in page


def test_verify_and_report_work_on_the_folder(ditto):
    assert command("verify", ditto) == 0
    before = (ditto / "report.json").read_bytes()
    assert command("report", ditto) == 0 and (ditto / "report.json").read_bytes() == before


def test_a_run_that_is_cut_short_and_resumed_ends_with_the_same_personal_models(ditto, tmp_path, monkeypatch):
    """In round 2, when one site has trained and the next has begun."""
    folder, original, calls = tmp_path / "run", Trainer.train, []

    def cut_short(self, work):
        calls.append(work.round.number)
        if calls.count(2) == 2:
            raise KeyboardInterrupt
        return original(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", cut_short)
        assert command("run", "ditto", *SMALL, "--out", folder) != 0
    assert calls == [1, 1, 1, 2, 2]
    assert (folder / "sites" / "site-1.safetensors").exists() and not same(models(folder), models(ditto))
    assert command("resume", folder) == 0
    assert same(models(folder), models(ditto))


class Cut(InProcess):
    """Makes the last update of site-1 so long that the gate rejects it."""

    def exchange(self, instructions):
        for answer in super().exchange(instructions):
            one = instructions[answer.site]
            if (one.task, one.round.number, answer.site) == ("train", 2, "site-1"):
                answer = dataclasses.replace(answer, update={k: v * 1e9 for k, v in answer.update.items()})
            yield answer


def test_a_site_whose_last_round_is_rejected_keeps_the_model_of_the_one_before(tmp_path):
    config = make_config("ditto", "support2:dirichlet", rounds=2, sites=3)
    parts, kept = build_parts(config), {}
    sites = {site: build_site(config, parts, site, tmp_path / f"{site}.safetensors") for site in parts.task.sites()}
    (tmp_path / "run").mkdir()
    build_federation(config, parts, Cut(sites), tmp_path / "run", "local").run(parts.model)
    rounds = [entry for entry in verify(tmp_path / "run" / "audit.jsonl") if entry["event"] == "round"]
    assert [list(entry["rejected"]) for entry in rounds] == [[], ["site-1"]]
    for site in sites:
        kept[site] = read_tensors(tmp_path / f"{site}.safetensors")
        own = read_tensors(tmp_path / f"{site}.personal.safetensors")
        last = kept[site][max(kept[site])]
        assert same({site: own}, {site: sites[site].trainer.personal_model(parts.model, last)})
    assert {site: max(rounds) for site, rounds in kept.items()} == {"site-1": 1, "site-2": 2, "site-3": 2}


def test_force_replaces_personal_models_and_a_strangers_file_among_them_stops_it(tmp_path):
    folder = tmp_path / "run"
    assert command("run", "ditto", *SMALL, "--out", folder) == 0
    (folder / "sites" / "diary.txt").write_text("mine")
    assert command("run", "fedprox", *SMALL, "--out", folder, "--force") == 2
    (folder / "sites" / "diary.txt").unlink()
    assert command("run", "fedprox", *SMALL, "--out", folder, "--force") == 0
    assert not list((folder / "sites").glob("*.safetensors"))
    detail = json.loads((folder / "report.json").read_text())["detail"]
    assert detail["personal"] is None and not any("shared model" in line for line in detail["caveats"])


@pytest.mark.slow
def test_fedbn_shares_no_batchnorm_and_every_site_ends_with_its_own(tmp_path, capsys):
    assert command("run", "fedbn", *DIGITS, "--out", tmp_path / "run") == 0
    assert "personal models" in capsys.readouterr().out
    shared, own = read_tensors(tmp_path / "run" / "model.safetensors"), models(tmp_path / "run")
    norm = {key for key in shared if key.rpartition(".")[0] + ".running_mean" in shared}
    assert norm and len(own) == 4
    for model in own.values():
        assert all(torch.equal(model[key], shared[key]) for key in set(shared) - norm)
        assert not any(torch.equal(model[key], shared[key]) for key in norm if key.endswith("running_mean"))
    first, second = list(own.values())[:2]
    assert not any(torch.equal(first[key], second[key]) for key in norm if key.endswith("running_mean"))


def test_a_comparison_has_personal_results_beside_the_shared_ones(tmp_path, capsys):
    arguments = ("compare", "fedavg", "ditto", *SMALL[1:], "--out", tmp_path / "runs", "--tables", tmp_path / "tables")
    assert command(*arguments) == 0
    printed = capsys.readouterr().out
    assert "mean over sites, shared model" in printed and "those of each site's own model" in printed
    methods = {m["method"]["id"]: m for m in json.loads((tmp_path / "runs" / "compare.json").read_text())["methods"]}
    report = json.loads(next((tmp_path / "runs").glob("ditto*/report.json")).read_text())
    assert methods["ditto"]["mean"]["mean"] == report["detail"]["personal"]["personal"]["mean"]
    assert methods["ditto"]["shared_mean"]["mean"] == report["detail"]["fairness"]["mean"]
    assert methods["fedavg"]["shared_mean"]["mean"] is None
    shared = methods["ditto"]["shared_mean"]["mean"]
    assert shared == methods["fedavg"]["mean"]["mean"], "ditto shares what fedavg shares"
    assert "those of each site's own model" in (tmp_path / "tables" / "compare.md").read_text()
    assert "Shared model: mean" in (tmp_path / "runs" / "compare.html").read_text()


def test_a_network_without_batchnorm_is_refused_before_anything_starts(tmp_path, capsys):
    assert command("run", "fedbn", *SMALL, "--out", tmp_path / "run") == 2
    assert "expected a network with BatchNorm" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_secure_sums_add_the_shared_entries_alone(tmp_path):
    """The sum is that of the same run in the clear, and no BatchNorm is in it."""
    found = {}
    for scheme in ("none", "masks"):
        options = ("--set", "trainer=fedbn", "--set", f"secure_sum={scheme}", "--set", "robust=off", "--rounds", "1")
        assert command("run", "fedism", *DIGITS, *options, "--out", tmp_path / scheme) == 0
        found[scheme] = read_tensors(tmp_path / scheme / "model.safetensors")
    for key, value in found["none"].items():
        torch.testing.assert_close(found["masks"][key], value, rtol=0, atol=1e-4)
    own = [models(tmp_path / scheme) for scheme in ("none", "masks")]
    norm = [key for key in found["none"] if key.endswith("running_mean")]
    for key in norm:
        assert not found["masks"][key].any(), "the server's are those of the initial model"
        assert all(torch.equal(own[0][site][key], own[1][site][key]) for site in own[0])
    assert norm and len(own[0]) == 4
