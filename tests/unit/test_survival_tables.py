# SPDX-License-Identifier: Apache-2.0
"""Times to an event in a user's own tables: init, preflight, run, page, compare, predict, evaluate, export."""

import csv
import json

import numpy as np
import pytest

from cases import later
from fairflare.cli.main import main
from fairflare.core.errors import DataError, UserError
from fairflare.data.inputs import TableInputs
from fairflare.functional import survival as maths
from fairflare.import_data.detect import look
from fairflare.import_data.proposal import Choices
from fairflare.import_data.tables import read_again
from fairflare.inference.external import log_hazards, with_baseline
from fairflare.inference.loaded_run import open_run

lifelines = later("lifelines")
COLUMNS = ("age", "marker", "sex", "days", "dead")
NAMED = ("--time", "days", "--event", "dead", "--horizons", "24")


def call(*given, code=0):
    with pytest.raises(SystemExit) as end:
        main([str(one) for one in given])
    assert (end.value.code or 0) == code


def rows_of(seed, n=220, censored=0.3):
    rng = np.random.default_rng(seed)
    age, marker = rng.normal(60, 10, n), rng.standard_normal(n)
    death, end = rng.exponential(14 / np.exp((age - 60) / 15 + marker)), rng.uniform(6, 40, n)
    times, dead = np.minimum(death, end), (death <= end).astype(int)
    return [
        [f"{a:.1f}", f"{m:.3f}", rng.choice(["f", "m"]), f"{t:.1f}", str(d)]
        for a, m, t, d in zip(age, marker, times, dead, strict=True)
    ]


def write(path, rows, columns=COLUMNS):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("survival") / "hospitals"
    for k, site in enumerate(("North", "South", "West")):
        write(folder / f"{site}.csv", rows_of(k))
    call("init", folder, *NAMED, "--yes")
    return folder


@pytest.fixture(scope="module")
def run(hospitals):
    found = hospitals.parent / "run"
    call("run", "fedavg", "--data", hospitals, "--rounds", "8", "--set", "group_by=sex", "--out", found)
    return found


@pytest.fixture(scope="module")
def report(run):
    return json.loads((run / "report.json").read_text())["detail"]


def test_init_writes_what_a_run_reads(hospitals):
    said = json.loads((hospitals / "fairflare" / "dataset.json").read_text())
    assert said["kind"] == "survival" and said["classes"] == []
    options = {key: said["options"][key] for key in ("label", "time", "horizons", "features")}
    assert options == {"label": "dead", "time": "days", "horizons": "24", "features": "age,marker,sex"}
    with (hospitals / "fairflare" / "North.csv").open() as file:
        assert set(next(csv.reader(file))) == {*COLUMNS, "age_band", "split"}
    call("preflight", hospitals)


def test_the_run_says_how_well_times_are_told(report):
    assert report["status"] == "completed" and report["headline"] == "harrell_c"
    assert report["fairness"]["mean"] > 0.65
    wanted = {"harrell_c", "uno_c", "integrated_brier", "survival_calibration_error", "restricted_mean_error", "loss"}
    assert all(wanted <= set(site["test"]) for site in report["sites"])
    assert all(site["test"]["survival_calibration_error"] < 0.3 for site in report["sites"])
    assert report["groups"]["metric"] == "concordant"
    assert {"harrell_c", "integrated_brier"} <= set(report["benefit"]["metrics"])
    assert report["clinical"] is None


def test_curves_are_of_enough_patients_and_on_the_page(report, run):
    curves = report["curves"]
    assert {row["site"] for row in curves["rows"]} == {"North", "South", "West"}
    for row in curves["rows"]:
        left = [row["n"], *(step["left"] for step in row["steps"])]
        assert row["steps"] or row["group"]
        assert all(a - b >= 10 and b >= 10 for a, b in zip(left, left[1:], strict=False))
        assert all(step["time"] * 10 / 24 == pytest.approx(round(step["time"] * 10 / 24)) for step in row["steps"])
        assert all(step["low"] <= step["observed"] <= step["high"] for step in row["steps"] if step["low"] is not None)
    assert any(row["group"] for row in curves["rows"])
    page = (run / "report.html").read_text()
    assert "<h2>Survival</h2>" in page and "Kaplan and Meier" in page


def test_new_patients_get_survival_and_others_a_test(run, hospitals, tmp_path):
    table = write(tmp_path / "new.csv", [row[:3] for row in rows_of(9, 12)], COLUMNS[:3])
    call("predict", run, table, "--out", tmp_path / "answers")
    with (tmp_path / "answers" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    curves = np.array([[float(row[f"survival_{24 * k / 10:g}"]) for k in range(1, 11)] for row in rows])
    assert len(rows) == 12 and (np.diff(curves) < 0).all() and ((curves > 0) & (curves < 1)).all()
    labelled = write(tmp_path / "East" / "East.csv", rows_of(7))
    call("evaluate", run, labelled, "--out", tmp_path / "judged")
    assert "C-index" in next((tmp_path / "judged").rglob("*.html")).read_text()
    call("export-model", run, "--format", "torchscript", "--out", tmp_path / "model")
    assert "survival (N, 10) after each horizon" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(UserError, match="--baseline: expected a run whose model gives a log risk"):
        with_baseline(open_run(run), labelled)


def test_a_log_risk_is_trained_by_the_partial_likelihood(hospitals, tmp_path):
    call("run", "fedprox", "--data", hospitals, "--rounds", "6", "--set", "output=cox", "--out", tmp_path / "cox")
    found = json.loads((tmp_path / "cox" / "report.json").read_text())["detail"]
    assert found["fairness"]["mean"] > 0.65
    assert {"harrell_c", "uno_c", "loss"} == set(found["sites"][0]["test"])
    assert "Not defined" not in (tmp_path / "cox" / "report.html").read_text()  # concordant pairs are of groups
    assert found["curves"]["rows"][0]["last"]["expected"] is None
    _baseline(tmp_path)


def _baseline(folder):
    """A hospital's own hazard makes probabilities of the log risk, in answers and in an exported model."""
    new, own = write(folder / "new.csv", rows_of(9, 200)), write(folder / "own" / "East.csv", rows_of(7))
    call("predict", folder / "cox", new, "--out", folder / "order")
    assert "is no probability; --baseline" in (folder / "order" / "fairflare.json").read_text()
    call("predict", folder / "cox", new, "--baseline", own, "--out", folder / "answers")
    rows = list(csv.DictReader((folder / "answers" / "predictions.csv").open()))
    ends = [name for name in rows[0] if name.startswith("survival_")]
    told = np.array([[float(row[end]) for end in ends] for row in rows])
    times, events = np.array([[float(row[3]), float(row[4])] for row in rows_of(9, 200)]).T
    seen = maths.curve_at(
        *maths.kaplan_meier(times, events, np.ones((1, 200))),
        np.array([float(e.removeprefix("survival_")) for e in ends]),
    )
    assert len(ends) > 3 and np.abs(told.mean(0) - seen[0]).max() < 0.1
    assert (np.diff(told, axis=1) <= 0).all() and ((told >= 0) & (told <= 1)).all()
    call("export-model", folder / "cox", "--format", "torchscript", "--baseline", own, "--out", folder / "model")
    assert f"log risk, and survival after each of {len(ends)} horizons" in (folder / "model" / "README.md").read_text()
    _judged(folder, own, told, [float(end.removeprefix("survival_")) for end in ends])
    opened = open_run(folder / "cox")
    for rows, match in (
        (rows_of(7, 9), "9 labelled cases: expected at least 10"),
        ([[*row[:4], "0"] for row in rows_of(7)], "got none: all are censored"),
        ([[*row[:3], "200.0", row[4]] for row in rows_of(7)], "until which at least 10 patients have left"),
        ([[*row[:3], "-1", row[4]] for row in rows_of(7)], "days: expected a time of at least 0, got '-1'"),
    ):
        with pytest.raises((UserError, DataError), match=match):
            with_baseline(opened, write(folder / "bad" / "Bad.csv", rows))


def _judged(folder, own, told, ends):
    """With that hazard the run's log risks are scored as the probabilities that ``predict`` gives."""
    rows = rows_of(9, 200)
    new = write(folder / "Ost" / "Ost.csv", rows)
    call("evaluate", folder / "cox", new, "--out", folder / "order_judged")
    call("evaluate", folder / "cox", new, "--baseline", own, "--out", folder / "judged")
    alone, found = (
        json.loads((folder / name / "evaluation.json").read_text())["sites"]["Ost"]
        for name in ("order_judged", "judged")
    )
    assert "integrated_brier" not in alone["metrics"] and "concordant" not in alone["metrics"]
    assert all(found["metrics"][name] == alone["metrics"][name] for name in ("harrell_c", "uno_c"))
    times, events = np.array([[float(row[3]), float(row[4])] for row in rows]).T
    assert set(times) & set(ends)  # an event at a horizon is before it
    seen = lifelines.KaplanMeierFitter().fit(times, events).survival_function_at_times(ends).to_numpy()
    away = np.abs(told.mean(0) - seen)
    assert found["metrics"]["survival_calibration_error"]["value"] == pytest.approx(away.mean(), abs=1e-6)
    # Weights are who is not censored, of those who have not died at the same time either; of an event just before it.
    free = lifelines.KaplanMeierFitter().fit(times - 1e-6 * events, 1 - events)
    at, own_time = (free.survival_function_at_times(when).to_numpy() for when in (ends, times - 1e-6 * events))
    died = (times[:, None] <= ends) & (events[:, None] == 1)
    scores = told**2 * died / own_time.clip(1e-9)[:, None] + (1 - told) ** 2 * (times[:, None] > ends) / at
    whole = np.trapezoid(scores.mean(0), ends) / (ends[-1] - ends[0])
    assert found["metrics"]["integrated_brier"]["value"] == pytest.approx(whole, abs=1e-6)
    steps = [step for step in found["survival"] if round(step["time"], 5) in ends]
    assert len(steps) > 2 and all(step["expected"] is None for step in found["survival"] if step not in steps)
    for step in steps:
        k = ends.index(round(step["time"], 5))
        assert [step["observed"], step["expected"]] == pytest.approx([seen[k], told[:, k].mean()], abs=1e-4)
    page = (folder / "judged" / "evaluation.html").read_text()
    assert "Integrated Brier score" in page and "Survival at the horizons" in page and "Calibration" not in page
    call("evaluate", folder / "cox", new, "--baseline", own, "--own", folder / "cox", code=2)


def _as_hospitals_have_it(path, seed):
    """Dates and words, some of them missing, and beside them the table that a model takes."""
    raw, plain = [], []
    for k, (age, marker, sex, time, dead) in enumerate(rows_of(seed)):
        start, days = np.datetime64("2019-03-01") + k, round(float(time))
        last = str(start + days)
        ends, state = ([last, ""], "dead") if dead == "1" else (["", last], "alive")
        state = "" if k % 20 == 3 else state
        ends = ["", ""] if k % 20 == 4 else ends
        raw.append([age, marker, sex, str(start), *ends, state])
        if state and any(ends):
            plain.append([age, marker, sex, str(days), dead])
    names = (*COLUMNS[:3], "admitted", "died_on", "seen_on", "state")
    return write(path, raw, names), write(
        path.with_name(f"{path.stem}-plain.csv"), plain, (*COLUMNS[:3], "died_on", "state")
    )


def test_a_table_as_the_hospital_has_it_is_evaluated_as_init_reads_it(tmp_path, capsys):
    folder = tmp_path / "dates"
    for k, site in enumerate(("North", "South", "West")):
        _as_hospitals_have_it(folder / f"{site}.csv", k)[1].unlink()
    how = ("--time", "died_on,seen_on", "--event", "state", "--since", "admitted", "--horizons", "6,12,24", "--yes")
    call("init", folder, *how)
    run = ("--data", folder, "--rounds", "3", "--set", "output=cox", "--workers", "1", "--out", tmp_path / "cox")
    call("run", "fedavg", *run)
    raw, plain = _as_hospitals_have_it(tmp_path / "East.csv", 7)
    figures = []
    for table in (raw, plain):
        capsys.readouterr()
        out = tmp_path / f"judged-{table.stem}"
        call("evaluate", tmp_path / "cox", table, "--name", "East", "--baseline", table, "--out", out)
        said = " ".join("".join(capsys.readouterr()).split())
        found = json.loads((out / "evaluation.json").read_text())["sites"]["East"]
        figures.append({name: one["value"] for name, one in found["metrics"].items()} | {"n": found["n"]})
        assert ("22 rows are left out, without an outcome" in said) == (table == raw), said
    assert figures[0] == pytest.approx(figures[1]) and figures[0]["n"] == 198 and "integrated_brier" in figures[0]
    (odd := tmp_path / "odd.csv").write_text(raw.read_text().replace("dead", "deceased"))
    call("evaluate", tmp_path / "cox", odd, "--out", tmp_path / "odd", code=2)
    assert "state: expected dead, alive, got 'deceased'" in " ".join("".join(capsys.readouterr()).split())


def test_the_logs_of_a_baseline_are_breslows_whatever_the_size_of_the_risks():
    times, events, risks = np.array([1.0, 2, 2, 3, 5]), np.array([0.0, 1, 1, 0, 1]), np.arange(5.0)
    weight = np.exp(risks)
    expected = np.log(2 / weight[1:].sum())
    assert log_hazards(times, events, risks, (2.5, 4.0)) == pytest.approx((expected, expected))
    assert log_hazards(times, events, risks + 2000, (2.5,))[0] == pytest.approx(expected - 2000)
    assert log_hazards(times, events, risks, (1.0,)) == (-1e30,)


def test_methods_are_compared(hospitals, tmp_path):
    call("compare", "fedavg", "qffl", "--data", hospitals, "--rounds", "2", "--seeds", "1", "--out", tmp_path / "both")
    assert json.loads(next((tmp_path / "both").rglob("compare.json")).read_text())["headline"] == "harrell_c"


def seen(folder, **given):
    return look(folder, Choices(**given))


def refused(match, folder, **given):
    with pytest.raises(UserError, match=match):
        seen(folder, **given)


def test_what_may_be_a_time_is_asked(tmp_path):
    columns = ("age", "marker", "sex", "time", "status")
    folder = tmp_path / "asked"
    write(folder / "North.csv", rows_of(0), columns)
    expected = "time and status may be a time to an event: either time is the time of the event "
    refused(expected + r"\(--time time --event status --horizons", folder)
    refused(r"status is a class \(--label status --kind tabular\)", folder, label="status")
    assert seen(folder, label="status", kind="tabular").kind == "tabular"
    assert seen(folder, time="time", event="status", horizons="12,24").options["horizons"] == "12,24"
    refused("--horizons: expected the times until which survival is asked for", folder, time="time", event="status")
    refused("--event: expected a column among .*, got none", folder, time="time", horizons="12")


def again(path, reading, event="status"):
    """The events of a table that a model reads, of which ``reading`` says how those of training stood."""
    table, notes = read_again(path, TableInputs((), reading=json.loads(reading)["outcome"]), (event, "time"))
    return list(table[event]), notes


@pytest.mark.parametrize(("value", "twin", "none"), [("2", "2.0", "1"), ("dead", "Dead", "alive")])
def test_events_in_a_second_spelling_are_events(value, twin, none, tmp_path):
    """Events of 2.0 beside a file's 2 counted as none, as did Dead beside dead."""
    columns = (*COLUMNS[:3], "time", "status")
    spelled = {"North": {"1": value, "0": none}, "South": {"1": twin, "0": {"1": "1.0"}.get(none, none.upper())}}
    for site, words in spelled.items():
        write(tmp_path / "two" / f"{site}.csv", [[*row[:4], words[row[4]]] for row in rows_of(0)], columns)
    named = {"time": "time", "event": "status", "horizons": "24"}
    found = seen(tmp_path / "two", event_value=(twin,), **named)
    truth = [row[4] for row in rows_of(0)]
    assert [one.label for one in found.examples] == truth * 2
    for site in spelled:
        assert again(tmp_path / "two" / f"{site}.csv", found.options["reading"])[0] == truth
    if value == "2":
        refused(r"holds 1, 2: either 2 is an event \(--event-value 2\); or 1 is an event", tmp_path / "two", **named)
    else:
        assert [one.label for one in seen(tmp_path / "two", **named).examples] == truth * 2
        refused("--time time --event status --event-value Dead --horizons", tmp_path / "two", label="status")


def test_a_hospital_s_own_splits_make_no_table_one_of_init(tmp_path):
    """Beside a column split, 0 of alive was no event where --event-value says that it is one."""
    truth, root = [row[4] for row in rows_of(0)], tmp_path / "split"
    rows = [[*row[:4], str(1 - int(row[4])), ("train", "val", "test")[k % 3]] for k, row in enumerate(rows_of(0))]
    raw = write(root / "A.csv", rows, (*COLUMNS[:3], "time", "alive", "split"))
    named = ("--time", "time", "--event", "alive", "--event-value", "0", "--horizons", "24", "--yes")
    call("init", root, *named)
    reading = json.loads((root / "fairflare" / "dataset.json").read_text())["options"]["reading"]
    assert again(raw, reading, "alive") == (truth, ["alive: 0 is read as an event"])
    (own,) = (root / "fairflare").glob("*.csv")
    assert again(own, reading, "alive") == (truth, [])
    with pytest.raises(DataError, match="moved.csv: alive: expected dataset.json beside a table that init has written"):
        again(own.rename(tmp_path / "moved.csv"), reading, "alive")


def test_what_is_no_time_is_refused_in_one_line(tmp_path):
    named = {"time": "days", "event": "dead", "horizons": "24"}
    for column, cell, match in (
        (3, "-4", "init: South: days: expected a time of at least 0, got '-4'"),
        (3, "soon", "init: South: days: expected a time of at least 0, got 'soon'"),
        (4, "2", r"init: dead: holds 0, 1, 2: either 2 is an event \(--event-value 2\)"),
    ):
        rows = rows_of(1)
        rows[5][column] = cell
        folder = tmp_path / f"{column}{cell}"
        write(folder / "North.csv", rows_of(0))
        write(folder / "South.csv", rows)
        refused(match, folder, **named)
    refused("horizons: expected at most 100 rising numbers", tmp_path / "3-4", **(named | {"horizons": "24,12"}))


def test_a_site_without_an_event_is_named(tmp_path, capsys):
    folder = tmp_path / "hospitals"
    write(folder / "North.csv", rows_of(0))
    write(folder / "South.csv", [[*row[:4], "0"] for row in rows_of(1)])
    call("init", folder, *NAMED, "--yes")
    call("preflight", folder, code=1)
    said = capsys.readouterr().out
    assert "South" in said and "expected an event among the" in said and "all are censored" in said


def test_a_time_of_zero_is_a_time(tmp_path):
    rows = rows_of(0)
    rows[3][3], rows[3][4] = "0", "1"
    folder = tmp_path / "zero"
    write(folder / "North.csv", rows)
    assert seen(folder, time="days", event="dead", horizons="24").kind == "survival"
