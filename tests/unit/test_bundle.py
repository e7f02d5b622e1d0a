# SPDX-License-Identifier: Apache-2.0
"""``--bundle DIR``: two public bundles, rebuilt, as tasks; their runs as bundles again, judged by MONAI's own tools."""

import json

import pytest
import torch

import zoo_bundles
from command_line import succeed
from fairflare.core.errors import UserError
from fairflare.engine.files import read_json
from fairflare.engine.setup import tasks
from fairflare.studies.bundle import Configuration, of_bundle
from model_use import call, reported, run
from own_folder import write_images
from volume_files import write_masked

KINDS = {"mednist": "classification", "spleen": "volume-segmentation"}
METHODS = {"mednist": ("fedavg", "fedism-plus", "fedce"), "spleen": ("fedavg", "fedce")}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data folders by bundle; the volumes' sites store axes in three orders."""
    root = tmp_path_factory.mktemp("data")
    ct = write_masked(root / "ct", patients=30, shape=(28, 26, 20))
    succeed("init", ct, "--kind", "volume-segmentation", "--yes")
    return {"mednist": write_images(root / "photos", masks=False), "spleen": ct}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundles")
    return {name: getattr(zoo_bundles, name)(root / name) for name in KINDS}


def arguments(name, bundles, data, rounds=1):
    own = ["--kind", "classification", "--classes", "healthy,ill"] if name == "mednist" else []
    return ["--bundle", bundles[name], "--data", data[name], *own, "--rounds", rounds]


@pytest.fixture(scope="module")
def runs(bundles, data, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return {
        (name, method): run(root / f"{name}-{method}", method, *arguments(name, bundles, data))
        for name, methods in METHODS.items()
        for method in methods
    }


@pytest.fixture(scope="module")
def exports(runs, tmp_path_factory):
    root = tmp_path_factory.mktemp("exports")
    for name in KINDS:
        succeed("export-model", runs[name, "fedavg"], "--format", "bundle", "--out", root / name)
    return root


@pytest.mark.parametrize("name", KINDS)
def test_three_methods_run_on_the_bundles_parts(runs, name):
    for method in METHODS[name]:
        folder = runs[name, method]
        config, report = read_json(folder / "config.json"), read_json(folder / "report.json")
        assert config["task"] == f"bundle-{KINDS[name]}" and config["training"]["optimizer"] == "adam"
        assert config["training"]["batch_size"] == {"mednist": 8, "spleen": 2}[name]
        assert report["fairness"]["metric"] == {"mednist": "accuracy", "spleen": "dice"}[name]
        assert all(min(site["weight"]) > 0 for site in report["sites"].values())
    models = [torch.cat([v.flatten().double() for v in weights(runs[name, method])]) for method in METHODS[name][:2]]
    assert not torch.equal(*models)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors").values()


@pytest.mark.parametrize("name", KINDS)
def test_monais_commands_take_the_result(exports, name, monkeypatch):
    """In this process: what ``python -m monai.bundle`` calls with these arguments."""
    from monai.bundle import ckpt_export, verify_net_in_out

    monkeypatch.chdir(exports / name)
    monkeypatch.syspath_prepend(str(exports / name))
    files = {"meta_file": "configs/metadata.json", "config_file": "configs/inference.json"}
    verify_net_in_out(net_id="network_def", **files)
    ckpt_export(net_id="network_def", filepath="m.ts", ckpt_file="models/model.pt", **files)
    assert torch.jit.load("m.ts")


@pytest.mark.parametrize("name", KINDS)
def test_monais_evaluator_scores_as_the_report_does(exports, runs, data, name, monkeypatch):
    pytest.importorskip("ignite")
    from monai.bundle import ConfigParser

    site = {"mednist": "north", "spleen": "south"}[name]
    lists = {"mednist": data[name] / f"client_{site}.json", "spleen": data[name] / "fairflare" / f"{site}.json"}
    monkeypatch.chdir(exports / name)
    parser = ConfigParser()
    parser.read_config("configs/train.json")
    parser.config |= {"datalist": str(lists[name]), "dataset_dir": str(data[name])}
    evaluator = parser.get_parsed_content("validate#evaluator")
    evaluator.run()
    (found,) = evaluator.state.metrics.values()
    metric = {"mednist": "accuracy", "spleen": "dice"}[name]
    assert found == pytest.approx(reported(runs[name, "fedavg"], site)[metric], abs=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_the_result_is_the_same_bundle(exports, bundles, name):
    """A folder that was exported gives the options of the one that the run was made of."""
    (task, before, aside), (again, after, _) = (
        of_bundle(root, KINDS[name]) for root in (bundles[name], exports / name)
    )
    assert task == again and {"imports", "device"} <= set(aside)
    made = [tasks.load(task.partition(":")[0], None, **options(values)) for values in (before, after)]
    for key in ("outputs", "input_shape", "headline"):
        assert getattr(made[0], key) == getattr(made[1], key)
    for key in ("transforms", "train_transforms"):
        listed = [zoo_steps(one, key) for one in made]
        assert listed[0] == listed[1]
    same = before.keys() - {"task.model"} - {f"task.{key}" for key in ("transforms", "train_transforms")}
    assert {k: number(before[k]) for k in same if k != "train.momentum"} == {
        k: number(after[k]) for k in same if k != "train.momentum"
    }


def options(values):
    return {key.removeprefix("task."): value for key, value in values.items() if key.startswith("task.")}


def number(text):
    try:
        return float(text)
    except ValueError:
        return json.loads(text) if text.startswith("{") else text


def zoo_steps(task, key):
    from fairflare.tasks.bundle_parts import steps

    return steps(key, getattr(task, key), ("image", "label"))


def test_training_draws_are_a_function_of_the_seed(bundles, data):
    from fairflare.data.site_config import SiteConfig

    task, values, _ = of_bundle(bundles["spleen"], KINDS["spleen"])
    own = SiteConfig(site="east", data_root=str(data["spleen"]), datalist="fairflare/east.json")
    found = tasks.load(task.partition(":")[0], None, **options(values), labels="spleen").read(own)
    first, again, other = (list(found.training(2, seed)) for seed in (1, 1, 2))
    assert first[0].inputs.shape[1:] == (1, 16, 16, 16) and first[0].targets.unique().tolist() == [0, 1]
    assert len(first[0].inputs) == 4  # two crops of each of two volumes
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0].inputs, other[0].inputs)
    looks = [torch.cat([batch.inputs for batch in found.fixed("train", 3)]) for _ in range(2)]
    assert torch.equal(*looks)


SYSTEM = "$__import__('os').system('touch owned')"


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("network_def#channels", {"network_def": {"_target_": "UNet", "channels": SYSTEM}}),
        ("loss: ", {"loss": {"_target_": "os.system", "command": "touch owned"}}),
        ("loss#weight", {"loss": {"_target_": "DiceLoss", "weight": "$torch.load('x.pt')"}}),
        ("loss", {"loss": "@loss"}),
        ("optimizer", {"optimizer": {"_target_": "Novograd", "lr": 0.1}}),
        (
            "transforms#0",
            {
                "train": {"preprocessing": []},
                "validate": {"preprocessing": [{"_target_": "Lambdad", "keys": "image", "func": "x"}]},
            },
        ),
        ("train#preprocessing", {"train": {"preprocessing": "%other.json::train"}}),
        ("patch", {"patch": "$[16] * 10**9"}),
        ("validate#key_metric", {"validate": {"preprocessing": [], "key_metric": {"x": {"_target_": "MeanIoU"}}}}),
    ],
)
def test_what_may_not_be_made_is_one_line(tmp_path, data, monkeypatch, capsys, key, changes):
    monkeypatch.chdir(tmp_path)
    bundle = zoo_bundles.spleen(tmp_path / "b", **changes)
    code, _, said = call(capsys, "run", "fedavg", "--bundle", bundle, "--data", data["spleen"], "--out", "r")
    lines = said.strip().splitlines()
    assert code == 2 and key in lines[-1] and len(lines) <= 2, said
    assert not (tmp_path / "owned").exists() and not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"loss": '{"_target_": "os.system"}'},
        {"transforms": '[{"_target_": "Lambdad", "keys": "image", "func": "x"}]'},
        {"transforms": '[{"_target_": "Resized", "keys": "image", "spatial_size": 1000000}]'},
        {"model": '{"class_path": "my_net.Net", "args": {}}'},
        {"inferer": '{"_target_": "monai.inferers.SlidingWindowInferer", "roi_size": 8, "device": "cuda"}'},
    ],
)
def test_a_jobs_configuration_is_held_to_the_same_list(options):
    """What a site gets is checked there, whoever wrote it."""
    with pytest.raises(UserError):
        tasks.load("bundle-classification", None, **options)


def test_expressions_are_arithmetic(tmp_path):
    values = {"a": 3, "b": "$[@a * 2, -@a]", "c": "$tuple(@b) + [1.5] * 2", "d": "$'x' if @a > 1 else 'y'"}
    config = Configuration(zoo_bundles.spleen(tmp_path / "b", **values))
    assert config.value("b") == [6, -3] and config.value("c") == [6, -3, 1.5, 1.5]
    with pytest.raises(UserError, match="d: "):
        config.value("d")


@pytest.mark.flare
def test_as_a_job_the_model_is_the_same(bundles, data, runs, tmp_path):
    folder = run(tmp_path / "sim", "fedavg", *arguments("mednist", bundles, data), "--env", "sim")
    assert all(map(torch.equal, weights(folder), weights(runs["mednist", "fedavg"])))
