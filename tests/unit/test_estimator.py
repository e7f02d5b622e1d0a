# SPDX-License-Identifier: Apache-2.0
"""``Federation`` on a DataFrame: the way of ``fairflare init``, tables of the report."""

import inspect
import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

import fairflare
from cases import each
from fairflare import Federation, compare
from fairflare.api import LISTS, TYPED, WORDS
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.datasets.heart import patients
from fairflare.import_data.proposal import Choices
from fairflare.report.values import signed, text

ROLES = {"site": "hospital", "outcome": "ill", "groups": ["sex"], "patient": "patient"}
ONCE = {"rounds": 1, "min_count": 5}


def table(sites=("Cleveland", "Hungary", "VA")):
    parts = [pd.DataFrame(patients(site)).assign(hospital=site) for site in sites]
    found = pd.concat(parts, ignore_index=True)
    found["ill"], found["sex"] = found["num"] > 0, found["sex"].map({0: "female", 1: "male"})
    found["patient"] = [f"p{k}" for k in range(len(found))]
    return found[["patient", "hospital", "sex", "age", "thalach", "oldpeak", "ill"]]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimator")
    made = Federation("fedism-plus", **ONCE)
    return made.fit(table(), **ROLES, data_folder=folder / "data", out=folder / "run", progress=False)


def test_a_run_in_a_private_folder_has_a_page_once_it_is_asked_for():
    made = Federation("fedavg", rounds=1).fit(table(), **ROLES, progress=False)
    assert not made.report.page.exists()
    assert "</html>" in made.report().read_text() and made.report() == made.report.page


def test_only_what_is_public_is_listed():
    assert dir(fairflare) == sorted(fairflare.__all__)
    for name in {*fairflare.__all__} - {"__version__"}:
        one = getattr(fairflare, name)
        assert one.__doc__ and one.__doc__.strip().endswith((".", ")", "``")) or "\n" in one.__doc__, name


def test_every_public_name_says_what_it_takes():
    """Functions, and methods of the classes: a docstring, and each argument of the longer ones under Args."""
    for name in {*fairflare.__all__} - {"__version__", "tasks"}:
        one = getattr(fairflare, name)
        own = (
            [(name, one)]
            if inspect.isfunction(one)
            else inspect.getmembers(one, lambda part: inspect.isfunction(part) or inspect.ismethod(part))
        )
        for called, function in own:
            if (
                called.startswith("_")
                or "<" in function.__qualname__
                or not getattr(function, "__module__", "").startswith("fairflare")
            ):
                continue
            assert function.__doc__, f"{name}.{called}"
            takes = [
                key for key in inspect.signature(function).parameters if key not in ("self", "cls", "deep", "params")
            ]
            ours = function.__module__ in ("fairflare.api", "fairflare.inference.frames") and len(takes) > 1
            assert not ours or all(f" {key}: " in function.__doc__ for key in takes), f"{name}.{called}: {takes}"


def test_keywords_are_those_of_the_command_line():
    named = {"label" if key == "outcome" else key for key in (*WORDS, *LISTS)}
    assert named < set(Choices.__dataclass_fields__)
    assert {*WORDS, *LISTS} < set(inspect.signature(Federation.fit).parameters)
    assert set(TYPED) < set(inspect.signature(Federation.__init__).parameters)


@pytest.mark.slow
def test_a_frame_becomes_what_init_makes_of_the_same_table(tmp_path, fitted, capsys):
    home = tmp_path / "table"
    home.mkdir()
    table().to_parquet(home / "all.parquet")
    flags = ["--site", "hospital", "--label", "ill", "--groups", "sex", "--patient", "patient", "--yes"]
    with pytest.raises(SystemExit) as stop:
        main(["init", str(home / "all.parquet"), *flags])
    assert stop.value.code == 0, capsys.readouterr().err
    ours = fitted.folder.parent / "data" / "fairflare"
    names = sorted(path.relative_to(ours) for path in ours.rglob("*.csv"))
    assert len(names) == 3
    for name in names:
        assert (ours / name).read_bytes() == (home / "fairflare" / name).read_bytes()
    both = [json.loads((folder / "dataset.json").read_text()) for folder in (ours, home / "fairflare")]
    assert all(one.pop("run") for one in both) and both[0] == both[1]
    again = Federation("fedism-plus", **ONCE)
    again.fit(table(), **ROLES, data_folder=ours.parent, out=fitted.folder, progress=False)
    assert again.report == fitted.report, "the same table and settings find the finished run"
    with pytest.raises(UserError, match="exists; remove it to look at the folder anew"):
        again.fit(table().iloc[5:], **ROLES, data_folder=ours.parent, out=tmp_path / "run", progress=False)


@pytest.mark.slow
def test_tables_are_the_report_s(fitted):
    detail = fitted.report["detail"]
    assert fitted.report().read_text().lstrip().startswith("<!DOCTYPE html>")
    benefit = fitted.benefit
    first = detail["benefit"]["metric"]
    rows = benefit[(benefit.metric == first) & (benefit.group == "")]
    assert rows.site.tolist() == ["Cleveland", "Hungary", "VA"]
    for row, own in zip(rows.to_dict("records"), detail["benefit"]["metrics"][first]["sites"], strict=True):
        assert {key: row[key] for key in own} == own
    assert set(benefit[benefit.group != ""].group) == {"female", "male"}
    assert fitted.groups.set_index("group").value.to_dict() == {
        row["group"]: row["value"] for row in detail["groups"]["rows"]
    }
    history = fitted.history
    assert len(history) == 3 and history.accepted.all() and history.weight.sum() == pytest.approx(1)
    assert fitted.plot.benefit().axes[0].get_ylim()[0] == len(rows) - 0.5
    assert fitted.plot.history()._repr_svg_().startswith("<svg") and fitted.plot.weights().axes
    with pytest.raises(UserError, match=r"plot\.benefit: expected one of .*auc"):
        fitted.plot.benefit("dice")
    assert "<table" in fitted._repr_html_() and "&lt;Federation" in fitted._repr_html_()


@pytest.mark.slow
def test_predictions_are_those_of_the_file(fitted, tmp_path):
    frame = table()
    frame.drop(columns=["ill"]).to_csv(tmp_path / "new.csv", index=False)
    risk, of_file = fitted.predict_proba(frame), fitted.predict(tmp_path / "new.csv")
    assert np.array_equal(risk, of_file[["p_0", "p_1"]].to_numpy())
    assert fitted.classes_.tolist() == [False, True]
    answers = fitted.predict(frame)
    assert answers.dtype == bool and accuracy_score(frame.ill, answers) == (frame.ill == (risk[:, 1] > 0.5)).mean()
    backwards = fitted.predict_proba(frame.iloc[::-1])
    assert np.allclose(backwards[::-1], risk, atol=1e-6), "a risk depends on the patient alone"
    with pytest.raises(UserError, match="which: expected final or best, got 'last'"):
        fitted.predict(frame, which="last")
    with pytest.raises(UserError, match="expected a DataFrame of pandas, got ndarray"):
        fitted.predict(frame.to_numpy())
    with pytest.raises(UserError, match=r"row '7': expected values, got none"):
        fitted.predict(frame.assign(**dict.fromkeys(frame, None)).where(frame.index.to_series() == 7, frame, axis=0))


@pytest.mark.slow
def test_a_number_s_point_is_decimal_and_rows_keep_their_index():
    frame = table().assign(lab=lambda t: np.where(t.index % 4, 1.101 + t.index, 2) % 900, oldpeak=1)
    ways = {"site": "hospital", "outcome": "lab", "leave_out": ["ill"], "patient": "none", "progress": False}
    made = Federation("fedavg", **ONCE, kind="regression").fit(frame[frame.lab > 1], **ways)
    new = frame[["sex", "age"]].assign(thalach=np.where(frame.index % 2, 2, 101.234))
    one, other = made.predict(new), made.predict(new.sample(frac=1, random_state=0))
    assert one.index.equals(frame.index) and np.allclose(one.predicted_lab, other.predicted_lab.sort_index())
    with pytest.raises(UserError, match="101.234 may be 101.234 or 101234"):
        made.predict(new.assign(thalach=new.thalach.map(str).replace("2.0", "2")))


@pytest.mark.slow
def test_new_hospitals_are_evaluated_and_those_that_trained_are_refused(fitted):
    new = table(("Switzerland",)).assign(hospital="harbour")
    found = fitted.evaluate(new).set_index("metric")
    risk = fitted.predict_proba(new)[:, 1]
    assert set(found.site) == {"harbour"} and found.n.unique().tolist() == [len(new)]
    assert found.loc["auc_ovo", "value"] == pytest.approx(roc_auc_score(new.ill, risk), abs=1e-12)
    assert found.loc["auc_ovo", "low"] < found.loc["auc_ovo", "value"] < found.loc["auc_ovo", "high"]
    assert (
        Federation.open(fitted.folder)
        .evaluate(new, site="hospital")
        .equals(found.reset_index()[list(fitted.evaluate(new).columns)])
    )
    with pytest.raises(UserError, match=r"VA: took part in the run's training as 'VA': \.sites has"):
        fitted.evaluate(table(("VA",)))
    with pytest.raises(UserError, match="site: expected a column among patient, hospital"):
        fitted.evaluate(new, site="clinic")
    assert set(fitted.evaluate(new.assign(hospital="../St. Mary/A")).site) == {"St. Mary-A"}
    assert set(fitted.evaluate(new.drop(columns="hospital"), name="harbour").site) == {"harbour"}
    with pytest.raises(UserError, match="VA: took part"):
        fitted.evaluate(new.assign(hospital="VA/"))


@pytest.mark.slow
@each(
    "horizons, text",
    [("90,180", "90,180"), ([180, 90], "90,180"), ((90.5,), "90.5"), (90, "90"), (np.array([90]), "90")],
)
def test_horizons_are_a_text_a_number_or_several(horizons, text, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"hospital": np.repeat(["a", "b"], 60), "age": rng.normal(60, 9, 120).round(1)})
    frame["days"], frame["dead"] = rng.integers(1, 400, 120), np.arange(120) % 3 // 2
    made = Federation("fedavg", **ONCE, solo=False)
    made.fit(frame, site="hospital", time="days", event="dead", horizons=horizons, out=tmp_path / "r", progress=False)
    assert made.config.options["horizons"] == text


@pytest.mark.slow
def test_it_is_exported_and_opened(fitted, tmp_path):
    other = Federation("fedism-plus")
    for look in (lambda: other.benefit, lambda: other.predict(table()), lambda: other.config):
        with pytest.raises(UserError, match="call fit"):
            look()
    assert (
        Federation("fedavg", "heart", lr=0.01).config
        == Federation("fedavg", "heart", settings={"train.lr": 0.01}).config
    )
    assert fitted.export(tmp_path / "model", "torchscript") == tmp_path / "model"
    assert (tmp_path / "model" / "model.ts").is_file()
    with pytest.raises(UserError, match="form: expected one of bundle"):
        fitted.export(tmp_path / "other", "pickle")
    opened = Federation.open(fitted.folder)
    assert opened.benefit.equals(fitted.benefit) and opened.classes_.tolist() == ["0", "1"]


@each(
    "change, reading, message",
    [
        ({}, {"outcome": "dead"}, "data: outcome: expected a column among patient, hospital, sex, .* got 'dead'"),
        ({}, {"site": "clinic"}, "data: site: expected a column among patient, hospital"),
        ({}, {"groups": ["race"]}, "data: groups: expected columns, .* got 'race'"),
        ({"again": lambda t: t.ill}, {}, r"data: again alone tells .*\(keep=again\); or .*\(leave_out=again\)"),
        ({"crp": lambda t: t.age.where(t.index % 9 > 0, 999)}, {}, r'crp: 999 .*\(missing="crp=999"\)'),
        ({7: 1}, {}, "data: expected columns with names of their own, in text, got '7'"),
        ({"hospital": lambda t: t.hospital.where(t.index > 0)}, {}, "hospital: expected the site of every row, 1 have"),
        ({"when": 1}, {"kind": 1}, "unexpected keyword"),
    ],
)
def test_mistakes_are_said_in_the_users_columns(change, reading, message):
    with pytest.raises((UserError, TypeError), match=message) as refused:
        frame = table()
        for name, how in change.items():
            frame[name] = how(frame) if callable(how) else how
        Federation("fedavg").fit(frame, **{**ROLES, **reading}, progress=False)
    assert "--" not in str(refused.value) and "init" not in str(refused.value)


def test_what_is_no_data_is_refused():
    for data, message in (
        (None, "fit: expected data"),
        (3, "got int"),
        ("nowhere", "'nowhere': expected a table's file"),
    ):
        with pytest.raises(UserError, match=message):
            Federation("fedavg").fit(data, progress=False)
    with pytest.raises(UserError, match="unknown method 'fedavgg'"):
        Federation("fedavgg")
    with pytest.raises(UserError, match="expected no data, since"):
        Federation("fedavg", "heart").fit(table())


@pytest.mark.slow
def test_a_table_s_file_a_folder_and_a_task_are_data_too(fitted, tmp_path):
    table().to_csv(tmp_path / "all.csv", index=False)
    of_file = Federation("fedism-plus", **ONCE).fit(tmp_path / "all.csv", **ROLES, progress=False)
    private = of_file.folder.parent
    assert of_file.model_sha256 == fitted.model_sha256 and private.stat().st_mode & 0o77 == 0
    del of_file
    assert not private.exists(), "what was read of a table goes with the object"
    again = Federation("fedism-plus", group_by="sex", **ONCE)
    again.fit(fitted.folder.parent / "data", out=tmp_path / "run", progress=False)
    assert again.model_sha256 == fitted.model_sha256
    task = Federation("fedavg", rounds=1).fit("heart", out=tmp_path / "task", progress=False)
    assert task.config.task == "heart"


@pytest.mark.slow
def test_methods_are_compared_on_a_frame(tmp_path):
    found = compare(["fedavg", "fedprox"], table(), **ROLES, **ONCE, out=tmp_path / "both", progress=False)
    assert sorted(found.table.method) == ["fedavg", "fedprox"] and (tmp_path / "both" / "compare.html").is_file()
    assert len(found.sites) == 6


NUMBER = re.compile(r"(?<![\w.])[+\N{MINUS SIGN}]?\d+\.\d{3}(?!\d)")


@pytest.mark.slow
def test_the_first_screen_holds_the_report_s_numbers_and_no_others(fitted):
    """The page's answer is report.json's, in words that need no statistics; these are behind the fold."""
    page, detail = fitted.report().read_text(), json.loads(json.dumps(fitted.report))["detail"]
    first = page.partition("<body>")[2].partition('<section aria-label="In short">')[0]
    shown = re.sub(r"<[^>]+>", " ", first)
    joined = detail["benefit"]["metrics"][detail["benefit"]["metric"]]
    rows = re.findall(r"<tr.*?</tr>", first, re.S)[1:]
    for html, row in zip(rows, joined["sites"], strict=True):
        found = re.sub(r"<[^>]+>", " ", html)
        verdict = {"cannot be told": "too few patients to tell"}.get(row["verdict"], row["verdict"])
        assert row["site"] in found and f"{row['n']:.0f} test patients" in found and verdict in found
        assert NUMBER.findall(found) == [signed(row[key]) for key in ("benefit", "low", "high")]
    values = [value for value in numbers(detail) if isinstance(value, (int, float))]
    assert set(NUMBER.findall(shown)) <= {text(value) for value in values} | {signed(value) for value in values}
    told = [row for one in detail["benefit"]["metrics"].values() for row in one["groups"] if row["verdict"]]
    lose = {(row["group"], row["site"]) for row in told if row["verdict"] == "loses"}
    every = len({(row["group"], row["site"]) for row in told})
    assert (f"{len(lose)} of {every} groups" if lose else f"None of {every} groups") in shown
    assert "<h1>Predicting ill: " in first and "Outcome: ill." in shown
    tested = sum(row["n_test"] for row in fitted.report["sites"].values())
    assert f"3 sites; {fitted.sites.n_train.sum()} training and {tested:.0f} test patients" in shown
    assert not re.search(r"ddof|Jain|FedISM|lassification of", shown)
    fold = page.partition('<div id="terms">')[2].partition("</details>")[0]
    assert "Jain's index" in fold and "ddof 0" in fold and "FedISM+" in fold and "Glossary" in fold
    assert "predicted risk of <strong>ill</strong>" in page


def numbers(found):
    """Every value inside."""
    if isinstance(found, (dict, list)):
        return [one for part in (found.values() if isinstance(found, dict) else found) for one in numbers(part)]
    return [found]
