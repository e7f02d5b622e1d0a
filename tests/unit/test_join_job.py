# SPDX-License-Identifier: Apache-2.0
"""A join as one job: what messages hold, the same answers from sums in secret, kills, silent sites, the ledger."""

import dataclasses
import hashlib
import json
import os
import signal

import numpy as np
import pytest
from scipy.special import expit

from cases import each
from fairflare.cli.jobs import export_job, inspected
from fairflare.core.errors import EgressRefused, RunFailed, UserError
from fairflare.core.schema import Answer, answer_fields
from fairflare.data.site_config import SiteConfig
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.engine.loop import Federation
from fairflare.engine.setup import join_server as server
from fairflare.engine.setup import join_site as site
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.join_plan import plan_of
from fairflare.engine.setup.join_server import Join
from fairflare.engine.setup.site_parts import site_parts
from fairflare.flare.site_policy import Policy
from fairflare.flare.staging import modules_of_run, needed
from fairflare.functional import decision, exchange
from fairflare.functional.decision import Design
from fairflare.privacy.identity import Credentials
from fairflare.report.join import OutOfFold, answers, in_place
from fairflare.studies import join_job
from fairflare.studies.join import Question
from fairflare.studies.join_job import job_of, join_by_job, sheet
from fairflare.tasks.folds import TOO_FEW
from own_folder import write_tables

SITES = ("east", "inner", "north", "south", "west")
DESIGN = Design(2, 1)


def made(sites, repeats=2, sizes=(70, 300), seed=0, regressed=True):
    """Hospitals whose own models are off, and two candidates that are off by less."""
    rng, found = np.random.default_rng(seed), {}
    for name in sites:
        n = int(rng.integers(*sizes))
        x = np.hstack([np.ones((n, 1)), rng.normal(0, 1, (n, 2))])
        logits = x @ [0.0, 1.0, -0.7]
        y, off = (rng.random(n) < expit(logits)).astype(float), [(0, 1), (0, 0.6), (0.3, 0.8)]
        models = np.stack([expit(logits + shift + x @ rng.normal(0, sd / 3, 3)) for shift, sd in off])
        risks = np.stack([expit(logits + rng.normal(shift, sd, (repeats, n))) for shift, sd in off])
        found[name] = OutOfFold(y, risks, exchange.Deployed(x, y, models) if regressed else None)
    return found


def asked(hospitals, design):
    """What is said of all, and every hospital's answer, of numbers with four digits."""
    each_one = {s: dataclasses.replace(one.at_hand(), exact=False) for s, one in hospitals.items()}
    width = max(one.deployed.x.shape[1] if one.deployed else 0 for one in hospitals.values())
    known = in_place(each_one.values(), exchange.Known(2, design, width))
    told = {s: (one.told(known), one.by_regression(known, 0.002)) for s, one in each_one.items()}
    return known.together(names := ["a", "b"], 100), {s: known.answer(t, names, 0.002, r) for s, (t, r) in told.items()}


def close(found, expected, within):
    """All numbers, however deep; how many more patients are needed jumps with the last digit."""
    if isinstance(expected, dict):
        return found.keys() <= expected.keys() and all(
            close(found[key], expected[key], within) for key in found if key != "more_patients"
        )
    return abs(found - expected) <= within if isinstance(expected, float) else found == expected


@each("many", [3, 5, 9])
def test_sums_give_the_answers_that_all_patients_give(many, monkeypatch):
    """Exactly so but for the four digits to which a hospital's means are rounded."""
    hospitals, design = made([f"s{k}" for k in range(many)]), Design(5, 2)
    expected = answers(hospitals, ["a", "b"], design, 0.002)
    for within in (2e-3, 1e-12):
        together, each_one = asked(hospitals, design)
        assert close(together, expected["candidates"], within)
        assert all(close(row["candidates"], expected["sites"][s]["candidates"], within) for s, row in each_one.items())
        if within < 1e-6:
            assert all(close(row["mix"], expected["sites"][s]["mix"], within) for s, row in each_one.items())
        monkeypatch.setattr(exchange, "rounded", lambda values: np.asarray(values, dtype=float))


def test_a_row_has_four_digits_and_nothing_that_patients_cannot_have():
    one = next(iter(made(["a"]).values()))
    row = dataclasses.replace(one.at_hand(), exact=False).row
    numbers = row.numbers()
    assert exchange.Row.of(numbers, 2).numbers() == numbers and len(numbers) == exchange.many(2)
    wrong = {0: 29.0, 1: -0.1, 2: 0.123456, 3: float("nan"), 4: 3.0, 7: -0.5}
    for place, value in wrong.items():
        with pytest.raises(ValueError, match="expected"):
            exchange.Row.of([*numbers[:place], value, *numbers[place + 1 :]], 2)
    with pytest.raises(ValueError, match="numbers"):
        exchange.Row.of(numbers[1:], 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables") / "data", SITES, patients=110)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """An own model that takes no time: what it is has tests of its own."""
    monkeypatch.setattr(decision, "own_risks", lambda x, y, new, patients=None: (expit(new[:, 0] + 0.3), "regression"))


def job(folder, *, secure=False, methods=("fedavg", "ditto"), sites=SITES, regressed=False):
    options = {"task.datalists": str(folder), "task.site_names": ",".join(sites), "task.labels": "lived,died"}
    options |= {"task.label": "outcome", "task.features": "age,score", "task.model": "linear"}
    question = Question(methods, "tabular", DESIGN, choices={"rounds": 2, "values": options})
    made = job_of(question, secure=secure)
    return made if regressed else dataclasses.replace(made, join={**made.join, "features": 0})


class Recorded(InProcess):
    """Remembers what every site is asked and answers; ``lost`` says when a site is silent."""

    def __init__(self, sites, lost=lambda name, instruction: False):
        super().__init__(sites)
        self.seen, self._lost = [], lost

    def exchange(self, instructions):
        kept = {name: one for name, one in instructions.items() if not self._lost(name, one)}
        for answer in super().exchange(kept):
            self.seen.append((instructions[answer.site], answer))
            yield answer


def join(config, folder, monkeypatch, lost=lambda name, instruction: False):
    """The result in ``folder`` and all messages."""
    transports = []
    monkeypatch.setattr(join_job, "InProcess", lambda sites: transports.append(Recorded(sites, lost)) or transports[-1])
    folder.mkdir(exist_ok=True)
    return join_job.run_join(config, folder), transports[-1].seen


def undisturbed(config, place):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decision, "own_risks", lambda x, y, new, patients=None: (expit(new[:, 0] + 0.3), "regression"))
        tested, original = {}, site.Phases._tested
        patch.setattr(site.Phases, "_tested", lambda self: tested.setdefault(self.name, original(self)))
        return (config, place, *join(config, place, patch), tested)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """(configuration, folder, result, messages, tested) of a join that nothing disturbs."""
    return undisturbed(job(folder, regressed=True), tmp_path_factory.mktemp("join"))


@pytest.fixture(scope="module")
def plain(folder, tmp_path_factory):
    """The same by outcomes alone."""
    return undisturbed(job(folder), tmp_path_factory.mktemp("join"))


def numbers_in(value):
    """Every number of a message, however deep."""
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers_in(one)]
    if isinstance(value, (list, tuple)):
        return [number for one in value for number in numbers_in(one)]
    return [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def test_no_message_holds_anything_of_a_fold_or_of_fewer_patients_than_thirty(whole):
    config, _, _, seen, tested = whole
    plan, rows, by_regression = plan_of(config), 0, 0
    allowed = {"preflight": {"n_examples", "metrics"}, "train": {"update", "n_examples", "steps", "seconds"}}
    allowed |= {"evaluate": {"n_examples"}, "calibrate": {"sums"}, "adjust": set()}
    risks = {float(f"{v:.6g}") for one in tested.values() for v in (*one.risks.ravel(), *one.deployed.risks.ravel())}
    for instruction, answer in seen:
        said = {name for name in answer_fields() if getattr(answer, name) and name not in ("site", "round")}
        assert said - {"update_kind"} <= allowed[instruction.task], instruction.task
        if instruction.task == "preflight":
            assert set(answer.metrics) == {"findings", "versions"}
            continue
        told = numbers_in({name: getattr(answer, name) for name in said & {"sums", "n_examples"}})
        assert not risks & {float(f"{v:.6g}") for v in told if v not in (0.0, 1.0)}
        if instruction.task == "calibrate" and len(answer.sums) == exchange.many(3):
            assert answer.sums[0] >= exchange.LEAST_PATIENTS and len(answer.sums) + 3 <= answer.sums[0] / 2
            assert exchange.Row.of(answer.sums, 3).n == tested[answer.site].labels.shape[1]
            rows += 1
        elif (
            instruction.task == "calibrate"
        ):  # nothing is of fewer patients than twice the numbers, Newton's terms beside
            place = instruction.phase - plan.folds
            assert len(answer.sums) == site.sizes(plan, place) and (place != 0 or answer.sums[:2] == [1.0, 110.0])
            by_regression += sum(map(bool, answer.sums)) if place == exchange.THIRD else 0
    assert rows == len(SITES) and by_regression > 0 and 2 * exchange.many_by_regression(3) <= 110
    asked = {one.phase for one, _ in seen}
    assert {*range(plan.folds), *range(plan.folds + exchange.PULLS_AT, plan.phases)} < asked


def test_the_answers_are_those_of_all_risks_out_of_fold(whole):
    _, place, result, _, tested = whole
    hospitals = {name: OutOfFold(one.labels[0], one.risks, one.deployed) for name, one in tested.items()}
    expected = answers(hospitals, list(result["candidates"]), DESIGN, 0.002)
    assert close(result["candidates"], expected["candidates"], 5e-3)
    for name, row in result["sites"].items():
        assert close(row["candidates"], expected["sites"][name]["candidates"], 5e-3)
        own = json.loads((place / "sites" / f"{name}.join.json").read_text())
        assert own["candidates"] == row["candidates"] and own["mix"] == row["mix"]
        assert row["by"] == own["by"] == expected["sites"][name]["by"] == "regression"
        assert own["together"] == result["candidates"]
    kept = {path.name.split(".", 1)[1] for path in (place / "sites").iterdir()}
    assert not any(name.startswith("fold") for name in kept), "risks stay no longer than they are needed"
    words, page = sheet(place / "sites" / "east.join.json")
    assert words and "east: 110 patients" in page.read_text() and "west" not in page.read_text()


def with_a_third(one):
    """Not rounded no longer, and with a third candidate."""
    risks, models = (np.concatenate([r, r[:1] * 0.9 + 0.05]) for r in (one.risks, one.deployed.risks))
    return exchange.Hospital(one.labels, risks, dataclasses.replace(one.deployed, risks=models))


class Signed:
    """An identity whose signature is a hash of what it signs: as strict as a certificate about the content."""

    def sign(self, content):
        return {"signature": hashlib.sha256(content).hexdigest()}

    def vouches(self, site, content, proof):
        return proof.get("signature") == hashlib.sha256(content).hexdigest()


def test_sums_in_secret_give_the_same_and_the_server_sees_no_hospital(folder, tmp_path, monkeypatch):
    """On made risks; 1e-6 was asked for, and nothing but rounding is between the two."""
    monkeypatch.setattr(join_job, "new_credentials", lambda config: (Credentials(Signed()),) * 2)
    hospitals = made(SITES, repeats=1, sizes=(110, 300))
    hospitals = {name: with_a_third(one.at_hand()) for name, one in hospitals.items()}
    monkeypatch.setattr(site.Phases, "_tested", lambda self: hospitals[self.name])
    monkeypatch.setattr(Join, "_folds", lambda self, attempt, among: None)
    clear, _ = join(job(folder, regressed=True), tmp_path / "clear", monkeypatch)
    secret, seen = join(job(folder, secure=True, regressed=True), tmp_path / "secret", monkeypatch)
    assert close(secret["candidates"], clear["candidates"], 1e-9) and close(secret["weights"], clear["weights"], 1e-9)
    assert secret["sites"] == {} and secret["refused"] == {}
    for name in SITES:
        own, open_ = (
            json.loads((tmp_path / one / "sites" / f"{name}.join.json").read_text()) for one in ("secret", "clear")
        )
        assert close(own, open_, 1e-9) and own["n"] == hospitals[name].labels.shape[1] and own["by"] == "regression"
    assert all(not answer.sums and not numbers_in(dict(answer.sealed)) for _, answer in seen)
    with pytest.raises(UserError, match="min_sites"):
        job(folder, secure=True, sites=SITES[:4])


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


@each("point", ["a fold's second round", "a fold's test", "the second sum", "the last total", "a regression's sum"])
def test_a_join_that_is_killed_goes_on_to_the_same_numbers(point, whole, plain, tmp_path, monkeypatch):
    config, place, result, *_ = whole if point == "a regression's sum" else plain
    turns = {"a fold's second round": (Federation, "_round", 5), "a fold's test": (site.FoldTest, "_test", 7)}
    turns |= {"the second sum": (site.JoinSums, "sums", 7), "the last total": (site.Phases, "_clean", 3)}
    turns["a regression's sum"] = (site.JoinSums, "adjust", 112)
    kind, name, turn = turns[point]
    folder = tmp_path / "join"
    if not (child := os.fork()):
        original, count = getattr(kind, name), iter(range(999))
        setattr(kind, name, lambda *args: die() if next(count) == turn else original(*args))
        folder.mkdir()
        join_job.run_join(config, folder)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    again, _ = join(config, folder, monkeypatch)
    assert again == result
    for name in SITES:
        files = (one / "sites" / f"{name}.join.json" for one in (folder, place))
        assert len({path.read_text() for path in files}) == 1


def test_a_hospital_that_falls_silent_is_named_and_the_others_are_answered_as_without_it(folder, tmp_path, monkeypatch):
    config = job(folder)

    def lost(name, instruction):
        return name == "north" and instruction.task == "train" and instruction.phase == 2

    found, _ = join(config, tmp_path / "lost", monkeypatch, lost)
    assert found["refused"] == {"north": "fell silent in fold 1 of deal 0 (fedavg)"}
    monkeypatch.setattr(InProcess, "sites", lambda self: [name for name in self._sites if name != "north"])
    never, _ = join(config, tmp_path / "never", monkeypatch)
    assert {**found, "refused": {}} == never and set(found["sites"]) == set(SITES) - {"north"}
    events = [entry["event"] for entry in verify(tmp_path / "lost" / "audit.jsonl")]
    assert list(dict.fromkeys(events)) == ["start", "left_out", "sum", "finish"]


@pytest.mark.parametrize("secure", [False, True])
def test_a_hospital_of_six_patients_stops_nobody_and_is_told_that_it_has_too_few(secure, tmp_path, monkeypatch):
    sites = (*SITES, "six")
    tables = write_tables(tmp_path / "data", sites, patients=110)
    six = tables / "six.csv"
    six.write_text("".join(six.read_text().splitlines(keepends=True)[:7]))
    found, _ = join(job(tables, methods=("fedavg",), sites=sites, secure=secure), tmp_path / "join", monkeypatch)
    assert found["refused"] == {"six": TOO_FEW} and found["hospitals"] == len(SITES)
    assert secure or set(found["sites"]) == set(SITES)
    trained = [p for p in (tmp_path / "join").glob("fold*") if "again" not in p.name]
    assert len(trained) == 1  # it is left out before the second fold


def test_a_hospital_that_falls_silent_in_the_sums_stops_the_join_and_it_goes_on(folder, tmp_path, monkeypatch):
    config = job(folder, methods=("fedavg",))
    silent = lambda name, instruction: name == "north" and instruction.task == "adjust"  # noqa: E731
    with pytest.raises(RunFailed, match="north: no_answer"):
        join(config, tmp_path / "join", monkeypatch, silent)
    found, _ = join(config, tmp_path / "join", monkeypatch)
    assert set(found["sites"]) == set(SITES) and not found["refused"]


def test_a_site_tells_once_of_nearly_the_same_patients(tmp_path, folder):
    ledger = site.Ledger(tmp_path / "a.joins.json", None, job(folder))
    entry = {"federation": "one", "config": "x", "n": 100}
    assert not ledger.admit(entry, 10)
    for n in (100, 99, 109, 91):
        assert "fewer than 10 apart" in ledger.admit({**entry, "federation": "two", "n": n}, 10)
    assert not ledger.admit({**entry, "n": 110}, 10)
    assert "120" not in ledger.admit({**entry, "n": 119}, 10)
    assert not ledger.admit({**entry, "n": 120}, 10)
    other = site.Ledger(tmp_path / "a.joins.json", SiteConfig(data_root="/data", datalist="b.csv"), job(folder))
    assert not other.admit(entry, 10), "another table's patients are others"
    assert len(json.loads((tmp_path / "a.joins.json").read_text())["told"]) == 4


def test_a_second_join_of_one_patient_more_is_refused_by_every_site(whole, tmp_path, monkeypatch):
    """Another question, of a cohort that differs by less than ``min_count``: nobody is tested, and nothing is told."""
    config, place, *_ = whole
    new = tmp_path / "second"
    (new / "sites").mkdir(parents=True)
    for path in (place / "sites").glob("*.joins.json"):
        told = json.loads(path.read_text())
        told["told"][0]["n"] -= 1
        (new / "sites" / path.name).write_text(json.dumps(told))
    monkeypatch.setattr(Join, "_folds", lambda self, attempt, among: None)
    one = with_a_third(next(iter(made(["a"], repeats=1, sizes=(110, 111)).values())).at_hand())
    monkeypatch.setattr(site.Phases, "_tested", lambda self: one)
    other = dataclasses.replace(config, join={**config.join, "margin": 0.0})
    with pytest.raises(RunFailed, match="nobody is tested"):
        join(other, new, monkeypatch)


def phase_of(config, folder, name="east"):
    return site.Phases(config, name, folder / "sites" / f"{name}.safetensors")


def test_what_was_told_stays_and_no_fold_is_tested_after_it(whole):
    config, place, *_ = whole
    plan = plan_of(config)
    again = phase_of(config, place)
    instruction = server.Instruction("train", server.Round(1, 2), {}, phase=plan.phases)
    with pytest.raises(site.AskedAgain, match="after the sums"):
        again.handle(instruction)
    ask = server.Instruction("calibrate", server.Round(2, 2), {}, phase=plan.folds + exchange.FIRST)
    first = again.handle(ask).sums
    assert again.handle(ask).sums == first
    with pytest.raises(ValueError, match="number of a phase"):
        again.handle(dataclasses.replace(ask, phase=None))
    with pytest.raises(site.AskedAgain, match="before the last round"):
        again.handle(dataclasses.replace(ask, round=server.Round(1, 2)))


def test_the_filter_lets_no_metric_of_a_fold_pass_and_only_a_sums_own_numbers(whole):
    config, _, _, seen, _ = whole
    plan = plan_of(config)
    places = (0, *(plan.folds + place for place in (exchange.FIRST, exchange.SECOND, exchange.THIRD)))
    fold, first, second, third = (site.leaves_in(config, phase, 10, None) for phase in places)
    with pytest.raises(EgressRefused, match="metrics"):
        fold.check("evaluate", Answer("a", 2, n_examples=40, metrics={"test": {"auc": 0.5}}))
    with pytest.raises(EgressRefused, match="sums"):
        fold.check("calibrate", Answer("a", 2, sums=[1.0]))
    row, *_, last = (a for one, a in seen if one.task == "calibrate" and one.phase >= places[1])
    third.check("calibrate", last)
    with pytest.raises(EgressRefused, match="sums"):
        third.check("calibrate", dataclasses.replace(last, sums=[0.1234567, *last.sums[1:]]))
    first.check("calibrate", row)
    for sums in (row.sums[:-1], [29.0, *row.sums[1:]], [*row.sums[:-1], 0.1234567], [0.0, *row.sums[1:]]):
        with pytest.raises(EgressRefused, match="sums"):
            first.check("calibrate", dataclasses.replace(row, sums=sums))
    with pytest.raises(EgressRefused, match="sums"):
        second.check("calibrate", row)


def test_the_configuration_comes_back_and_a_wrong_one_is_refused(whole):
    config, *_ = whole
    assert RunConfig.from_json(config.to_json()) == config and site_parts(plan_of(config).first)
    for change in ({"folds": 1}, {"repeats": "3"}, {"margin": 1}, {"candidates": {}}, {"more": 1}):
        with pytest.raises(UserError, match="join"):
            plan_of(dataclasses.replace(config, join={**config.join, **change}))
    with pytest.raises(UserError, match="after"):
        plan_of(dataclasses.replace(config, after="recalibrate"))
    with pytest.raises(UserError, match="does not report its benefit of joining"):
        Policy(after=[]).check(config)
    Policy(after=["join"]).check(config)


def test_the_folder_is_gone_on_with_and_nothing_else_is_replaced(whole, tmp_path):
    config, place, result, *_ = whole
    assert join_by_job(config, place)["sites"].keys() == result["sites"].keys()
    assert "join" in (place / "join.html").read_text()
    other = dataclasses.replace(config, seed=1)
    with pytest.raises(UserError, match="holds something else"):
        join_by_job(other, place)
    (tmp_path / "letter.txt").write_text("")
    with pytest.raises(UserError, match="holds something else"):
        join_by_job(config, tmp_path, force=True)


def test_a_hospital_is_sent_no_more_than_in_another_job_and_inspect_says_what_leaves(tmp_path, folder):
    """The exported job is one that a site's policy accepts, and only it carries what a join needs."""
    config = dataclasses.replace(job(folder), options={**job(folder).options, "datalists": ""})
    export_job(config, tmp_path / "job", name=None, simulation=False, force=False)
    found = inspected(tmp_path / "job")
    assert found["policy"] == "accepted" and found["site"]["matches"] is True
    assert found["site"]["files"] <= 230 and found["site"]["lines"] <= 20_000
    said = {(one["name"], one["exchanges"]) for one in found["leaves"]}
    assert ("sums", "calibrate") in said and not {name for name, where in said if where == "evaluate"} & {"metrics"}
    home = tmp_path / "job" / "app_sites" / "custom" / "fairflare"
    assert (home / "engine/setup/join_site.py").is_file() and (home / "functional/decision.py").is_file()
    assert not (home / "engine/setup/join_server.py").exists()
    begins = ["fairflare.flare.executor.FairExecutor", "fairflare.flare.egress.EgressFilter"]
    plain = {path.as_posix() for path in needed([*begins, *modules_of_run(plan_of(config).first)])}
    assert not {"engine/setup/join_site.py", "functional/exchange.py", "functional/decision.py"} & plain


@each(
    "n, ill, least, told",
    [
        (46, 20, 10, True),
        (45, 20, 10, False),
        (29, 10, 10, False),
        (90, 4, 10, False),
        (90, 40, None, False),
        (90, 40, 91, False),
    ],
)
def test_few_patients_tell_nothing(n, ill, least, told, tmp_path, folder):
    """Three candidates are 20 numbers and three more: 46 patients; a site's own minimum counts, too."""
    labels = (np.arange(n) < ill).astype(float)[None]
    risks = np.random.default_rng(0).random((4, 1, n))
    plan, answer = (
        plan_of(job(folder)),
        tmp_path / "answer",
    )
    mine = (lambda: exchange.Hospital(labels, risks), tmp_path / "sums.safetensors", answer, print, lambda n: "")
    one = site.JoinSums(plan, "east", exchange.FIRST, least, *mine)
    assert any(one.sums(None)) == told
    assert len(one.sums(None)) == exchange.many(3)
