# SPDX-License-Identifier: Apache-2.0
"""Amounts, counts, several labels at once and classes in an order: metrics, bad input, and the whole way of each."""

import json
import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sk

import outcome_tables
from cases import each
from command_line import call
from fairflare.core.errors import DataError, UserError
from fairflare.engine.setup import tasks
from fairflare.functional.intervals import resamples
from fairflare.networks import builtin
from fairflare.tasks.fingerprint import Fingerprint, fingerprint
from fairflare.tasks.kind import interval_of, resampled, value_of
from fairflare.tasks.kinds import amounts, classes, labels
from fairflare.tasks.planning import plan
from fairflare.testing import check_metric, check_task
from outcome_tables import FEATURES, GRADES, LABELS, OUTCOMES, SITES
from own_folder import picture


def named(names, table):
    return each(names, table.values(), ids=list(table))


def load(kind, root, **options):
    return tasks.load(kind, datalists=str(root), site_names=",".join(SITES), features=FEATURES, **options)


OF_TABLES = {
    "amount": ("regression", {"labels": "volume", "label": "volume"}),
    "count": ("regression", {"labels": "stay", "label": "stay", "amount": "count"}),
    "exposure": ("regression", {"labels": "stay", "label": "stay", "amount": "count", "exposure": "years"}),
    "columns": ("multilabel", {"labels": ",".join(LABELS), "label": ""}),
    "lists": ("multilabel", {"labels": ",".join(LABELS), "label": "findings", "nothing": "clear"}),
    "order": ("ordinal", {"labels": ",".join(GRADES), "label": "grade"}),
}
NEEDED = {
    "regression": ["--label", "stay", "--exposure", "years"],
    "multilabel": ["--label", ",".join(LABELS)],
    "ordinal": ["--label", "grade", "--classes", ",".join(GRADES)],
}


def made_up(kind, seed, n=60):
    """Random cases of a kind, ties among them."""
    draw = torch.Generator().manual_seed(seed)
    if kind == "amount":
        outputs, targets = torch.randn(2, n, generator=draw).round(decimals=1)
        return amounts.Amounts(mean=50.0, spread=20.0), outputs[:, None], targets, ("volume",)
    if kind == "count":
        eta, exposure = torch.randn(n, 1, generator=draw), torch.rand(n, generator=draw) + 0.5
        counts = torch.poisson(exposure * eta[:, 0].exp() * 2, generator=draw)
        return amounts.Counts(), eta, torch.stack([counts, exposure], 1), ("stay",)
    if kind == "labels":
        logits = torch.randn(n, 3, generator=draw).round(decimals=1)
        targets = (logits + torch.randn(n, 3, generator=draw) > 0).float()
        targets[torch.rand(n, 3, generator=draw) < 0.2] = math.nan
        return labels.Labels(), logits, targets, LABELS
    logits = torch.randn(n, 4, generator=draw).round(decimals=1)
    return classes.GRADES, logits, torch.randint(4, (n,), generator=draw), GRADES


def expected(kind, cases, weights):
    """Metric -> scikit-learn's value under the weights of cases."""
    if kind in ("amount", "count"):
        truth, predicted = cases.truth, cases.predicted
        found = {
            "rmse": sk.root_mean_squared_error(truth, predicted, sample_weight=weights),
            "mae": sk.mean_absolute_error(truth, predicted, sample_weight=weights),
            "r2": sk.r2_score(truth, predicted, sample_weight=weights),
            "calibration_slope": np.polyfit(predicted, truth, 1, w=np.sqrt(weights))[0],
        }
        if kind == "count":
            found["deviance"] = sk.mean_poisson_deviance(truth, predicted, sample_weight=weights)
        return found
    if kind == "labels":
        found, told = {}, ~np.isnan(cases.targets.numpy())
        for k, name in enumerate(LABELS):
            own = (cases.truth[told[:, k], k], cases.probabilities[told[:, k], k])
            found[f"auc_{name}"] = sk.roc_auc_score(*own, sample_weight=weights[told[:, k]])
            found[f"auprc_{name}"] = sk.average_precision_score(*own, sample_weight=weights[told[:, k]])
        for prefix, macro in (("auc_", "macro_auc"), ("auprc_", "macro_auprc")):
            found[macro] = np.mean([found[f"{prefix}{name}"] for name in LABELS])
        return found
    truth, predicted = cases.labels, cases.logits.argmax(1).numpy()
    return {
        "weighted_kappa": sk.cohen_kappa_score(truth, predicted, weights="quadratic", sample_weight=weights),
        "mean_class_error": sk.mean_absolute_error(truth, predicted, sample_weight=weights),
        "accuracy": sk.accuracy_score(truth, predicted, sample_weight=weights),
    }


@each("kind", ("amount", "count", "labels", "order"))
def test_metrics_equal_scikit_learns(kind):
    """On random cases, as they are and under resamples."""
    for seed in range(10):
        one, outputs, targets, classes = made_up(kind, seed)
        cases = one.cases(outputs, targets, classes)
        counts = np.concatenate([np.ones((1, len(targets))), next(resamples(len(targets), 4, seed))])
        drawn = {name: resampled(one.metric(name), cases, counts) for name in expected(kind, cases, counts[0])}
        for row, weights in enumerate(counts):
            for name, value in expected(kind, cases, weights).items():
                assert drawn[name][row] == pytest.approx(value, rel=1e-9, abs=1e-9), (name, seed, row)
        for name in drawn:
            check_metric(name, cases) if name.partition("_")[0] not in ("auc", "auprc") else None
            ends = interval_of(one.metric(name), cases, 0.95)
            assert ends is None or ends[0] <= value_of(one.metric(name), cases) <= ends[1]


def test_poisson_deviance_and_its_gradient():
    """The derivative in f is 2 (m - y), and a step that is far too long stays finite."""
    _, eta, targets, _ = made_up("count", 0)
    eta = eta.double().requires_grad_()
    amounts.poisson_deviance(eta, targets.double(), reduction="none").sum().backward()
    expected_counts = targets[:, 1] * eta.detach()[:, 0].exp()
    assert torch.allclose(eta.grad[:, 0], 2 * (expected_counts - targets[:, 0]))
    far = torch.tensor([[1e4]], requires_grad=True)
    amounts.poisson_deviance(far, torch.tensor([3.0])).backward()
    assert torch.isfinite(far.grad).all() and far.grad > 0


def test_a_label_that_is_not_said_moves_nothing():
    """Its logit has no gradient and no metric changes with it."""
    one, logits, targets, classes = made_up("labels", 1)
    logits.requires_grad_()
    labels.masked_entropy(logits, targets).backward()
    assert bool((logits.grad[torch.isnan(targets)] == 0).all()) and bool(
        (logits.grad[~torch.isnan(targets)] != 0).any()
    )
    other = torch.where(torch.isnan(targets), logits.detach() + 7, logits.detach())
    ours, theirs = (one.evaluate(one.names(classes), each, targets, classes) for each in (logits.detach(), other))
    assert ours == theirs


@named(
    "kind, outputs, targets, classes, missing",
    {
        "alike": (amounts.Amounts(), torch.randn(5, 1), torch.ones(5), ("v",), {"r2"}),
        "same prediction": (amounts.Amounts(), torch.ones(5, 1), torch.randn(5), ("v",), {"calibration_slope"}),
        "one case": (amounts.Amounts(), torch.ones(1, 1), torch.ones(1), ("v",), {"r2", "calibration_slope"}),
        "no counts": (amounts.Counts(), torch.randn(5, 1), torch.zeros(5), ("v",), {"r2"}),
        "unseen": (
            labels.Labels(),
            torch.randn(6, 2),
            torch.tensor([[0, math.nan], [1, math.nan]] * 3),
            ("a", "b"),
            {"auc_b", "auprc_b"},
        ),
        "never there": (
            labels.Labels(),
            torch.randn(6, 2),
            torch.tensor([[0.0, 0.0], [1.0, 0.0]] * 3),
            ("a", "b"),
            {"auc_b", "auprc_b"},
        ),
        "one class": (
            classes.GRADES,
            torch.tensor([[9.0, 0, 0]] * 4),
            torch.zeros(4).long(),
            "abc",
            {"weighted_kappa", "balanced_accuracy"},
        ),
    },
)
def test_what_is_not_defined_is_left_out_with_a_reason(kind, outputs, targets, classes, missing):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kind.evaluate(kind.names(classes), outputs, targets, tuple(classes))
    assert set(kind.names(classes)) - set(found) == missing
    assert all(kind.metric(name).needs for name in missing)


@named("kind, options", OF_TABLES)
def test_tasks_on_tables_keep_the_contract(kind, options, tmp_path):
    outcome_tables.write(tmp_path)
    options = {**options, "features": FEATURES, "attribute_values": "sex=female|male"}
    check_task(kind, datalists=str(tmp_path), site_names=",".join(SITES), **options)


BAD = {
    "negative count": ("count", {"stay": "-3"}, "stay: expected a whole number of at least 0, got '-3'"),
    "half a count": ("count", {"stay": "1.5"}, "stay: expected a whole number of at least 0, got '1.5'"),
    "no exposure": ("exposure", {"years": "0"}, "years: expected an exposure above 0, got '0'"),
    "empty exposure": ("exposure", {"years": ""}, "years: expected an exposure above 0, got ''"),
    "text": ("amount", {"volume": "large"}, "volume: expected a number, got 'large'"),
    "infinite": ("amount", {"volume": "inf"}, "volume: expected a finite number, got 'inf'"),
    "nan": ("amount", {"volume": "nan"}, "volume: expected a finite number, got 'nan'"),
    "uncertain": ("columns", {"edema": "-1"}, "edema: expected 1 or 0 (yes or no), or nothing, got '-1'"),
    "unknown label": ("lists", {"findings": "edema|tumour"}, "findings: expected labels among edema, effusion, mass"),
    "nothing and something": ("lists", {"findings": "clear|edema"}, "findings: expected labels among"),
    "no grade": ("order", {"grade": "worse"}, "grade: expected none, mild, moderate, severe, got 'worse'"),
}


@each("name", BAD)
def test_bad_cells_are_one_line_that_names_file_row_and_column(name, tmp_path):
    way, changed, says = BAD[name]
    kind, options = OF_TABLES[way]
    with pytest.raises(DataError) as error:
        load(kind, outcome_tables.write(tmp_path, **changed), **options).site_data("north")
    assert says in str(error.value) and "north.csv: row 1" in str(error.value) and "\n" not in str(error.value)


@named(
    "kind, options, says",
    {
        "scale": ("regression", {"outcome_scale": "3"}, "outcome_scale: expected MEAN,SPREAD"),
        "no spread": ("regression", {"outcome_scale": "3,0"}, "a spread above 0"),
        "scaled counts": ("regression", {"amount": "count", "outcome_scale": "3,1"}, "none of counts"),
        "exposure of an amount": ("regression", {"exposure": "years"}, "none unless amount=count"),
        "two amounts": ("regression", {"labels": "a,b"}, "one name"),
        "two grades": ("ordinal", {"labels": "a,b"}, "at least 3 classes"),
    },
)
def test_options_that_mean_nothing_are_refused(kind, options, says):
    with pytest.raises(UserError, match="^[^\n]*$") as error:
        tasks.load(kind, **options).kind  # noqa: B018
    assert says in str(error.value)


def test_the_scale_is_agreed_from_training_rows_alone(tmp_path):
    """Mean and spread of all sites' training rows; none of fewer rows than the minimum, and none under secure sums."""
    task = load("regression", outcome_tables.write(tmp_path), labels="volume", label="volume")
    found = {site: fingerprint(task, site, None, 10) for site in SITES}
    assert all(Fingerprint.from_json(json.loads(json.dumps(one.to_json())), "x") == one for one in found.values())
    every = torch.cat([task.site_data(site).splits["train"].targets for site in SITES]).double()
    choice = next(one for one in plan("regression", found) if one.setting == "task.outcome_scale")
    mean, spread = map(float, choice.value.split(","))
    assert mean == pytest.approx(float(every.mean())) and spread == pytest.approx(float(every.std(correction=0)))
    assert (
        fingerprint(task, "north", None, 1000).outcome is None
        and fingerprint(task, "north", None, None).outcome is None
    )
    scaled = load("regression", tmp_path, labels="volume", label="volume", outcome_scale=choice.value)
    data = scaled.site_data("north").splits["test"].targets.double()
    assert torch.allclose(data * spread + mean, task.site_data("north").splits["test"].targets.double(), atol=1e-4)
    again = fingerprint(scaled, "north", None, 10).outcome
    assert again == pytest.approx(found["north"].outcome, rel=1e-6)


def test_a_run_trains_on_the_agreed_scale_also_beside_a_preset_or_from_a_plans_file(tmp_path, capsys):
    root = outcome_tables.write(tmp_path / "data")
    own = ["--datalists", root, "--classes", "volume", "--set", "label=volume", "--set", f"features={FEATURES}"]
    code, out, error = call(capsys, "plan", root, *own[2:], "--kind", "regression", "--out", tmp_path / "plan.json")
    assert code == 0 and "outcome_scale" in out, error
    scales = []
    ways = (["--kind", "regression"], ["--task", "regression:default"], ["--kind", "regression", "--plan", "plan.json"])
    for k, way in enumerate(ways):
        way = [tmp_path / one if one == "plan.json" else one for one in way]
        run = ["run", "fedavg", "--datalists", root, *own[4:], "--set", "labels=volume", *way, "--rounds", "1"]
        code, _, error = call(capsys, *run, *(own[2:4] if "--kind" in way else ()), "--out", tmp_path / f"{k}")
        assert code == 0, error
        scales.append(re.search(r'"outcome_scale": "([^"]+)"', (tmp_path / f"{k}" / "config.json").read_text())[1])
    assert len(set(scales)) == 1


@each("outcome", [[5.0, 0.0], [math.inf, 1.0], ["a", 1.0], [1.0, 1.0, 1.0]])
def test_a_scale_from_a_malicious_site_is_refused(outcome):
    content = Fingerprint(10).to_json() | {"outcome": outcome}
    with pytest.raises(UserError, match="fingerprint of x"):
        Fingerprint.from_json(content, "x")


def test_ordered_classes_are_a_cumulative_link():
    """Probabilities are differences of sigmoids at rising cut points, whatever the steps were trained to."""
    network = builtin.build("linear", 4, 1, cuts=3)
    with torch.no_grad():
        network.steps.copy_(torch.tensor([-40.0, 2.0]))
    x = 3 * torch.randn(50, 4)
    probabilities, f = network(x).double().softmax(1), network.network(x).double()
    widths = torch.nn.functional.softplus(network.steps.double()) + builtin.NARROWEST
    cuts = network.first.double() + torch.cat((torch.zeros(1), widths.cumsum(0)))
    above = torch.cat((torch.ones(50, 1), (f - cuts).sigmoid(), torch.zeros(50, 1)), 1)
    assert torch.allclose(probabilities, above[:, :-1] - above[:, 1:], atol=1e-5)
    assert torch.isfinite(network(1e4 * x)).all()
    rebuilt = builtin.rebuilt(network.made_of["name"], network.made_of["sizes"], **network.made_of["options"])
    rebuilt.load_state_dict(network.state_dict())
    assert torch.equal(rebuilt(x), network(x))


@each("kind", NEEDED)
def test_the_whole_way(kind, tmp_path, capsys):
    """init, preflight, run, report, predict, evaluate and a bundle that says what predict says."""
    root, run = outcome_tables.write(tmp_path / "data"), tmp_path / "run"
    spent = [name for name in OUTCOMES if name not in ",".join(NEEDED[kind]).split(",")]
    flags = [*NEEDED[kind], "--leave-out", ",".join(spent), "--kind", kind]
    code, _, error = call(capsys, "init", root, "--yes", *flags)
    assert code == 0, error
    code, out, _ = call(capsys, "preflight", root)
    assert code == 0 and ("nobody says it" in out) == (kind == "multilabel")
    settings = ["--rounds", "4", "--set", "group_by=sex"]
    code, out, error = call(capsys, "run", "qffl", "--data", root, "--out", run, *settings)
    assert code == 0, error
    report = json.loads((run / "report.json").read_text())
    headline = {"regression": "deviance", "multilabel": "macro_auc", "ordinal": "weighted_kappa"}[kind]
    told, detail = {site: row["metrics"] for site, row in report["sites"].items()}, report["detail"]
    assert detail["headline"] == headline and all(headline in own for own in told.values()) and detail["groups"]["rows"]
    if kind == "multilabel":
        assert "auc_mass" in told["north"] and "auc_mass" not in told["east"]
        assert "Not defined at east: AUC, mass; AUPRC, mass" in (run / "report.html").read_text()
    code, _, error = call(capsys, "predict", run, root / "south.csv", "--out", tmp_path / "predicted")
    assert code == 0, error
    predicted = pd.read_csv(tmp_path / "predicted" / "predictions.csv")
    assert len(predicted) == 150 and list(predicted.columns)[1] in ("predicted_stay", "labels", "class")
    code, out, error = call(
        capsys, "evaluate", run, root / "south.csv", "--name", "other", "--out", tmp_path / "outside"
    )
    assert code == 0, error
    code, _, error = call(capsys, "export-model", run, "--format", "bundle", "--out", tmp_path / "bundle")
    assert code == 0, error


@each(
    "label, changed, flags",
    [
        ("volume", lambda cells: cells.where(cells.index % 10 > 0, 999), ("--kind", "regression", "--missing", "999")),
        ("findings", lambda cells: cells.str.replace("|", "; "), ("--kind", "multilabel")),
    ],
)
def test_an_outcome_is_evaluated_as_init_reads_it(label, changed, flags, tmp_path, capsys):
    root = tmp_path / "data"
    root.mkdir()
    for site in SITES:
        table = outcome_tables.patients(site)
        table.assign(**{label: changed(table[label])}).to_csv(root / f"{site}.csv", index=False)
    spent = ("--leave-out", ",".join(name for name in OUTCOMES if name != label))
    assert call(capsys, "init", root, "--yes", "--label", label, *flags, *spent)[0] == 0
    run = ("--data", root, "--rounds", "1", "--workers", "1", "--out", tmp_path / "run")
    assert call(capsys, "run", "fedavg", *run)[0] == 0
    found, known = [], tmp_path / "known.csv"
    outcome_tables.patients("south").drop(index=range(0, 150, 10) if label == "volume" else []).to_csv(
        known, index=False
    )
    for number, new in enumerate((root / "south.csv", known)):
        how = ("--name", "new", "--min-count", "5", "--out", tmp_path / f"e{number}")
        code, _, err = call(capsys, "evaluate", tmp_path / "run", new, *how)
        assert code == 0 and ("15 rows are left out" in err) == (label == "volume" and new != known), err
        one = json.loads((tmp_path / f"e{number}" / "evaluation.json").read_text())["sites"]["new"]
        found.append({"n": one["n"]} | {name: each["value"] for name, each in one["metrics"].items()})
    assert found[0] == found[1]


def test_init_asks_what_numbers_and_lists_are(tmp_path, capsys):
    """A script gets both readings with the flags; an order is never guessed."""
    root = outcome_tables.write(tmp_path)
    others = lambda *kept: ["--leave-out", ",".join(name for name in OUTCOMES if name not in kept)]  # noqa: E731
    code, _, error = call(capsys, "init", root, "--yes", "--label", "volume", *others("volume"))
    assert code and "--kind regression" in error
    code, _, error = call(capsys, "init", root, "--yes", "--label", "findings", *others("findings"))
    assert code and "--kind multilabel" in error
    code, _, error = call(capsys, "init", root, "--yes", "--label", "grade", "--kind", "ordinal", *others("grade"))
    assert code and "which no name says: --classes mild,moderate,none,severe" in error
    flags = ["--label", "findings", "--kind", "multilabel", "--classes", "edema,effusion", *others("findings")]
    code, _, error = call(capsys, "init", root, "--yes", *flags)
    assert code and "which have clear, mass too" in error


def write_pictures(root, kind):
    """Discs whose size is the amount, the label and the grade; 22 images per site."""
    from PIL import Image

    for k, site in enumerate(SITES):
        rng, found = np.random.default_rng(k), {"training": [], "validation": [], "testing": []}
        (root / site).mkdir(parents=True)
        for i in range(22):
            Image.fromarray(picture(rng, i % 2)[0]).save(root / site / f"{i}.png")
            several = {"wide": i % 2, "odd": None if i % 3 else int(rng.integers(2))}
            label = {"regression": 11.0 if i % 2 else 5.5, "multilabel": several, "ordinal": GRADES[i % 3]}[kind]
            split = "training" if i < 12 else "validation" if i < 16 else "testing"
            found[split].append({"image": f"{site}/{i}.png", "label": label})
        (root / f"{site}.json").write_text(json.dumps(found))
    return root


IMAGES = {
    "regression": {"labels": "radius", "outcome_scale": "8,3"},
    "multilabel": {"labels": "wide,odd"},
    "ordinal": {"labels": ",".join(GRADES[:3])},
}


@each("kind", IMAGES)
def test_tasks_on_images_keep_the_contract(kind, tmp_path):
    root = write_pictures(tmp_path, kind)
    options = {**IMAGES[kind], "size": 32, "channels": 1}
    check_task(f"image-{kind}", datalists=str(root), site_names=",".join(SITES), **options)


def test_a_list_with_a_label_of_another_kind_is_one_line(tmp_path):
    root = write_pictures(tmp_path, "ordinal")
    task = tasks.load("image-regression", datalists=str(root), site_names=",".join(SITES), size=32, channels=1)
    with pytest.raises(DataError, match=r"training\[0\]: label: expected a finite number, got 'none'"):
        task.site_data("north")
