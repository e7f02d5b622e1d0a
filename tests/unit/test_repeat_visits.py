# SPDX-License-Identifier: Apache-2.0
"""Several rows of a patient lie in one split, fold and part of a cross-validation, and are one term of a variance."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from command_line import succeed as call
from fairflare.core.errors import DataError, UserError
from fairflare.core.findings import SPLIT_NAMES, Finding
from fairflare.data.readers.datalist import PATIENTS, Item, attribute_columns
from fairflare.data.readers.datalist import patients_of as datalist_patients
from fairflare.data.site_config import SiteConfig
from fairflare.decision.estimands import loss_difference, mean_over_patients
from fairflare.decision.regression import Hospital
from fairflare.engine.after.base import Shape
from fairflare.engine.after.conformal import Conformal
from fairflare.engine.after.recalibrate import Recalibrate
from fairflare.engine.audit import verify
from fairflare.engine.clinical import ClinicalAtSite, View
from fairflare.engine.evaluation import Cases, over_patients
from fairflare.engine.exchanges.after import AfterAtSite
from fairflare.engine.preflight import Statement, refusal, too_small
from fairflare.engine.setup import tasks
from fairflare.functional.decision import by_patient
from fairflare.functional.intervals import effective, of_auc, of_mean, of_pairs, of_positive_mean, of_share, resamples
from fairflare.functional.survival import concordance_error
from fairflare.inference.frames import metric_frame
from fairflare.inference.monitor import patients_of
from fairflare.studies.candidates import own_log_risks
from fairflare.tasks.folds import dealt, everyone, folded, untestable
from fairflare.tasks.own.tabular import Tabular
from fairflare.tasks.preflight_files import _shared_patients

RNG = np.random.default_rng(0)


def visits(n, most=6, seed=0):
    """(N,) whose row each is, of n patients with 1 to ``most`` rows, in a random order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(np.arange(n), rng.integers(1, most + 1, n)))


def test_a_patients_rows_are_in_one_fold():
    patients = visits(80)
    labels = (RNG.random(len(patients)) < 0.4).astype(np.int64)
    place = dealt(labels, 5, 0, "a", patients)
    assert all(len(set(place[patients == one])) == 1 for one in range(80))
    each = np.bincount(place[np.unique(patients, return_index=True)[1]], minlength=5)
    assert each.max() - each.min() <= 1, "folds are of as many patients"
    alone = np.arange(len(labels))
    assert (dealt(labels, 5, 0, "a", alone) == dealt(labels, 5, 0, "a")).all()


def test_a_deal_counts_patients_of_a_class():
    labels = np.array([1] * 4 + [0] * 40)
    with pytest.raises(DataError, match="at least 2 patients of a class"):
        dealt(labels, 2, 0, "a", np.array([0, 0, 1, 1, *range(2, 42)]))
    assert untestable(labels[4:], np.arange(40) // 2) == "too few patients to tell, expected at least 30"
    assert untestable(np.array([1] * 12 + [0] * 40), np.array([0] * 12 + [*range(1, 41)])), "one patient of a class"


def test_a_variance_is_that_of_patients():
    """n / (n - 1) sum over patients of (sum of d - e)^2 / rows^2, which copies of rows leave as it was."""
    patients, values = visits(60), RNG.normal(size=(2, len(visits(60))))
    each = by_patient(values, patients)
    sums = np.stack([np.bincount(patients, row - row.mean()) for row in values])
    expected = 60 / 59 * (sums**2).sum(axis=1) / len(patients) ** 2
    assert each.mean(axis=1) == pytest.approx(values.mean(axis=1))
    assert each.var(axis=1, ddof=1) / 60 == pytest.approx(expected)
    labels, own, other = (RNG.random(60) < 0.5).astype(float), RNG.random((2, 60)), RNG.random((2, 60))
    once = mean_over_patients(loss_difference(labels, own, other), Hospital.of(np.ones((60, 1)), labels), 1.75)
    copied = [np.repeat(one, 3, axis=-1) for one in (labels, own, other)]
    whose = Hospital.of(np.ones((180, 1)), copied[0], np.repeat(np.arange(60), 3))
    again = mean_over_patients(loss_difference(*copied), whose, 1.75)
    assert again.n == once.n == 60
    assert (again.value, again.variance) == pytest.approx((once.value, once.variance))


def test_an_own_model_is_chosen_by_patients_that_it_has_not_seen():
    """Noise gets a larger penalty where visits of one patient are on one side."""
    rng = np.random.default_rng(1)
    patients = np.repeat(np.arange(60), 6)
    x = rng.normal(size=(60, 8))[patients]
    times = np.stack([rng.exponential(size=60)[patients], np.ones(len(patients))], axis=1)
    by_row, by_patients = (np.abs(own_log_risks(x, times, x, one)).max() for one in (None, patients))
    assert by_patients < by_row


@pytest.fixture
def hospitals(tmp_path):
    """A table of four hospitals whose patients have several visits, in no order; its patients have names."""
    rng = np.random.default_rng(2)
    rows = []
    for site in "abcd":
        for patient in range(50):
            age, ill = rng.normal(60, 10), rng.random() < 0.4
            rows += [
                {"hospital": site, "patient_id": f"{site}{patient}", "age": age, "x": rng.normal(ill), "died": int(ill)}
                for _ in range(rng.integers(1, 5))
            ]
    table = pd.DataFrame(rows).sample(frac=1, random_state=0).round(3)
    table.to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path


def test_patients_are_known_from_init_to_the_answer(hospitals, capsys):
    call("init", hospitals, "--site", "hospital", "--label", "died", "--yes")
    written = pd.read_csv(hospitals / "fairflare" / "a.csv", dtype=str)
    assert {"patient_id"}.isdisjoint(written.columns) and written["patient"].nunique() == 50
    assert written.groupby("patient")["split"].nunique().max() == 1
    out = hospitals / "join"
    call("join", "fedavg", "--data", hospitals, "--rounds", 1, "--folds", 2, "--repeats", 1, "--out", out)
    found = json.loads((out / "decision.json").read_text())["sites"]
    told = {site: (row["patients"], row["question_1_by"]) for site, row in found.items()}
    assert told == dict.fromkeys("abcd", (50, "outcomes"))


def test_spellings_of_a_patient_are_one_patient(tmp_path, capsys):
    """In what `init` counts and numbers, in splits by order and by row, in folds and identities, and in preflight."""
    spelled = ["P{:02d}", "p{:02d}", " P{:02d}", "P {:02d}"]
    patients = [spelled[k % 4].format(k // 4) for k in range(160)]
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"patient": patients, "x": rng.normal(size=160).round(3), "died": np.arange(160) // 4 % 2})
    (folder := tmp_path / "a").mkdir()
    table.to_csv(folder / "a.csv", index=False)
    call("init", folder, "--label", "died", "--yes", "--json")
    assert json.loads(capsys.readouterr().out)["sites"]["a"]["patients"] == 40
    assert pd.read_csv(folder / "fairflare" / "a.csv", dtype=str)["patient"].nunique() == 40
    own = table_of(tmp_path, **{**table, "label": table["died"]})
    for split_by in ("order", "row"):
        whole = everyone(Tabular(site_names="a", features="x", split_by=split_by).read(own))
        assert len({*whole.patients.tolist()}) == 40 == len({*whole.identities.tolist()})
        parts = Tabular(site_names="a", features="x", split_by=split_by).read(own).splits.values()
        assert sum(len({*part.patients.tolist()}) for part in parts) == 40
    assert datalist_patients({"patient": ["007", "7", "0", "00"]}).tolist() == [0, 0, 1, 1]
    for key in PATIENTS:
        items = [Item("a.png", 0, {key: one}) for one in ("P 7", "p7")]
        assert [one.code for one in _shared_patients(dict(zip(SPLIT_NAMES, [items[:1], [], items[1:]])))], key


def table_of(folder, **columns):
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return SiteConfig(data_root=str(folder), datalist="t.csv")


@pytest.mark.parametrize("split_by", ["order", "row"])
def test_a_split_keeps_patients_together(split_by, tmp_path):
    patients = visits(100)
    values = np.random.default_rng(3).normal(size=len(patients)).round(3)
    own = table_of(tmp_path, x=values, label=patients % 2, patient=[f"p{one}" for one in patients])
    task = Tabular(site_names="a", features="x", split_by=split_by)
    parts = task.read(own).splits
    seen = [{*part.patients.tolist()} for part in parts.values()]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 100 and min(map(len, seen)) > 5
    data = folded(task, "0/2/0")._redealt(task.read(own), "a")
    train, test = ({*data.splits[name].patients.tolist()} for name in ("train", "test"))
    assert not train & test and len(train | test) == 100 == len({*everyone(task.read(own)).patients.tolist()})


def test_a_given_split_must_keep_patients_together(tmp_path):
    given = {"x": range(40), "label": [0, 1] * 20, "split": ["train", "test"] * 20}
    with pytest.raises(DataError, match="each patient in one split, got 20 in train and test"):
        Tabular(site_names="a", features="x").read(table_of(tmp_path, **given, patient=np.arange(40) // 2))
    apart = Tabular(site_names="a", features="x").read(table_of(tmp_path, **given, patient=[""] * 40))
    assert apart.splits["train"].patients is None, "a row without a patient is another's"


@pytest.mark.parametrize("whose", ["p3", "p100", ""])
def test_a_row_more_moves_no_other_to_another_split(whose, tmp_path):
    """Whatever patient it is of: what a privacy budget covers may not follow from who has two rows."""
    task, columns = Tabular(site_names="a", features="x", split_by="row"), {"x": [], "label": [], "patient": []}
    for one in range(100):
        for name, value in zip(columns, (str(one / 7), str(one % 2), f"p{one}")):
            columns[name].append(value)
    before = task._rows("t.csv", columns)
    more = {name: [*values, value] for (name, values), value in zip(columns.items(), ("9", "1", whose))}
    after = task._rows("t.csv", more)
    assert {name: [row for row in rows if row < 100] for name, rows in after.items()} == {
        name: rows.tolist() for name, rows in before.items()
    }
    assert sum(map(len, after.values())) == 101


COPIES = np.repeat(np.arange(60), 3)
TWO = RNG.random(60) < 0.5
INTERVALS_OF = {
    "share": lambda x, whose: of_share(*effective((x < 0.4).astype(float), whose), 0.95),
    "mean": lambda x, whose: of_mean(x, 0.95, whose),
    "large mean": lambda x, whose: of_mean(np.resize(x, 30 * len(x)), 0.95, wide(whose, len(x))),
    "positive mean": lambda x, whose: of_positive_mean(x, 0.95, whose),
    "area": lambda x, whose: of_auc(x, np.repeat(TWO, len(x) // 60), 0.95, whose),
    "concordance": lambda x, whose: of_pairs(
        0.7, concordance_error(x, x > 0.2, np.sin(20 * x) - x, None, whose), 30, 0.95
    ),
    "resamples": lambda x, whose: tuple(next(resamples(len(x), 5, 0, whose)) @ x / len(x)),
}


def wide(whose, n):
    """Of 30 times as many rows, each time of other patients."""
    return None if whose is None else np.concatenate([whose + 60 * k for k in range(30)])


@pytest.mark.parametrize("what", INTERVALS_OF)
def test_copies_of_rows_make_no_interval_narrower(what):
    values = np.random.default_rng(5).random(60)
    once, of = INTERVALS_OF[what](values, None), INTERVALS_OF[what]
    assert of(values[COPIES], COPIES) == pytest.approx(once, abs=2e-3)
    assert of(values, np.arange(60)) == pytest.approx(once, abs=2e-3)
    if what != "resamples":
        by_row, ends = of(values[COPIES], None), of(values[COPIES], COPIES)
        assert by_row[1] - by_row[0] < 0.7 * (ends[1] - ends[0])


def test_intervals_by_patient_hold_and_by_row_do_not():
    """A site's accuracy and area, of patients whose one to six rows are alike: 300 sites of 40 patients."""
    found = {"share": [], "area": [], "share by row": [], "area by row": []}
    for seed in range(300):
        rng, whose = np.random.default_rng(seed), visits(40, seed=seed)
        right = (rng.random(len(whose)) < rng.beta(1.4, 0.6, 40)[whose]).astype(float)
        ill = (rng.random(40) < 0.5)[whose]
        score = rng.normal(size=40)[whose] + ill + 0.3 * rng.normal(size=len(whose))
        for name, one in (("", whose), (" by row", None)):
            shares, area = of_share(*effective(right, one), 0.95), of_auc(score, ill, 0.95, one)
            found["share" + name].append(shares[0] <= 0.7 <= shares[1])
            found["area" + name].append(area is None or area[0] <= norm.cdf(1 / np.sqrt(2.18)) <= area[1])
    held = {name: np.mean(one) for name, one in found.items()}
    assert min(held["share"], held["area"]) > 0.92 and max(held["share by row"], held["area by row"]) < 0.88, held


def test_a_sites_intervals_are_those_of_its_patients():
    """All that a task reports, and the line of calibration, from the same cases three times."""
    rng = np.random.default_rng(3)
    truth = torch.from_numpy((rng.random(200) < 0.4).astype(np.int64))
    outputs, whose = torch.from_numpy(rng.normal(size=(200, 2))) + torch.eye(2)[truth], np.repeat(np.arange(200), 3)
    task = tasks.load("heart", "full")
    copied = outputs[whose], truth[whose], torch.zeros(600)
    by_patients = over_patients(copied, task, 10, task.evaluate(*copied[:2]), whose)["intervals"]
    once = over_patients((outputs, truth, torch.zeros(200)), task, 10, task.evaluate(outputs, truth))["intervals"]
    assert by_patients.keys() == once.keys() >= {"accuracy", "balanced_accuracy", "auc"}
    for name, ends in once.items():
        assert by_patients[name] == pytest.approx(ends, abs=3e-3), name
    assert over_patients(copied, task, 201, task.evaluate(*copied[:2]), whose) == {}, "200 patients, not 600"
    site = ClinicalAtSite(View(event=1), min_count=10)
    clinical = [
        site.of_model(Cases(o, t, torch.full((len(t),), -1), p))
        for o, t, p in ((outputs, truth, None), (*copied[:2], whose))
    ]
    for name in ("brier", "calibration", "slope"):
        ends = [[one[f"{name}.{end}"] for end in ("low", "high")] for one in clinical]
        assert ends[1] == pytest.approx(ends[0], abs=0.08 if name == "slope" else 0.01), name


def test_conformal_counts_one_row_of_a_patient():
    """Exchangeable rows are those of different patients; recalibration takes all."""
    rows = 90
    cases = Cases(torch.randn(rows, 2), torch.arange(rows) % 2, torch.zeros(rows), np.repeat(np.arange(30), 3))
    shape = Shape(2, True, (), False)
    counts = [AfterAtSite(step, shape).sums(lambda split: cases)[0] for step in (Conformal(), Recalibrate())]
    assert counts == [30, 90]


def test_a_patient_that_comes_again_is_no_new_evidence(tmp_path):
    table = pd.DataFrame({"outcome": [0, 1, 0, 1], "own": [0.1, 0.2, 0.3, 0.4], "used": [0.5, 0.6, 0.7, 0.8]})
    table.assign(patient=["a", "b", "a", ""]).to_csv(tmp_path / "t.csv", index=False)
    assert patients_of(tmp_path / "t.csv", ["outcome", "own", "used"]) == [(0, 0.1, 0.5), (1, 0.2, 0.6), (1, 0.4, 0.8)]


def test_a_datalists_patients_are_known(tmp_path):
    entries = [
        {"image": f"{k}.png", "label": k % 2, **({"patient_id": f"p{k // 2}"} if k < 8 else {})} for k in range(10)
    ]
    columns = attribute_columns(
        [Item(one["image"], one["label"], {"patient_id": one.get("patient_id", "")}) for one in entries], PATIENTS
    )
    assert datalist_patients(columns).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    assert datalist_patients({"patient": ["a", "b", ""]}) is None is datalist_patients({})


@pytest.fixture
def with_tiny(tmp_path):
    """Four hospitals of 50 patients, one of six, and one whose six rows are one patient's."""
    rng, rows = np.random.default_rng(4), []
    for site, n in (*zip("abcd", [50] * 4), ("six", 6), ("one", 6)):
        for k in range(n):
            ill = int(rng.random() < 0.4)
            who = site if site == "one" else f"{site}{k}"
            rows.append(
                {"hospital": site, "patient_id": who, "age": rng.normal(60, 10), "x": rng.normal(ill), "y": ill}
            )
    pd.DataFrame(rows).round(3).to_csv(tmp_path / "t.csv", index=False)
    call("init", tmp_path, "--site", "hospital", "--label", "y", "--yes")
    return tmp_path


def test_a_tiny_hospital_stops_nobody_and_is_told_nothing(with_tiny):
    assert not (with_tiny / "fairflare" / "one.csv").exists() and (with_tiny / "fairflare" / "six.csv").is_file()
    join = ("join", "glm", "--data", with_tiny, "--rounds", 2, "--folds", 2, "--repeats", 1, "--out", with_tiny / "j")
    call(*join)
    found = json.loads((with_tiny / "j" / "decision.json").read_text())
    assert sorted(found["methods"]["glm"]["sites"]) == [*"abcd"]
    assert found["sites"]["six"]["sentence"].startswith("too few patients to tell")
    call("run", "glm", "--data", with_tiny, "--rounds", 2, "--no-solo", "--out", with_tiny / "g")
    told = next(one for one in verify(with_tiny / "g" / "audit.jsonl") if one["event"] == "evaluation")
    assert {*told["sites"]} == {*"abcd"} and told["rejected"]["six"]["code"] == "preflight"
    call("after", with_tiny / "g", "--step", "recalibrate")


@pytest.mark.parametrize(
    "codes, left",
    [
        ({"t": ["few_examples"]}, ["t"]),
        ({"t": ["few_examples", "empty_split"], "a": ["few_examples"]}, []),
        ({"t": ["few_examples", "unreadable"]}, []),
        ({"t": ["one_class"]}, ["t"]),
        ({"t": ["large one_class"]}, []),
    ],
)
def test_who_is_left_out_by_rule(codes, left):
    """Whose every error is that of a small hospital, where two others and most remain."""
    names = ("a", "b", "c", "t") if len(codes) == 1 else ("a", "b", "t")
    findings = {
        site: tuple(
            Finding("error", code.removeprefix("large "), "train", 5000 if code.startswith("large") else 3, "text")
            for code in codes.get(site, ())
        )
        for site in names
    }
    statements = {site: Statement(None if one else 60, one, {}) for site, one in findings.items()}
    small = too_small(statements)
    assert [*small] == left and bool(refusal(statements, [], small)) == (not left)


def test_a_frames_intervals_are_of_patients():
    rng = np.random.default_rng(6)
    y, whose = np.repeat(rng.random(80) < 0.5, 3).astype(int), np.repeat(np.arange(80), 3)
    risk = np.repeat(rng.random(80), 3)
    frames = [metric_frame(y, risk, patients=one, metrics=["auc", "accuracy"]) for one in (whose, None)]
    width = [(one["high"] - one["low"]).to_numpy() for one in frames]
    assert (width[0] > 1.5 * width[1]).all() and (frames[0]["value"] == frames[1]["value"]).all()
    with pytest.raises(UserError, match="patients: expected 240 values"):
        metric_frame(y, risk, patients=whose[:9])
