# SPDX-License-Identifier: Apache-2.0
"""A decision as one job: the numbers of one process, sums in secret, what travels, silent sites, who asks twice."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from cases import each
from fairflare.cli.jobs import export_job, inspected
from fairflare.cli.main import main
from fairflare.core.errors import EgressRefused, RunFailed, UserError
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.data.site_config import read_site_config
from fairflare.decision import study
from fairflare.decision.sums import EM_AT, PLACES, Plan
from fairflare.engine.audit import verify
from fairflare.engine.exchanges import decide as exchange
from fairflare.engine.in_process import InProcess
from fairflare.engine.memory import AskedAgain
from fairflare.engine.setup.assembly import build_site, leaves
from fairflare.engine.setup.at_site import of_run
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.site_policy import Policy, check_config
from fairflare.privacy.referee import Forgetful, Referee
from fairflare.studies.join import Question, decided, job_of, measure, measure_by_job, sheets_of
from own_folder import write_tables

SITES = ("east", "inner", "north", "south", "west")
PLAN = Plan(3, 2, 0.4, 0.0)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A question on five hospitals' own tables."""
    folder = write_tables(tmp_path_factory.mktemp("tables"), SITES)
    values = {"datalists": str(folder), "site_names": ",".join(SITES), "labels": "lived,died", "label": "outcome"}
    more = {"features": "age,score", "min_count": "1"}  # so that net benefits are told
    return Question("tabular", plan=PLAN, choices={"values": {**values, **more}})


@pytest.fixture(scope="module")
def plain(asked, tmp_path_factory):
    """In place."""
    return measure(asked, tmp_path_factory.mktemp("plain") / "j")


@pytest.fixture(scope="module")
def messages():
    return []


@pytest.fixture(scope="module")
def clear(asked, messages, tmp_path_factory):
    """As a job in this process, whose messages are kept."""
    folder = tmp_path_factory.mktemp("clear") / "j"
    with pytest.MonkeyPatch.context() as patch:
        listen(patch, messages)
        return measure_by_job(asked, folder), folder


def listen(patch, messages):
    exchanged = InProcess.exchange

    def heard(self, instructions):
        for answer in exchanged(self, instructions):
            messages.append((instructions[answer.site], answer))
            yield answer

    patch.setattr(InProcess, "exchange", heard)


def close(found, expected, tolerance=1e-6):
    """Every estimate of every hospital, the averages, and the verdicts."""
    for site, row in expected["sites"].items():
        told = found["sites"][site]
        assert told["verdict"] == row["verdict"] and told["participation"] == row["participation"], site
        for kind in ("estimands", "net_benefit"):
            for key, numbers in row[kind].items():
                assert told[kind][key] == pytest.approx(numbers, abs=tolerance), (site, key)
    for key, one in expected["averages"].items():
        assert found["averages"][key] == pytest.approx(one, abs=tolerance)


def test_a_job_gives_the_numbers_of_one_place(clear, plain):
    found, folder = clear
    close(found, plain)
    assert set(found["sites"]) == set(SITES) and found["hospitals"] == list(SITES) and not found["secure"]
    page = (folder / "join.html").read_text()
    assert all(site in page for site in SITES) and len(list((folder / "sheets").glob("*.html"))) == 5
    (line,) = (one for one in verify(folder / "run" / "audit.jsonl") if one["event"] == "exchange")
    assert line["exchange"] == "decide" and set(line["sites"]) == set(SITES)


def test_the_model_of_the_job_is_exact_regression_on_all_patients(clear):
    rounds = [one for one in verify(clear[1] / "run" / "audit.jsonl") if one["event"] == "round"]
    assert len(rounds) == 8 and all(sum(one["declared"].values()) == 400 for one in rounds if one.get("declared"))


def test_what_travels_are_sums_and_declared_numbers(clear, messages):
    """No answer to "decide" has anything beside its part of a sum, and rows leave once, after the last total."""
    declared, decisions = {one.name for one in study.numbers(PLAN)}, [m for m in messages if m[0].task == "decide"]
    rows = 80
    for _, answer in decisions:
        assert all(type(value) is float and value >= 0 for value in answer.sums) and not answer.reports
        assert len(answer.sums) < rows * 100 and answer.update is None and not answer.metrics
    told = [answer for instruction, answer in messages if instruction.task == "decided" and answer.reports]
    assert sorted(answer.site for answer in told) == sorted(SITES)
    assert all(set(answer.reports) <= declared for answer in told)
    places = [int(instruction.orders["place"]) for instruction, _ in decisions]
    assert places == sorted(places) and max(places) == PLACES - 1 and sum(p < EM_AT for p in set(places)) <= 5


def test_sums_in_secret_give_the_same_and_the_server_sees_no_hospital(asked, tmp_path, monkeypatch):
    heard = []
    listen(monkeypatch, heard)
    found = measure_by_job(asked, tmp_path / "s", secure=True)
    assert found["sites"] == {} and found["secure"]
    alike = measure(asked, tmp_path / "p")
    for key, one in alike["averages"].items():
        assert found["averages"][key] == pytest.approx(one, abs=1e-6)
    own = {}
    for site in SITES:
        kept = json.loads((tmp_path / "s" / "run" / "sites" / f"{site}.decision.json").read_text())
        own |= kept["sites"]
    close({"sites": own, "averages": found["averages"]}, alike)
    for instruction, answer in heard:
        if instruction.task in ("decide", "decided"):
            assert answer.sums is None and not answer.reports and not answer.adjusted
    sealed = [answer.sealed["sum"] for instruction, answer in heard if instruction.task == "decide"]
    assert len(set(sealed)) == len(sealed)
    (page,) = sheets_of(tmp_path / "s" / "run" / "sites" / "east.decision.json", language="de")
    assert "Soll east" in page.read_text()


def site_of(config, folder, name="east", **how):
    """A site and what asks it for the next sum."""
    site = build_site(config, build_parts(config, at_site=True), name, folder / f"{name}.safetensors", **how)
    model = dict(build_parts(config).model)

    def ask(place, start=None):
        last = Round(8, 8)
        return site.handle(Instruction("decide", last, start or model, {"place": float(place)}))

    return site, ask


def test_a_sum_out_of_turn_is_not_answered_and_the_same_one_is_again(asked, tmp_path):
    site, ask = site_of(job_of(asked), tmp_path)
    first = ask(0)
    assert ask(0).sums == first.sums
    for place in (1, EM_AT, PLACES - 1):
        with pytest.raises(AskedAgain):
            ask(place)
    total = {str(i): value for i, value in enumerate(first.sums)}
    site.handle(Instruction("decided", Round(8, 8), {}, total))
    assert ask(1).sums and ask(0).sums == first.sums, "all sums once more, without a hospital that was silent"
    site.handle(Instruction("decided", Round(8, 8), {}, total))
    with pytest.raises(AskedAgain):
        ask(0)  # and no third time


def test_coefficients_at_which_few_patients_count_are_refused(asked, tmp_path):
    """A server that sends steep coefficients would read single patients, sum by sum."""
    config = job_of(asked)
    model = dict(build_parts(config).model)
    model["weight"] = model["weight"].clone()
    model["weight"][0] = 4000.0
    site, ask = site_of(config, tmp_path)
    assert "few_effective" in (ask(0, model).error or "")
    assert "few_effective" in (ask(0).error or ""), "the site has left the run"


def test_a_site_that_refuses_once_refuses_again(asked, tmp_path):
    site, ask = site_of(dataclasses.replace(job_of(asked), min_count=10), tmp_path)
    n = 80
    site.referee.history.add({"run": "other", "subject": site.referee.subject, "decided": "1" * 64, "n": n + 1})
    for _ in range(2):
        assert "decided_near" in (ask(0).error or "")


def test_net_benefit_that_tells_of_few_flagged_patients_is_not_told(asked, plain, tmp_path):
    """At full precision it tells how many with and without the outcome a model flags; at two thresholds, of whom."""
    of_few = dataclasses.replace(asked, choices={"values": {**asked.choices["values"], "min_count": "10"}})
    found = measure_by_job(of_few, tmp_path / "j")
    for site, row in found["sites"].items():
        assert not row["net_benefit"] and "net_benefit" not in row["outside"], site
        assert row["estimands"]["U"] == pytest.approx(plain["sites"][site]["estimands"]["U"], abs=1e-6)
    history = Forgetful()
    for threshold in (None, 0.4, 0.4, None):
        Referee(run="a", subject="s", history=history).decided("1" * 64, 300, 10, threshold)
    with pytest.raises(EgressRefused, match="decided_at"):
        Referee(run="b", subject="s", history=history).decided("1" * 64, 300, 10, 0.41)


def test_a_decision_on_nearly_the_same_patients_is_refused():
    history = Forgetful()
    referee = Referee(run="a", subject="s", history=history)
    referee.decided("1" * 64, 300, 10)
    Referee(run="b", subject="s", history=history).decided("1" * 64, 300, 10)  # the same ones once more
    Referee(run="b", subject="other", history=history).decided("2" * 64, 301, 10)
    Referee(run="b", subject="s", history=history).decided("2" * 64, 310, 10)
    for n in (299, 300, 301, 305, 311):
        with pytest.raises(EgressRefused, match="decided_near"):
            Referee(run="c", subject="s", history=history).decided("3" * 64, n, 10)


def test_under_secure_sums_other_sites_are_refused_in_the_same_decision(asked, tmp_path):
    """The difference of two sums over sets that differ by one hospital is that hospital's part."""
    from fairflare.privacy.sum_protocol import SumRefused

    config = job_of(asked, secure=True)
    made = {name: site_of(config, tmp_path, name)[0] for name in SITES}
    stated = {name: site.handle(Instruction("preflight", Round(1, 8), {})).sealed for name, site in made.items()}
    model = dict(build_parts(config).model)

    def ask(names, place=0):
        sealed = {"attempt": 0, "statements": {name: dict(stated[name]) for name in names}}
        return made["east"].handle(Instruction("decide", Round(8, 8), model, {"place": float(place)}, sealed=sealed))

    assert ask(SITES).sealed["sum"]
    with pytest.raises((SumRefused, AskedAgain)):
        ask(SITES[:4])


def test_hospitals_that_begin_at_other_coefficients_share_no_masks(asked, tmp_path):
    """At saturated coefficients the others would add nothing, and the sum be one hospital's."""
    from fairflare.privacy.secure_sums import combine
    from fairflare.privacy.sum_protocol import SumRefused

    config = job_of(asked, secure=True)
    made = {name: site_of(config, tmp_path, name)[0] for name in SITES}
    stated = {name: dict(site.handle(Instruction("preflight", Round(1, 8), {})).sealed) for name, site in made.items()}
    model = dict(build_parts(config).model)
    steep = {**model, "bias": model["bias"] + 1000.0}

    def sums(of):
        sealed = {"attempt": 0, "statements": stated}
        asked = {name: Instruction("decide", Round(8, 8), of(name), {"place": 0.0}, sealed=sealed) for name in SITES}
        return [made[name].handle(asked[name]).sealed["sum"] for name in SITES]

    with pytest.raises(SumRefused, match="do not cancel"):
        combine(sums(lambda name: model if name == "north" else steep))


@each("secure", [False, True])
def test_a_hospital_that_falls_silent(secure, asked, tmp_path, monkeypatch):
    """In the clear all sums are made again without it; in secret none can be, and the job says so."""
    exchanged, count = InProcess.exchange, []

    def without(self, instructions):
        place = next(iter(instructions.values())).orders.get("place")
        for answer in exchanged(self, instructions):
            if place == 3.0 and answer.site == "west" and next(iter(instructions.values())).task == "decide":
                count.append(1)
                continue
            yield answer

    monkeypatch.setattr(InProcess, "exchange", without)
    if secure:
        with pytest.raises(RunFailed, match="west"):
            measure_by_job(asked, tmp_path / "j", secure=True)
        return
    found = measure_by_job(asked, tmp_path / "j")
    assert count == [1] and set(found["sites"]) == set(SITES) - {"west"} and found["hospitals"] == list(SITES[:4])
    task = build_parts(job_of(asked), at_site=True).task
    four = {site: study.hospital_at(task.site_data(site), 1) for site in SITES[:4]}
    alone = study.decision_of(four, PLAN, study.measurements(task))
    rows = {site: study.row_of(answer, PLAN) for site, answer in alone.answers.items()}
    close(found, study.content(PLAN, rows, alone.known))


def test_patients_at_several_hospitals_are_dealt_by_a_key_that_the_server_lacks(asked, tmp_path, monkeypatch):
    folder, files = write_tables(tmp_path / "t", SITES), tmp_path / "files"
    files.mkdir()
    for k, site in enumerate(SITES):
        head, *rows = (folder / f"{site}.csv").read_text().splitlines()
        named = [f"{head},patient", *(f"{row},P{40 * k + i}" for i, row in enumerate(rows))]
        (folder / f"{site}.csv").write_text("\n".join(named) + "\n")
    question = Question(
        "tabular", plan=Plan(2, 1, shared_patients=True), choices={"values": dict(asked.choices["values"])}
    )
    question.choices["values"]["datalists"] = str(folder)
    with pytest.raises(RunFailed, match="patient_key"):
        measure_by_job(question, tmp_path / "no key")
    for site in SITES:
        text = f"data_root: {folder}\ndatalist: {site}.csv\npatient_key: known to five hospitals\n"
        (files / f"{site}.yaml").write_text(text)
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(files))
    found = measure_by_job(question, tmp_path / "j")
    task = build_parts(job_of(question), at_site=True).task
    own = {site: read_site_config(files / f"{site}.yaml") for site in SITES}
    five = {site: study.hospital_at(task.local_data(site, own[site]), 1) for site in SITES}
    alone = study.decision_of(five, question.plan, study.measurements(task))
    assert len(alone.known.without_folds) == 2 and not alone.known.refits
    rows = {site: study.row_of(answer, question.plan) for site, answer in alone.answers.items()}
    close(found, study.content(question.plan, rows, alone.known))


def test_a_tiny_hospital_is_named_and_stops_nobody(tmp_path):
    folder = write_tables(tmp_path / "t", SITES)
    lines = (folder / "west.csv").read_text().splitlines()
    (folder / "west.csv").write_text("\n".join(lines[:7]) + "\n")
    values = {"datalists": str(folder), "site_names": ",".join(SITES), "labels": "lived,died", "label": "outcome"}
    question = Question("tabular", plan=PLAN, choices={"values": {**values, "features": "age,score"}})
    found = measure_by_job(question, tmp_path / "j")
    assert set(found["sites"]) == set(SITES) and "estimands" not in found["sites"]["west"]
    assert found["sites"]["west"]["sentence"].startswith("too few patients to tell")
    assert not {"events", "models"} & set(found["sites"]["west"]), "no number of six patients"
    assert all("estimands" in found["sites"][site] for site in SITES[:4])


def test_the_check_before_a_site_lets_no_other_number_pass(asked):
    config = job_of(asked)
    parts = build_parts(config, at_site=True)
    egress = leaves(config, parts, 10)
    known = exchange.first_known(exchange.OfRun(config, parts, "east", 10), {})
    proper = Answer("east", 8, sums=[0.0] * known.length(0))
    egress.check("decide", proper)
    row = {"patients": 80.0, "estimands.U.value": 0.01}
    egress.check("decided", Answer("east", 8, reports=row))
    for task, answer in (
        ("decide", dataclasses.replace(proper, sums=proper.sums[:-1])),
        ("decide", dataclasses.replace(proper, sums=[float("nan"), *proper.sums[1:]])),
        ("decide", dataclasses.replace(proper, sums=[-1.0, *proper.sums[1:]])),
        ("decided", Answer("east", 8, reports={"name": 1.0})),
        ("decided", Answer("east", 8, reports={"patients": -1.0})),
        ("train", proper),
    ):
        with pytest.raises(EgressRefused):
            egress.check(task, answer)


@each(
    "change, words",
    [
        ({"folds": 1}, "folds"),
        ({"deals": 0}, "deals"),
        ({"threshold": 1.5}, "threshold"),
        ({"event": "nobody"}, "event"),
        ({"own_model": "forest"}, "own_model"),
        ({"shared_patients": 1}, "shared_patients"),
        ({"more": 1}, "keys among"),
    ],
)
def test_a_wrong_setting_is_refused(change, words, asked):
    config = job_of(asked)
    assert RunConfig.from_json(config.to_json()) == config
    wrong = dataclasses.replace(config, decision={**config.decision, **change})
    with pytest.raises(UserError, match=words):
        exchange.plan_of(wrong, build_parts(config, at_site=True).task)


def test_a_job_on_more_features_than_hessians_can_take_is_refused(asked):
    config = job_of(asked)
    wide = dataclasses.replace(build_parts(config, at_site=True), network=torch.nn.Linear(201, 1))
    with pytest.raises(UserError, match="at most 200 features .in a job; more without --env., got 201"):
        exchange.first_known(of_run(config, wide), {})


def test_a_site_policy_may_refuse_decisions_and_inspect_says_what_leaves(asked, tmp_path):
    config = job_of(asked)
    Policy().check(config)
    with pytest.raises(UserError, match="exchanges"):
        Policy(after=[]).check(config)
    Policy(thresholds=[0.4, 0.5]).check(config)
    with pytest.raises(UserError, match="threshold: expected one of 0.5, got 0.4"):
        Policy(thresholds=[0.5]).check(config)
    (tmp_path / "own.py").write_text("class Model: pass\n")
    content = config.to_json()
    content["options"] = {**content["options"], "datalists": ""}
    content["decision"] = {**content["decision"], "own_model": "own.Model"}
    check_config(content, Policy(names=["own.Model"]), [tmp_path])
    for rules, homes in ((Policy(names=["our.Net"]), [tmp_path]), (Policy(), [])):
        with pytest.raises(UserError, match="decision: own_model: expected a name"):
            check_config(content, rules, homes)
    export_job(config, tmp_path / "job", name=None, simulation=False, force=False)
    told = {one["name"]: one for one in inspected(tmp_path / "job")["leaves"]}
    assert "decide" in told["sums"]["exchanges"] and "decided" in told["reports"]["exchanges"]


def test_the_command_exports_and_methods_need_this_machine(asked, tmp_path, capsys):
    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return ended.value.code, capsys.readouterr()

    chosen = {key: value for key, value in asked.choices["values"].items() if key != "min_count"}
    values = [part for key, value in chosen.items() for part in ("--set", f"task.{key}={value}")]
    code, said = run("join", "decide", "--task", "tabular", *values, "--export", tmp_path / "job", "--json")
    assert (
        code == 0
        and json.loads(said.out) == {"job": str(tmp_path / "job")}
        and (tmp_path / "job" / "meta.json").is_file()
    )
    code, said = run("join", "fedavg", "--task", "tabular", *values, "--export", tmp_path / "more")
    assert code == 2 and "expected no METHOD" in said.err and not (tmp_path / "more").exists()
    code, said = run("join-sheet", tmp_path / "job" / "meta.json")
    assert code == 2 and "decision that a site keeps" in said.err


def test_a_run_without_a_decision_is_none(tmp_path):
    with pytest.raises(RunFailed, match="before the decision"):
        decided(tmp_path)
    assert np.isfinite(PLAN.design.factor)


def test_another_decision_replaces_none_by_itself_and_leaves_none_of_its_sheets(asked, tmp_path):
    folder = tmp_path / "j"
    measure(asked, folder)
    sheets = sheets_of(folder, language="de")
    measure(asked, folder)
    assert all(path.is_file() for path in sheets), "the same decision once more"
    before = (folder / "decision.json").read_bytes()
    other = dataclasses.replace(asked, plan=dataclasses.replace(asked.plan, folds=asked.plan.folds + 1))
    with pytest.raises(UserError, match="holds the decision of another question, with folds"):
        measure(other, folder)
    assert (folder / "decision.json").read_bytes() == before and all(path.is_file() for path in sheets)
    measure(other, folder, force=True)
    assert not any(path.exists() for path in sheets), "a sheet in another language spoke of the first decision"
    assert len(list((folder / "sheets").glob("*.html"))) == len(sheets)
