# SPDX-License-Identifier: Apache-2.0
"""The study's pages say what the intervals say: comparing sentences are marked, and a mark is a line of the files."""

import csv
import dataclasses
import functools
import math
import re
import sys

import numpy as np
import pytest
from printed_commands import ROOT
from scipy import stats
from sklearn.metrics import accuracy_score, brier_score_loss, roc_auc_score

FOLDER = ROOT / "docs" / "results" / "study"
sys.path.insert(0, str(FOLDER))
import ablations  # noqa: E402
import answers  # noqa: E402
import check  # noqa: E402
import kept  # noqa: E402
import plan  # noqa: E402
import run  # noqa: E402
import tables  # noqa: E402

from cases import each  # noqa: E402
from fairflare.engine.setup import tasks  # noqa: E402
from fairflare.report.values import signed  # noqa: E402
from fairflare.studies.labels import folder_name  # noqa: E402
from fairflare.studies.runs import run_once  # noqa: E402
from fairflare.studies.study import arms  # noqa: E402

PAGES = {path.relative_to(tables.ROOT).as_posix(): path.read_text(encoding="utf-8") for path in tables.PAGES}


def test_every_sentence_is_what_the_files_say():
    marks = check.claims(check.CLAIMS.read_text(encoding="utf-8"))
    assert set(marks) <= set(PAGES)
    assert {name: found for name, page in PAGES.items() if (found := check.problems(page, marks.get(name, {})))} == {}
    assert all(len(marks[name]) >= 10 for name in ("STUDY.md", "study/clinicians.md", "study/training.md"))


def test_the_tables_are_those_of_the_files(tmp_path):
    again = tmp_path / kept.SHOWN_TABLES
    kept.write_shown(again, "\n".join(tables.shown()))
    assert (FOLDER / again.name).read_bytes() == again.read_bytes()
    text = "\n" + kept.shown(FOLDER)
    assert all(f"\n## {study.key}: {kind}\n" in text for study in plan.STUDIES for kind in ("endpoints", "joined"))


def test_the_first_page_of_the_study_is_one_and_all_pages_are_reached_from_it():
    first, _, rest = PAGES["STUDY.md"].partition("\n## ")
    assert len(first.split()) <= 400
    assert [name for name in PAGES if name != "STUDY.md" and f"]({name})" not in first] == []
    assert re.findall(r"^## (.*)$", "## " + rest, flags=re.M)[-3:] == ["Drift", "Survival", "Joining"]


@functools.cache
def kept_values():
    return tables.read(tables.VALUES)


def row(**wanted):
    return next(r for r in tables.differences() if all(r[key] == value for key, value in wanted.items()))


def mark(found, said=None):
    words = [found[key] for key in ("task", "arm", "versus", "over", "metric")]
    return f"<!-- claim: {' | '.join([*words, said or found['verdict']])} -->"


def problems(page):
    """Of a page with a sentence's mark behind it."""
    parts = re.findall(r"(.+?) *<!-- (.+?) -->", page)
    lines = [line for text, claimed in parts for line in (re.split(r"(?<=[.!?])\s", text)[-1], f"    {claimed}")]
    return check.problems(re.sub(r" *<!-- .+? -->", "", page), check.claims("\n".join(["= x", *lines]))["x"])


def test_a_sentence_that_the_intervals_do_not_carry_is_found():
    told, open_one = row(verdict="better"), row(verdict="cannot be told")
    value = f"{float(told['mean']):.3f}"
    assert problems(f"It is better, {value}. {mark(told)}") == []
    assert problems("It is better.") == ["a comparing sentence without a mark: It is better."]
    (problem,) = problems(f"It is worse. {mark(told, 'worse')}")
    assert "the files say 'better'" in problem
    (problem,) = problems(f"It is better. {mark(open_one, 'better')}")
    assert "the files say 'cannot be told'" in problem
    (problem,) = problems(f"It is better by 7.777. {mark(told)}")
    assert "7.777" in problem and "of no marked line" in problem
    (problem,) = problems(f"It is better. {mark(told).replace(told['arm'], 'nosuch')}")
    assert "no such line" in problem
    (problem,) = problems(f"It is better. {mark(told)[:-4].rpartition('|')[0]} -->")
    assert "expected TASK" in problem
    methods = {arm.key for arm in plan.METHODS}
    kept = {key: told[key] for key in ("task", "versus", "over", "metric")}
    all_of_it = [r for r in tables.differences() if all(r[key] == kept[key] for key in kept) and r["arm"] in methods]
    names = ", ".join(sorted(r["arm"] for r in all_of_it if r["verdict"] == "better")) or "none"
    about = " | ".join(kept.values())
    assert problems(f"These are better. <!-- only: {about} | better | {names} -->") == []
    assert "the files say" in problems(f"These are better. <!-- only: {about} | better | nosuch -->")[0]
    assert problems("It has 3 arms. It is better. <!-- definition -->") == []
    assert "of no marked line" in problems("It has 0.777.")[0]
    (problem,) = problems("FedAvg is better. <!-- definition -->")
    assert "names ['FedAvg']" in problem
    (problem,) = problems("Half of it, .123, gains. <!-- definition -->")
    assert ".123" in problem


def test_a_count_is_the_one_of_the_files_and_in_the_sentence():
    found = tables.read(tables.JOINING)[0]
    about = f"{found['task']} | {found['arm']} | {found['metric']} | loses"
    number = int(found["loses"])
    assert problems(f"There {number} lose. <!-- count: {about}={number} -->") == []
    assert "the files say" in problems(f"There {number} lose. <!-- count: {about}={number + 1} -->")[0]
    assert "is not in the sentence" in problems(f"Some lose. <!-- count: {about}={number} -->")[0]
    assert "no such line" in problems(f"There {number} lose. <!-- count: x | y | z | loses={number} -->")[0]
    same = [r for r in tables.read(tables.JOINING) if (r["task"], r["metric"]) == (found["task"], found["metric"])]
    names = ", ".join(r["arm"] for r in same if r["loses"] == "0" and r["arm"] != "trivial") or "none"
    about = f"{found['task']} | {found['metric']} | loses"
    assert problems(f"These do not lose. <!-- without: {about} | {names} -->") == []
    assert "the files say" in problems(f"These do not lose. <!-- without: {about} | nosuch -->")[0]
    assert "no such lines" in problems("These do not lose. <!-- without: x | y | z | none -->")[0]


def test_verdicts_are_those_of_all_intervals():
    for r in tables.differences():
        ends = [r[key] for key in ("low", "high", "patients_low", "patients_high")]
        if all(ends):
            mean, low, high, again_low, again_high = map(float, [r["mean"], *ends])
            assert low <= mean <= high and again_low <= again_high
            above, beneath = low > 0 and again_low > 0, high < 0 and again_high < 0
            if r["over"].startswith("worst") or r["metric"] in ("calibration", "auc"):
                above, beneath = above and 2 * mean > again_high, beneath and 2 * mean < again_low
            higher = tables.METRICS[r["metric"]]
            said = "better" if (above if higher else beneath) else "worse" if above or beneath else "cannot be told"
            at_zero = (low, high, again_low, again_high, 2 * mean - again_high, 2 * mean - again_low)
            assert r["verdict"] == said or min(map(abs, at_zero)) < 2e-6, r  # the files have six decimals
            assert r["together"] in ("", "cannot be told", r["verdict"])
            assert bool(r["together"]) == (r["versus"] == "solo" and r["over"] not in tables.OVERALL)


def test_a_difference_computed_from_the_files_is_the_one_of_the_resamples(tmp_path, monkeypatch):
    """What ``compared`` says of scores is what ``differences`` makes of the files that were written of them."""
    study, rng = next(study for study in plan.STUDIES if study.key == "support2"), np.random.default_rng(4)
    sites, arms_of = ["site-1", "site-2", "site-3"], ("solo", "fedavg", "ditto")

    def site(shift):
        brier, auc, signed = (rng.normal(middle + shift, 0.01, 21) for middle in (0.2, 0.7, 0.05))
        scores = {"accuracy": 1 - brier, "auc": auc, "brier": brier, "calibration": np.abs(signed)}
        return {"n": 40, "positives": 9, "signed": float(signed[0]), **scores}

    scored = {
        arm: {seed: {name: site(0.02 * k) for name in sites} for seed in plan.SEEDS} for k, arm in enumerate(arms_of)
    }
    files = {name: tmp_path / f"{name}.csv" for name in ("VALUES", "BOOTSTRAP", "SPLITS", "JOINING")}
    for name, path in files.items():
        monkeypatch.setattr(tables, name, path)
    monkeypatch.setattr(tables, "SHAPES", {files["VALUES"]: tables.OF_VALUES, files["BOOTSTRAP"]: tables.OF_BOOTSTRAP})
    monkeypatch.setattr(tables, "LONG", dict.fromkeys(tables.SHAPES, tables.of_arms))
    rows, _ = tables.compared(study, scored, tables.widening(120 / 400))
    tables.replace(tables.VALUES, study.key, tables.values(study, scored))
    tables.replace(tables.BOOTSTRAP, study.key, tables.not_computed(rows))
    tables.replace(tables.SPLITS, study.key, [["task", "test", "train"], [study.key, 120, 400]])
    found = tables.differences_of(study, tables.of_arms(tables.VALUES), tables.of_arms(tables.BOOTSTRAP))
    expected = {tuple(row[:5]): dict(zip(tables.HEADER, row)) for row in rows[1:]}
    assert len(found) == len(expected) > 50
    for one in found:
        wanted = expected[tuple(one[key] for key in tables.HEADER[:5])]
        for name in tables.HEADER[5:15]:
            size = max(1.0, abs(float(wanted[name] or 0)))
            assert float(one[name] or "nan") == pytest.approx(
                float(wanted[name] or "nan"), abs=(1e-3 if name == "g" else 2e-6) * size, nan_ok=True
            ), name
        assert (one["verdict"], one["together"]) == (wanted["verdict"], wanted["together"])


def of_site(task, arm, site, metric):
    rows = [r for r in kept_values() if (r["task"], r["arm"], r["site"]) == (task, arm, site)]
    values = np.array([float(r[metric]) for r in sorted(rows, key=lambda r: int(r["seed"]))])
    return np.abs(values) if metric == "calibration" else values


def wider(task):
    """Of Student's interval: the shares of the splits, where each seed deals the same patients out anew."""
    (study,) = [study for study in plan.STUDIES if study.key == task]
    if study.natural or not study.known_again:
        return 1.0
    of_task = tasks.load(*study.task.split(":"))
    test, val = of_task.test_fraction, of_task.val_fraction
    return math.sqrt(1 + 8 * test / ((1 - test) * (1 - val)))


@each("task", [study.key for study in plan.STUDIES if study.key != "digits"])
def test_a_difference_follows_from_the_values_of_the_seeds(task):
    """Student's t by SciPy, from values.csv, of one site and of the worst one."""
    arm = "fedavg"
    sites = list(dict.fromkeys(r["site"] for r in kept_values() if r["task"] == task))
    for over in (sites[0], "worst"):
        for metric in ("brier", "calibration"):
            found = row(task=task, arm=arm, versus="solo", over=over, metric=metric)
            each = {
                name: np.stack([of_site(task, name, site, metric) for site in (sites if over == "worst" else [over])])
                for name in (arm, "solo")
            }
            differences = each[arm].max(0) - each["solo"].max(0)
            low, high = stats.t.interval(0.95, len(differences) - 1, differences.mean(), stats.sem(differences))
            mean, factor = differences.mean(), wider(task)
            expected = (mean, mean - factor * (mean - low), mean + factor * (high - mean))
            assert [float(found[key]) for key in ("mean", "low", "high")] == pytest.approx(
                expected, rel=0.002, abs=2e-6
            )


def test_what_readme_says_of_the_study_is_what_the_files_say():
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {(r["task"], r["arm"], r["metric"]): r for r in tables.read(tables.JOINING)}
    plain, mended = (rows["ist", arm, "brier"] for arm in ("fedavg", "fedavg+intercept-train"))
    assert f"{plain['loses']} of {plain['of']} countries are shown to lose" in said
    assert f"and {mended['loses']} with an intercept" in said
    arms_of, tasks_of = ({r[key] for r in tables.differences()} for key in ("arm", "task"))
    assert f"{len(arms_of)} arms, {len(tasks_of)} tasks" in said
    heart = [r for key, r in rows.items() if key[0] == "heart-full" and key[2] == "accuracy" and key[1] != "trivial"]
    assert {r["gains_together"] for r in heart} == {"0"}
    wanted = ("heart-full", "fedavg", "solo", "accuracy", "worse")
    keys = ("task", "arm", "versus", "metric", "verdict")
    losing = [r["over"] for r in tables.differences() if tuple(r[key] for key in keys) == wanted]
    assert [over for over in losing if over not in tables.OVERALL] == ["Switzerland"]


def test_joining_counts_the_verdicts():
    of_arm = {}
    for r in tables.differences():
        if r["versus"] == "solo":
            of_arm.setdefault((r["task"], r["arm"], r["metric"]), []).append(r)
    for found in tables.read(tables.JOINING):
        own = of_arm[found["task"], found["arm"], found["metric"]]
        said = [r["verdict"] for r in own if r["over"] not in tables.OVERALL]
        assert [int(found[key]) for key in ("gains", "cannot_be_told", "loses", "of")] == [
            said.count("better"), said.count("cannot be told"), said.count("worse"), len(said)
        ]  # fmt: skip
        together = [r["together"] for r in own if r["over"] not in tables.OVERALL]
        assert [int(found["gains_together"]), int(found["loses_together"])] == [
            together.count("better"), together.count("worse")
        ]  # fmt: skip


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(3)
    z, y = np.round(rng.normal(size=60), 1), rng.integers(0, 2, 60)
    counts = np.random.default_rng(7).multinomial(60, np.full(60, 1 / 60), size=20)
    found = tables.scores(z, y, tables.with_all(counts))
    for k, rows in (
        (0, np.arange(60)),
        (1, np.repeat(np.arange(60), counts[0])),
        (9, np.repeat(np.arange(60), counts[8])),
    ):
        p = 1 / (1 + np.exp(-z[rows]))
        assert found["auc"][k] == pytest.approx(roc_auc_score(y[rows], z[rows]))
        assert found["brier"][k] == pytest.approx(brier_score_loss(y[rows], p))
        assert found["accuracy"][k] == pytest.approx(((z[rows] > 0) == y[rows]).mean())
        assert found["calibration"][k] == pytest.approx(abs((p - y[rows]).mean()))
    one = tables.scores(z, np.ones(60, dtype=int), tables.with_all(counts))
    assert np.isnan(one["auc"]).all() and np.isfinite(one["brier"]).all()
    assert np.isnan(tables.scores(z, y, tables.with_all(counts), ranked=False)["auc"]).all()


def test_a_patient_whom_two_seeds_test_on_is_drawn_as_often_for_both():
    study = next(study for study in plan.STUDIES if study.key == "covid")
    rows = {0: np.array([5, 2, 9, 40]), 1: np.array([9, 7, 5])}
    predicted = {seed: {"a/test/y": np.zeros(len(ids)), "a/test/id": ids} for seed, ids in rows.items()}
    counts = tables.drawn(study, "a", predicted)
    assert counts[0].shape == (1 + tables.RESAMPLES, 4) and (counts[0][0] == 1).all()
    assert (counts[0][:, 0] == counts[1][:, 2]).all() and (counts[0][:, 2] == counts[1][:, 0]).all()
    assert (counts[0][:, 1] != counts[1][:, 1]).any()
    assert counts[0][1:].mean() == pytest.approx(1, abs=0.05)


def test_the_floor_is_what_chance_makes_of_right_risks():
    z, rng = np.full(400, 0.4), np.random.default_rng(1)
    p = answers.risk(z)[0]
    assert tables.chance(z, rng).mean() == pytest.approx(math.sqrt(2 / math.pi * p * (1 - p) / 400), rel=0.15)


def test_what_is_not_linear_needs_the_turned_interval_too():
    rng = np.random.default_rng(2)
    base = {seed: np.r_[0.70, rng.normal(0.66, 0.02, 1000)] for seed in range(8)}
    better = {seed: np.r_[0.72 + 0.001 * seed, base[seed][1:] + 0.05 + rng.normal(0, 0.001, 1000)] for seed in base}
    assert tables.Judge("accuracy", "mean", True, 1.0)(better, base, None)["verdict"] == "better"
    assert tables.Judge("accuracy", "worst", True, 1.0)(better, base, None)["verdict"] == "cannot be told"
    assert tables.Judge("accuracy", "mean", True, 30.0)(better, base, None)["verdict"] == "cannot be told"


def test_scores_of_more_than_two_classes_are_those_of_their_definition():
    rng = np.random.default_rng(5)
    z, y = rng.normal(size=(50, 4)), rng.integers(0, 4, 50)
    found = tables.scores(z, y, tables.with_all(np.ones((1, 50))))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert found["accuracy"][0] == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert found["brier"][0] == pytest.approx(brier_score_loss(y, p, labels=range(4), scale_by_half=False))
    assert found["calibration"][0] == pytest.approx(abs(p.max(1).mean() - accuracy_score(y, p.argmax(1))))
    assert np.isnan(found["auc"]).all()


def test_the_trivial_answer_is_the_training_share():
    (one,) = set(answers.risk(answers.of_prior(np.array([29, 9]), 5)))
    assert one == pytest.approx(10 / 40)
    assert answers.shares(answers.of_prior(np.array([0, 2, 5]), 2)) == pytest.approx(np.array([[0.1, 0.3, 0.6]] * 2))


@each("study", plan.STUDIES, ids=lambda study: study.key)
def test_the_plan_can_be_run(study, tmp_path, monkeypatch):
    """Every candidate is accepted; all arms have as many; the task names a primary endpoint; seeds are apart."""
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    assert not set(plan.SEEDS) & set(plan.TUNING[study.natural]) and len(plan.SEEDS) >= 8
    name, _, preset = study.task.partition(":")
    task = tasks.load(name, preset)
    assert task.primary and study.rounds == task.presets[preset].training.rounds
    assert study.lr == task.presets[preset].training.lr and study.natural == (task.drawn() == ())
    assert study.batch == task.presets[preset].training.batch_size
    for arm in study.arms():
        if arm.of:
            assert arm.of in {other.key for other in study.arms()}
        if arm.of or arm.trivial:
            continue
        labels = plan.candidates(arm, study, (1.0, 0.3) if arm.settings else plan.STEPS)
        assert len(set(labels)) == (4 if study.tuned and not arm.like else 1)
        arms(labels, study.task, [0], values={"group_by": study.group_by, **study.settings})


def test_the_rates_of_an_arm_with_a_setting_are_those_that_served_plain_averaging_best():
    study = next(study for study in plan.STUDIES if study.key == "support2")
    fedavg, ditto, batch = (next(arm for arm in study.arms() if arm.key == key) for key in ("fedavg", "ditto", "batch"))
    labels = plan.candidates(fedavg, study)
    assert run.with_further(dict(zip(labels, (4.0, 1.0, 2.0, 3.0))), labels) == plan.STEPS
    losses = dict(zip(labels, (4.0, 3.0, 2.0, 1.0)))
    assert run.with_further(losses, labels) == (*plan.STEPS, 10.0)
    rates = run.with_further(losses, labels)
    labels = plan.candidates(fedavg, study, rates)
    losses[labels[4]] = 1.5
    assert run.ranked(losses, labels, rates)[:2] == (3.0, 10.0)
    assert plan.candidates(ditto, study, (3.0, 10.0)) == [
        f"ditto:train.lr={rate},lam={lam}" for rate in ("0.009", "0.03") for lam in ("0.1", "1")
    ]
    assert plan.candidates(batch, study, (1.0,)) == [
        f"fedavg:train.lr=0.003,train.batch_size={size}" for size in (16, 256)
    ]


@pytest.mark.slow  # a run of one round
def test_a_run_is_kept_as_what_its_model_says_of_each_patient(tmp_path):
    """Rows of the table, outputs and classes; an intercept moves all outputs of a site alike; it is made once."""
    study = next(study for study in plan.STUDIES if study.key == "support2")
    ((name, config),) = run.configured(["fedavg"], study, [0], 1)
    (found,) = run.together([(name, config)], tmp_path, 1)
    task = tasks.load("support2", "default").__class__(**config.options)
    for site in task.sites():
        rows = task.rows(site)
        assert (found[f"{site}/test/id"] == rows["test"]).all() and found[f"{site}/train/n"] == len(rows["train"])
        assert (found[f"{site}/test/y"] == task.table().labels[rows["test"]]).all()
    moved = run.recalibrated(tmp_path / name, config, {"slope": "false", "split": "train"})
    for site in task.sites():
        by = moved[f"{site}/test/z"] - found[f"{site}/test/z"]
        assert np.ptp(by) < 1e-6 and abs(by[0]) > 1e-3
    again = run.with_prior(config, found, alone=False)
    counts = np.bincount(task.table().labels[task.rows("site-1")["train"]]) + 1
    expected = found["site-1/test/z"] + np.log(counts[1] / counts[0])
    assert again["site-1/test/z"] == pytest.approx(expected)
    when = (tmp_path / name / "audit.jsonl").stat().st_mtime_ns
    run.together([(name, config)], tmp_path, 1)
    assert (tmp_path / name / "audit.jsonl").stat().st_mtime_ns == when


def test_what_was_chosen_is_the_best_on_validation_patients():
    with (FOLDER / "chosen.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for key in {(r["task"], r["arm"]) for r in rows}:
        own = [r for r in rows if (r["task"], r["arm"]) == key]
        (best,) = [r for r in own if r["chosen"] == "True"]
        scores = [float(r["validation_brier"]) for r in own]
        assert len(own) == 1 or float(best["validation_brier"]) == min(scores) or math.isnan(scores[0])


def test_the_ablations_of_fedism_plus_are_accepted_and_equal_in_objective():
    for preset in ablations.PRESETS:
        found = arms(list(ablations.ARMS), f"ich-phantom:{preset}", [0, 1])
        assert len(found) == 2 * len(ablations.ARMS)
        assert {config.training.logit_tau for _, config in found} == {1.0}
        assert {config.options["alpha"] for _, config in found} == {1e6 if preset == "equal" else 1.0}
    words = ablations.command("equal", "0,1", tables.HERE.parent / "fedism-equal")
    assert words[-4:] == ["--set", "robust=off", "--tables", "docs/results/fedism-equal"]


def test_the_matched_ablations_differ_in_rounds_alone_and_ask_for_differences_of_their_arms():
    for preset in ablations.PRESETS:
        found = [config for _, config in arms(list(ablations.MATCHED), f"ich-phantom:{preset}", [0])]
        assert [config.training.rounds for config in found] == [133, 40, 40]
        assert len({dataclasses.replace(config.training, rounds=1) for config in found}) == 1
    runs = [
        [{end: 0.1 * k + more * (1 + 0.1 * k) for end in ablations.ENDPOINTS} for k in (1, 2, 4)]
        for more in (0, 0, 0.1)
    ]
    comparison = {"methods": [{"runs": one} for one in runs]}
    rows = ablations.parts(comparison, ablations.PLANS["matched"])
    assert rows[0][:4] == ["corrupted", "both, at equal compute", "fedism-plus", ablations.LONGER]
    assert len(rows) == 2 * len(ablations.ENDPOINTS)
    assert [row[-1] for row in rows[:2]] == ["better", "cannot be told"]
    assert [row[-1] for row in rows if row[0] == "std"] == ["worse", "cannot be told"]
    low, high = stats.t.interval(0.95, 2, np.mean([0.11, 0.12, 0.14]), stats.sem([0.11, 0.12, 0.14]))
    assert [float(value) for value in rows[0][5:7]] == pytest.approx([low, high], abs=1e-6)


def test_the_long_ablations_give_all_arms_as_many_rounds():
    asked = ablations.PLANS["long"]
    for preset in ablations.PRESETS:
        found = [config for _, config in arms(list(asked.arms), f"ich-phantom:{preset}", [0])]
        assert [config.training.rounds for config in found] == [133, 133, 133]
        assert len({config.training for config in found}) == 1
    assert {arm for pair in asked.parts.values() for arm in pair} == set(asked.arms)


@pytest.mark.parametrize("suffix", ["", "-matched"])
@pytest.mark.parametrize("preset", ablations.PRESETS)
def test_the_parts_follow_from_the_runs_of_the_comparison(preset, suffix):
    (asked,) = [one for one in ablations.PLANS.values() if one.suffix == suffix]
    folder = ROOT / "docs" / "results" / f"fedism-{preset}{suffix}"
    rows = ablations.parts(kept.comparison(folder), asked)
    with (folder / "parts.csv").open(newline="", encoding="utf-8") as file:
        assert [tuple(map(str, row)) for row in rows] == [tuple(row) for row in csv.reader(file)][1:]


CARD = ROOT / "docs" / "results" / "fedism.md"
POINTS = re.compile(r"[+\u2212]\d+\.\d \[[+\u2212]\d+\.\d, [+\u2212]\d+\.\d\]")
DIFFERENCE = re.compile(r"[+\u2212]\d\.\d{3} \[[+\u2212]\d\.\d{3}, [+\u2212]\d\.\d{3}\]")
FIGURE = re.compile(r"\d\.\d{3}")


def measured(preset):
    """What the page says of a preset's ablations, in one line."""
    found = CARD.read_text(encoding="utf-8").split("## Measured")[1].split(f"On `ich-phantom:{preset}`")[1]
    return " ".join(re.split(r"<!--|On `ich-phantom", found)[0].split())


@pytest.mark.parametrize("preset", ablations.PRESETS)
def test_what_the_card_says_of_the_ablations_is_what_the_files_say(preset):
    folder, said = ROOT / "docs" / "results" / f"fedism-{preset}", measured(preset)
    rows = [row for path in folder.parent.glob(f"{folder.name}*/parts.csv") for row in csv.DictReader(path.open())]
    points = [[signed(float(row[key]) * 100, 1) for key in ("mean", "low", "high")] for row in rows]
    known = {f"{mean} [{low}, {high}]" for mean, low, high in points}
    quoted = POINTS.findall(said)
    assert len(quoted) >= 8 and [one for one in quoted if one not in known] == []
    tables_of_it = "".join(kept.shown(path.parent) for path in folder.parent.glob(f"{folder.name}*/shown.csv"))
    others = DIFFERENCE.findall(said) + FIGURE.findall(said)
    assert others and [one for one in others if one not in tables_of_it] == []


@pytest.mark.parametrize("preset", ablations.PRESETS)
def test_what_the_card_says_of_the_weights_is_what_the_log_says(preset):
    """Of the last round: mean and range over seeds, in per cent."""
    path, said = ROOT / "docs" / "results" / f"fedism-{preset}" / "shares.csv", measured(preset)
    rows = [row for row in csv.DictReader(path.open()) if row["round"] == "40"]
    for arm in ("fedism-plus:trainer=sgd", "fedism-plus", "fedism-plus:state=L"):
        weights = [float(row[arm]) for row in rows]
        assert len(weights) == len(plan.SEEDS)
        mean, low, high = (f"{100 * value:.0f}" for value in (np.mean(weights), min(weights), max(weights)))
        assert re.search(rf"{mean} % .{{0,60}}\({low} to {high}", said)


@pytest.mark.slow  # three runs of two rounds
def test_the_ablations_run_at_toy_size(tmp_path, monkeypatch):
    """Weights of every round, and where the radius is 0 the same for all sites."""
    tiny = {"n_sites": 4, "corrupted": 1, "images": 160, "test_images": 40, "site_test_images": 20, "size": 32}
    labels = ["fedavg", "fedism-plus:rho_max=0", "fedism-plus:probe_loss=logit_adjusted"]
    values = {f"task.{key}": value for key, value in tiny.items()}
    for name, config in arms(labels, "ich-phantom:equal", [0], rounds=2, values=values):
        run_once(config, tmp_path / name, workers=1)
    found = {}
    for label in labels:
        lines = ablations.rounds(tmp_path / f"{folder_name(label)}-seed0")
        found[label] = [line["weights"] for line in lines]
        assert [line["round"] for line in lines] == [1, 2]
    assert all(w == pytest.approx(0.25) for line in found["fedism-plus:rho_max=0"] for w in line.values())
    assert found["fedism-plus:probe_loss=logit_adjusted"][0] != found["fedism-plus:rho_max=0"][0]
    monkeypatch.setattr(ablations, "ARMS", dict.fromkeys(labels, ""))
    rows = ablations.shares(tmp_path, "equal", "0")
    assert [row[:2] for row in rows] == [[0, 1], [0, 2]] and all(len(row) == 3 + len(labels) for row in rows)
    assert all(0 <= float(figure) <= 1 for row in rows for figure in row[2:])
