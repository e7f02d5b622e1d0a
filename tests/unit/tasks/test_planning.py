# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of sites' data, and the defaults that follow from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cases import each
from fairflare.cli.main import main
from fairflare.cli.preflight import plan_of_files, write_fingerprint
from fairflare.core.errors import UserError
from fairflare.core.types import Training
from fairflare.data.table_fingerprint import TableFingerprint
from fairflare.data.tensors import Split
from fairflare.engine.setup import plans, tasks
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.studies.run_file import plan_values
from fairflare.tasks.fingerprint import Fingerprint, fingerprint, network_gain
from fairflare.tasks.planning import cautions, plan


def folder_of(root: Path, sizes: dict[str, int], edge: int = 40, colour: bool = False) -> Path:
    """Datalists of noisy images; site -> training images."""
    rng = np.random.default_rng(0)
    for site, n in sizes.items():
        items = []
        for i in range(n + 4):
            pixels = rng.integers(0, 100, (edge, edge // 2, 3) if colour else (edge, edge // 2), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"{site}{i}.png")
            items.append({"image": f"{site}{i}.png", "label": i % 2})
        lists = {"training": items[:n], "validation": items[n : n + 2], "testing": items[n + 2 :]}
        (root / f"{site}.json").write_text(json.dumps(lists))
    return root


def values_of(root: Path, sizes: dict[str, int], **more: object) -> dict[str, object]:
    return {"datalists": str(root), "site_names": ",".join(sizes), "labels": "2", **more}


def chosen(kind: str, prints: dict[str, Fingerprint]) -> dict[str, object]:
    return {one.setting: one.value for one in plan(kind, prints)}


def test_a_fingerprint_holds_medians_and_means_of_the_training_images(tmp_path):
    sizes = {"a": 12}
    task = tasks.load("classification", None, **values_of(folder_of(tmp_path, sizes), sizes))
    found = fingerprint(task, "a", None, 10)
    pixels = np.stack([np.asarray(Image.open(tmp_path / f"a{i}.png")) for i in range(12)]) / 255
    assert (found.n_train, found.height, found.width, found.coloured) == (12, 40, 20, False)
    assert found.mean == [pytest.approx(pixels.mean(), abs=6e-4)]
    assert found.std == [pytest.approx(pixels.std(), abs=6e-4)]
    assert Fingerprint.from_json(json.loads(json.dumps(found.to_json())), "a") == found


@pytest.mark.parametrize(("n", "min_count"), [(9, 10), (12, 13), (12, None)])
def test_of_fewer_images_than_min_count_only_their_number_leaves(tmp_path, n, min_count):
    sizes = {"a": n}
    task = tasks.load("classification", None, **values_of(folder_of(tmp_path, sizes), sizes))
    assert fingerprint(task, "a", None, min_count) == Fingerprint(n)


@each(
    "change",
    [
        {"n_train": -1},
        {"n_train": 1.5},
        {"mean": [2.0]},
        {"std": None},
        {"mean": [0.1, 0.2]},
        {"height": 0},
        {"path": "/data"},
        {"coloured": "yes"},
    ],
)
def test_a_fingerprint_from_elsewhere_is_checked(change):
    good = Fingerprint(20, 64, 64, None, False, [0.3], [0.2]).to_json()
    with pytest.raises(UserError, match="fingerprint of b"):
        Fingerprint.from_json({**good, **change}, "b")


def test_few_examples_make_no_few_steps():
    small = chosen("segmentation", {"a": Fingerprint(12), "b": Fingerprint(20)})
    large = chosen("segmentation", {"a": Fingerprint(800), "b": Fingerprint(900)})
    assert small["train.batch_size"] < large["train.batch_size"]
    assert steps_of(small, 12) * small["train.rounds"] >= 300
    assert steps_of(large, 900) * large["train.rounds"] >= 300
    assert steps_of(large, 900) > steps_of(small, 20) == steps_of(small, 12)


def steps_of(found: dict[str, object], n: int) -> int:
    """Local steps of a round at a site with n examples."""
    own = {key.removeprefix("train."): value for key, value in found.items() if key.startswith("train.")}
    steps = Training(**own).steps(n)
    assert steps is not None
    return steps


def test_one_small_site_does_not_set_the_batch_of_all_and_a_large_one_sees_its_data():
    found = chosen("classification", {"a": Fingerprint(26), "b": Fingerprint(800), "c": Fingerprint(7200)})
    assert found["train.batch_size"] == 16
    assert steps_of(found, 26) * 16 >= 26 and steps_of(found, 26) == 20  # few images, drawn out
    assert steps_of(found, 800) * 16 == 800
    assert steps_of(found, 7200) * 16 > 960 and steps_of(found, 7200) == found["train.most_steps"]
    large = chosen("classification", {"a": Fingerprint(7000), "b": Fingerprint(7200), "c": Fingerprint(7400)})
    assert steps_of(large, 7400) * large["train.batch_size"] >= 7400  # usual sites of this size: a whole pass


def test_a_batch_says_which_site_it_is_of_and_has_room_for_every_class():
    found = {one.setting: one for one in plan("classification", {"a": Fingerprint(21), "b": Fingerprint(59)})}
    assert str(found["train.batch_size"]) == (
        "batch_size 8: a usual site has 40 training images; a smaller one takes what it has"
    )
    assert chosen("classification", {"a": Fingerprint(20, classes=10)})["train.batch_size"] == 16


def table_of(n, p, gain=None):
    """The fingerprint of a table with ``p`` numbers."""
    names = tuple(f"x{k}" for k in range(p))
    return Fingerprint(
        n, table=TableFingerprint(names, numbers={name: (n, 0.0, 1.0) for name in names}), network_gain=gain
    )


def test_a_table_gets_a_linear_model_whose_penalty_and_rate_follow_from_rows_and_columns():
    wide = chosen("tabular", {"a": table_of(100, 206), "b": table_of(200, 206)})
    narrow = chosen("tabular", {"a": table_of(1000, 6), "b": table_of(2000, 6)})
    assert (wide["task.model"], narrow["task.model"]) == ("linear", "linear")
    assert wide["train.weight_decay"] == pytest.approx(206 / 600, rel=0.01) and narrow["train.weight_decay"] == 0.001
    assert wide["train.lr"] < 4 / 206 and narrow["train.lr"] == 0.1
    assert (wide["train.optimizer"], wide["train.momentum"]) == ("sgd", 0.0)


def test_a_network_that_is_asked_for_is_trained_as_its_preset_says(tmp_path):
    """What suits a linear model alone goes with it."""
    rows = ["x,y,label", *(f"{k % 7},{k % 5},{k % 2}" for k in range(60))]
    for site in "ab":
        (tmp_path / f"{site}.csv").write_text("\n".join(rows) + "\n")
    values = {"datalists": str(tmp_path), "site_names": "a,b", "features": "x,y"}
    preset = tasks.known("tabular").presets["default"].training
    linear, network = (make_config("fedavg", "tabular", values={**values, **own}) for own in ({}, {"model": "mlp"}))
    assert (linear.options["model"], linear.training.optimizer) == ("linear", "sgd")
    assert (network.options["model"], network.training.optimizer) == ("mlp", preset.optimizer)
    assert (network.training.lr, network.training.weight_decay) == (preset.lr, preset.weight_decay)


@pytest.mark.parametrize(
    ("gains", "model"), [((0.05, 0.02), "mlp"), ((0.05, -0.04), "linear"), ((None, 0.001), "linear")]
)
def test_a_table_gets_a_network_where_validation_at_most_sites_is_better_with_one(gains, model):
    found = chosen("tabular", {f"s{k}": table_of(500, 6, gain) for k, gain in enumerate(gains)})
    assert found["task.model"] == model and ("train.weight_decay" in found) is (model == "linear")


def test_what_a_network_gains_is_measured_on_validation_rows():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(900, 2)).astype(np.float32))
    crossed, straight = ((x[:, 0] * x[:, 1]) > 0).long(), (x[:, 0] > 0).long()
    for labels, gains in ((crossed, True), (straight, False)):
        found = network_gain(Split(x[:600], labels[:600]), Split(x[600:], labels[600:]))
        assert found is not None and (found > 0.05) is gains
    assert network_gain(Split(x[:100], crossed[:100]), Split(x[600:], crossed[600:])) is None


def test_size_channels_and_scaling_are_agreed_by_sites_that_count_alike():
    grey, coloured = [0.2], [0.4, 0.4, 0.4]
    prints = {
        "a": Fingerprint(5000, 60, 50, None, False, grey, [0.1]),
        "b": Fingerprint(20, 96, 100, None, True, coloured, [0.1, 0.1, 0.1]),
        "c": Fingerprint(3),
    }
    found = chosen("classification", prints)
    assert found["task.size"] == 80  # the median of 60 and 100
    assert found["task.channels"] == 3
    assert found["task.mean"] == "0.300,0.300,0.300"
    assert found["task.std"] == "0.141,0.141,0.141"  # within sites .1, between their means .1


@pytest.mark.parametrize(("edge", "size"), [(28, 32), (40, 32), (41, 48), (512, 128)])
def test_sizes_stay_within_what_was_measured(edge, size):
    prints = {"a": Fingerprint(20, edge, edge, None, False, [0.3], [0.2])}
    assert chosen("segmentation", prints)["task.size"] == size


def test_sites_whose_pixels_differ_in_width_are_named():
    prints = {
        "near": Fingerprint(20, 64, 64, 0.5, False, [0.3], [0.2]),
        "far": Fingerprint(20, 64, 64, 2.0, False, [0.3], [0.2]),
    }
    assert "0.5 mm wide at near and 2 mm at far" in cautions(prints)[0]


def test_outcomes_in_other_units_at_one_site_are_said():
    prints = {"a": Fingerprint(20, outcome=[6.5, 1.0]), "b": Fingerprint(20, outcome=[47.0, 11.0])}
    assert cautions(prints) == ["outcome: a mean of 6.5 at a and of 47 at b: are the units the same?"]


def test_images_of_another_brightness_at_one_site_are_said():
    prints = {site: Fingerprint(20, 64, 64, None, False, [mean], [0.2]) for site, mean in zip("abc", (0.5, 0.35, 0.6))}
    assert "a mean of 0.35 at b and of 0.60 at c: are images of one inverted" in cautions(prints)[0]
    assert not cautions({site: prints[site] for site in "ac"})


def test_tables_have_no_images_and_nothing_known_is_no_plan():
    assert all(name.startswith(("train.", "run.")) for name in chosen("tabular", {"a": Fingerprint(100)}))
    assert plan("segmentation", {}) == [] and plan("heart", {"a": Fingerprint(100)}) == []


def test_a_run_on_a_users_folder_has_the_plans_settings_in_its_configuration_with_reasons(tmp_path):
    sizes = {"a": 12, "b": 30}
    config = make_config("fedavg", "classification", values=values_of(folder_of(tmp_path, sizes), sizes))
    assert (config.options["size"], config.options["channels"]) == (32, 1)
    assert config.training.batch_size == 4 and config.training.fewest_steps >= 12
    assert (config.best_by, config.headline) == ("mean", "best")
    line = "batch_size 4: a usual site has 21 training images; a smaller one takes what it has"
    assert line in plans.reasons(config)
    assert RunConfig.from_json(config.to_json()) == config


def test_what_the_user_sets_wins_and_takes_what_goes_with_it(tmp_path):
    sizes = {"a": 12, "b": 30}
    folder_of(tmp_path, sizes, colour=True)
    own = {"channels": 1, "epochs": 3, "train.batch_size": 7}
    config = make_config("fedavg", "classification", values=values_of(tmp_path, sizes, **own), rounds=2)
    assert (config.options["channels"], config.options["mean"], config.options["std"]) == (1, "", "")
    found = {
        key: getattr(config.training, key) for key in ("epochs", "fewest_steps", "most_steps", "batch_size", "rounds")
    }
    assert found == {"epochs": 3, "fewest_steps": None, "most_steps": None, "batch_size": 7, "rounds": 2}
    assert not any(line.startswith(("batch_size", "channels")) for line in plans.reasons(config))
    config = make_config("fedavg", "classification", values=values_of(tmp_path, sizes, local_steps=5, best_by="none"))
    found = {key: getattr(config.training, key) for key in ("local_steps", "fewest_steps")}
    assert found == {"local_steps": 5, "fewest_steps": None} and config.headline == "final"


@pytest.mark.parametrize("method", ["solo", "fedbn", "ditto"])
def test_a_method_without_one_model_for_all_chooses_no_round_by_itself(tmp_path, method):
    sizes = {"a": 12, "b": 30}
    config = make_config(method, "classification", values=values_of(folder_of(tmp_path, sizes), sizes))
    assert (config.best_by, config.headline) == ("none", "final")


def test_trained_weights_are_trained_on_at_a_lower_rate_and_the_plan_says_so(tmp_path):
    sizes = {"a": 12, "b": 30}
    values = values_of(folder_of(tmp_path, sizes), sizes)
    torch.save(make_parts("fedavg", values), tmp_path / "weights.pt")
    config = make_config("fedavg", "classification", values={**values, "init_from": str(tmp_path / "weights.pt")})
    assert config.training.lr == pytest.approx(2e-4)
    assert "lr 0.0002: starts from trained weights, 0.2 of the usual 0.001 (--set lr=0.001)" in plans.reasons(config)
    own = make_config(
        "fedavg", "classification", values={**values, "init_from": str(tmp_path / "weights.pt"), "lr": 0.001}
    )
    assert own.training.lr == 0.001 and not any(line.startswith("lr ") for line in plans.reasons(own))


def make_parts(method: str, values: dict[str, object]) -> dict[str, torch.Tensor]:
    """The initial model of a run."""
    return build_parts(make_config(method, "classification", values=values)).model


def test_a_named_preset_is_taken_as_it_is(tmp_path):
    sizes = {"a": 12}
    values = values_of(folder_of(tmp_path, sizes), sizes)
    config = make_config("fedavg", "classification:small", values=values)
    preset = tasks.known("classification").presets["small"].training
    assert config.options["size"] == 64
    assert (config.training.batch_size, config.training.local_steps) == (preset.batch_size, None)


def test_sites_hand_their_fingerprints_over_as_files(tmp_path):
    sizes = {"a": 12, "b": 40}
    folder_of(tmp_path, sizes)
    files = []
    for site in sizes:  # in their startup kits
        for folder in ("startup", "local"):
            (tmp_path / site / folder).mkdir(parents=True)
        own, out = tmp_path / site / "local" / "fairflare_site.yaml", tmp_path / f"{site}.out"
        own.write_text(f"data_root: ../..\ndatalist: {site}.json\n")
        files.append(write_fingerprint(own, "classification", "2", {}, None, out))
        assert str(tmp_path) not in out.read_text() and ".png" not in out.read_text()
    found = plan_of_files(files)
    plans.write_plan(found, tmp_path / "plan.json")
    assert found == plans.plan_for("classification", values_of(tmp_path, sizes))
    given = {"train.epochs": "2", "size": "48"}
    found = plan_values(tmp_path / "plan.json", "classification", given)
    assert found.keys() == {"channels", "mean", "std", "batch_size", "rounds", "best_by", "headline"}
    with pytest.raises(UserError, match="is of classification data"):
        plan_values(tmp_path / "plan.json", "segmentation", {})
    with pytest.raises(UserError, match="second fingerprint of site a"):
        plan_of_files([files[0], files[0]])


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1, "kind": "segmentation", "settings": {"run.accept": "x"}}'])
def test_a_file_that_is_no_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UserError, match="--plan plan.json"):
        plans.read_plan(tmp_path / "plan.json")


@pytest.fixture
def choosing(tmp_path):
    """A plan file that chooses a round's model."""
    found = {"train.rounds": 40, "run.best_by": "mean", "run.headline": "best"}
    rows = {name: {"value": value, "reason": "usual"} for name, value in found.items()}
    (tmp_path / "plan.json").write_text(json.dumps({"format": 1, "kind": "tabular", "settings": rows, "cautions": []}))
    return tmp_path / "plan.json"


@pytest.mark.parametrize("given", ["secure_sum=masks", "best_by=none"])
def test_a_plan_file_chooses_no_round_where_there_can_be_none(choosing, given):
    name, _, value = given.partition("=")
    assert plan_values(choosing, "tabular", {name: value}) == {"rounds": "40"}
    assert len(plan_values(choosing, "tabular", {"lr": "1"})) == 3


def test_a_join_takes_the_plan_of_the_hospitals_fingerprints(choosing, tmp_path, capsys):
    """Its folds have no best round."""
    options = ["--kind", "tabular", "--classes", "2", "--set", "features=age", "--set", "site_names=a,b,c"]
    with pytest.raises(SystemExit) as ended:
        main(["join", "decide", *options, "--plan", str(choosing), "--export", str(tmp_path / "job")])
    assert not ended.value.code, capsys.readouterr().err
