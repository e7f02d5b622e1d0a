# SPDX-License-Identifier: Apache-2.0
"""The domain-shift task: who holds which look, nothing twice, in every process the same."""

import dataclasses

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.types import Training
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets import digits, domains
from fairflare_lab.datasets.digits import DOMAINS, MNIST, OPTDIGITS, PHOTO, RENDERED, Digits, plan

TINY = dict(images_per_site=160, test_images=60, site_test_images=0)
PRESETS = list(Digits.presets)


def images_of(data):
    return torch.cat([split.inputs for split in data.splits.values()])


@pytest.fixture(scope="module")
def task():
    return Digits(**TINY)


@pytest.fixture(scope="module")
def data(task):
    return {site: task.site_data(site) for site in task.sites()}


def test_a_quarter_of_the_sites_holds_each_look():
    assert list(Digits().sites().values()) == [look for look in DOMAINS for _ in range(2)]
    assert list(Digits(n_sites=20, images_per_site=200).sites().values()) == [d for d in DOMAINS for _ in range(5)]
    assert DOMAINS == ("MNIST", "optdigits", "photo background", "rendered")
    assert Digits(alpha=0.5).sites()["site-8"] == "rendered; label skew, alpha 0.5"


@pytest.mark.parametrize("preset", PRESETS)
def test_sites_are_known_without_any_data(preset, monkeypatch):
    monkeypatch.setattr(digits, "_file", lambda *_: pytest.fail("read a file"))
    monkeypatch.setattr(digits, "_optdigits", lambda: pytest.fail("read optdigits"))
    task = load("digits", preset, site_test_images=0)
    assert len(task.sites()) == task.n_sites
    assert sum(map(len, task.rows("site-1").values())) == task.images_per_site


@pytest.mark.parametrize("options", [*(p.options for p in Digits.presets.values()), {"n_sites": 40, **TINY}])
def test_no_number_is_used_twice(options):
    options = {**options, "images_per_site": 40} if options.get("n_sites") == 40 else options
    task = Digits(**{**options, "site_test_images": 0})
    pools = {MNIST: "handwritten", PHOTO: "handwritten", OPTDIGITS: OPTDIGITS, RENDERED: RENDERED}
    used = [(pools[task.domain(s)], i) for s in task.sites() for rows in task.rows(s).values() for i in rows]
    used += [(pools[domain], i) for domain in DOMAINS for i in task.test_rows(domain)]
    assert len(set(used)) == len(used) == task.n_sites * task.images_per_site + len(DOMAINS) * task.test_images


def test_images_and_classes(task, data):
    for site, held in data.items():
        assert [held.size(name) for name in ("train", "val", "test")] == [96, 16, 48]
        for name, split in held.splits.items():
            assert split.inputs.shape[1:] == (3, 32, 32) and split.inputs.dtype == torch.uint8
            assert split.targets.dtype == torch.int64 and len(split) == len(task.rows(site)[name])
        assert held.class_counts.shape == (10,) and held.class_counts.min() >= 1
        assert images_of(held).float().std() > 20


@pytest.mark.parametrize("preset", PRESETS)
def test_every_site_trains_on_every_class(preset):
    task = load("digits", preset)
    for site in task.sites():
        labels = digits.classes_of(task.domain(site))[task.rows(site)["train"]]
        assert np.bincount(labels, minlength=10).min() >= 5


def test_no_image_is_there_twice(task, data):
    held = [image.numpy().tobytes() for site in data.values() for image in images_of(site)]
    tested = [digits.drawn_digit(d, i, task.data_seed).tobytes() for d in DOMAINS for i in task.test_rows(d)]
    assert len(set(held)) == len(held) == 8 * 160 and not set(held) & set(tested)


def test_another_data_seed_draws_other_images_where_they_are_drawn():
    for domain, changes in zip(DOMAINS, (False, False, True, True)):
        assert (digits.drawn_digit(domain, 11, 1) != digits.drawn_digit(domain, 11, 2)).any() == changes


def test_looks_differ(data):
    look = {k: images_of(data[f"site-{k}"]).float() for k in (1, 3, 5, 7)}
    for k in (1, 3):  # grey handwriting on black
        assert torch.equal(look[k][:, 0], look[k][:, 2]) and (look[k] == 0).float().mean() > 0.2
    for k in (5, 7):  # coloured all over
        assert (look[k][:, 0] - look[k][:, 2]).abs().mean() > 20 and (look[k] == 0).float().mean() < 0.1
    rim = {k: torch.stack([x[:, 0, 0], x[:, 0, -1]]) for k, x in look.items()}
    assert rim[1].mean() < 5 and rim[3].mean() > 30  # MNIST has a margin, optdigits fill the image
    grain = {k: (x.diff(dim=-1).diff(dim=-1).abs() > 8).float().mean() for k, x in look.items()}
    assert grain[5] > 1.5 * grain[1]  # photographs have texture everywhere


def test_photo_backgrounds_are_differences(task, monkeypatch):
    number = task.test_rows(PHOTO)[0]
    ink = digits.drawn_digit(MNIST, number, 0).astype(int)  # the same handwriting without a photograph
    assert digits.classes_of(PHOTO)[number] == digits.classes_of(MNIST)[number]
    plain = [np.full((200, 180, 3), (200, 100, 0), np.uint8)] * len(digits.PHOTOS)
    monkeypatch.setattr(digits, "_photos", lambda: plain)
    assert (digits.drawn_digit(PHOTO, number, 5) == abs(np.array((200, 100, 0))[:, None, None] - ink)).all()


def test_rendered_digits_are_of_many_kinds():
    ones = [digits.drawn_digit(RENDERED, 10 * k + 1, 0) for k in range(40)]
    corners = {tuple(image[:, 0, 0] // 32) for image in ones}
    assert len(corners) > 25 and (digits.classes_of(RENDERED)[1::10] == 1).all()
    assert min(image.mean(0).std() for image in ones) > 8  # none is blank


@each("name", digits.FONTS)
def test_every_font_has_ten_different_digits(name):
    font = digits._font(name, 40)
    assert len({bytes(font.getmask(digit)) for digit in digits.CLASSES}) == 10


def test_shared_test_sets(task):
    sets = task.test_sets()
    assert [(s.name, s.corrupted) for s in sets] == [(domain, False) for domain in DOMAINS]
    for held in sets:
        assert held.inputs.shape == (60, 3, 32, 32) and held.inputs.dtype == torch.float32
        assert held.targets.dtype == torch.int64 and len(held.targets.unique()) >= 9
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(sets, Digits(**TINY).test_sets()))
    assert task.table_sets() == {domain: domain for domain in DOMAINS}  # FedHEAL's tables: the last five rounds' mean


def test_label_skew_comes_on_top(task):
    def spread(alpha):
        skewed = dataclasses.replace(task, n_sites=8, images_per_site=300, alpha=alpha)
        gaps = []
        for domain in DOMAINS:
            numbers, sites = plan(skewed, domain)
            labels = digits.classes_of(domain)[numbers]
            table = np.bincount(sites * 10 + labels, minlength=20).reshape(2, 10)
            assert table.sum() == 600 and table.sum(1).min() >= 24
            gaps.append(abs(table[0] - table[1]).sum() / 600)
        return np.mean(gaps)

    assert spread(0.0) < 0.2 < spread(100.0) + 0.2 < spread(0.3)
    assert not np.array_equal(*(plan(dataclasses.replace(task, alpha=0.3), d)[1] for d in (MNIST, PHOTO)))


def test_an_impossible_skew_is_refused():
    task = Digits(n_sites=40, images_per_site=24, test_images=60, alpha=0.01)
    with pytest.raises(UserError, match="no split of 240 examples over 10 sites.*larger alpha"):
        task.rows("site-1")


def test_crops_move_images_and_repeat(task, data):
    moved = dataclasses.replace(task, augment=True).site_data("site-7")
    plain, first, again, other = (
        list(d.training(32, s)) for d, s in ((data["site-7"], 3), *((moved, s) for s in (3, 3, 4)))
    )
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again))
    assert all(torch.equal(a.targets, b.targets) for a, b in zip(plain, first))
    assert not torch.equal(first[0].inputs, plain[0].inputs) and not torch.equal(first[0].inputs, other[0].inputs)
    fixed = [next(d.fixed("test", 48)).inputs for d in (data["site-7"], moved)]
    assert torch.equal(*fixed)


def test_a_crop_is_a_shift_with_a_border():
    images = torch.rand(50, 3, 32, 32) + 1
    fill = torch.tensor([-1.0, -2.0, -3.0]).view(1, 3, 1, 1)
    result = domains.cropped(images, fill, torch.Generator().manual_seed(0))
    found = set()
    for before, after in zip(images, result):
        canvas = fill[0].expand(3, 40, 40).clone()
        canvas[:, 4:36, 4:36] = before
        at = [(y, x) for y in range(9) for x in range(9) if torch.equal(canvas[:, y : y + 32, x : x + 32], after)]
        assert len(at) == 1
        found.update(at)
    assert result.shape == images.shape and {y for y, _ in found} == {x for _, x in found} == set(range(9))


def test_the_papers_settings():
    config = make_config("fedheal", "digits:paper")
    assert (config.options["n_sites"], config.options["augment"], config.options["alpha"]) == (20, True, 0.0)
    assert config.options["model"] == "resnet10"
    assert config.training == Training(
        rounds=200, epochs=10, batch_size=64, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=1e-5
    )


def test_the_data_are_there():
    assert [len(digits._mnist()[1]), len(digits._optdigits()[1])] == [5000, digits.SIZES[OPTDIGITS]]
    assert (np.bincount(digits._mnist()[1]) == 500).all() and len(digits._photos()) == len(digits.PHOTOS)


BAD = [
    ({"n_sites": 2}, "n_sites: expected a multiple of 4 in 4..40, got 2"),
    ({"n_sites": 10}, "n_sites: expected a multiple of 4 in 4..40, got 10"),
    ({"n_sites": 44}, "n_sites: expected a multiple of 4 in 4..40, got 44"),
    ({"test_images": 10}, "test_images: expected 20..1749 for 8 sites, got 10"),
    ({"test_images": 1750}, "test_images: expected 20..1749 for 8 sites, got 1750"),
    ({"images_per_site": 20}, "images_per_site: expected 24.* got 20"),
    ({"images_per_site": 700}, "images_per_site: expected 24..648 for 8 sites and 500 test images, got 700"),
    ({"n_sites": 20, "images_per_site": 400}, "images_per_site: expected 24..259 for 20 sites"),
    ({"alpha": -1}, "alpha: expected a number above 0, or 0 for no label skew, got -1"),
    ({"alpha": float("nan")}, "alpha: expected .*got nan"),
    ({"model": "vgg"}, "model: expected one of small-cnn, small-cnn-bn, resnet10, resnet18, got 'vgg'"),
    ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as caught:
        load("digits", "small", **options)
    assert "\n" not in str(caught.value)
