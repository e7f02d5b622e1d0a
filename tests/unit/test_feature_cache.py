# SPDX-License-Identifier: Apache-2.0
"""A frozen body runs once per image: what trains is the same, what is kept on disk is bounded, and what changes it."""

import os
import resource
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cases import each
from fairflare.cli.main import main
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.files import read_model
from fairflare.engine.setup import at_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.feature_cache import Folder, featured
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.tuning import tuned
from fairflare.networks import builtin
from own_folder import write_images

SETTINGS = SimpleNamespace(tune="head", seed=1)
SITES = "east,north,south,west"


def images(n=20, augment=False, seed=0, held=None):
    """Random ones of 32 pixels; the last two splits have the first ``held`` of them, None: all."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 1, 32, 32), generator=generator, dtype=torch.uint8)
    train, rest = (Split(pixels[:k], torch.arange(n)[:k] % 2) for k in (n, held))
    return TensorData(train=train, val=rest, test=rest, n_classes=2, mean=(0.5,), std=(0.25,), augment=augment)


class Counted(nn.Module):
    """A body that counts the images that it has seen, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head, self.seen = (
            nn.Sequential(nn.Conv2d(1, 4, 5, stride=4), nn.Flatten()),
            nn.Linear(196, 2),
            0,
        )

    def forward(self, x):
        self.seen += len(x)
        return self.head(self.body(x).relu())


def counted(folder=None, data=None, views=0, network=None, said=None):
    network = network or tuned(Counted(), SETTINGS)
    network.seen = 0
    tell = (lambda text: None) if said is None else said.append
    return featured(data or images(), network, views, 3, folder, tell), network


def test_the_head_computes_on_features_what_the_network_computes_on_images():
    plain, said = images(), []
    data, network = counted(said=said)
    assert network.seen == 2 + 60 and said[-1] == "60 of 60 images through the encoder"
    for kept, batch in zip(data.training(8, 5), plain.training(8, 5), strict=True):
        assert kept.inputs.shape[1:] == (196, 1, 1) and torch.equal(kept.targets, batch.targets)
        torch.testing.assert_close(network(kept.inputs), network(batch.inputs))
    assert set(network.state_dict()) == {"head.weight", "head.bias"}


def test_ordered_classes_keep_their_cuts_behind_the_head():
    network = tuned(builtin.Ordered(Counted(), 1), SETTINGS)
    network.network.head = nn.Linear(196, 1)
    network.network.seen = 0
    data = featured(images(), network, 0, 3, None, lambda text: None)
    torch.testing.assert_close(network(data.splits["test"].inputs), network(next(images().fixed("test", 20)).inputs))


def test_features_on_disk_serve_the_next_run_and_no_other_weights_or_pixels(tmp_path):
    first, network = counted(Folder(tmp_path, 1e9))
    again, other = counted(Folder(tmp_path, 1e9))
    assert network.seen == 2 + 20 and other.seen == 2  # all three splits hold the same images
    assert torch.equal(first.splits["train"].inputs, again.splits["train"].inputs)
    changed = tuned(Counted(), SETTINGS)
    changed.body[0].weight[0, 0, 0, 0] += 1e-3
    for more in ({"network": changed}, {"data": images(seed=1)}):
        assert counted(Folder(tmp_path, 1e9), **more)[1].seen == 2 + 20
    for path in tmp_path.glob("*.npy"):
        path.write_bytes(path.read_bytes()[:100])
    assert counted(Folder(tmp_path, 1e9))[1].seen == 2 + 20


def test_the_folder_is_bounded_and_keeps_what_was_used_last(tmp_path):
    folder, value = Folder(tmp_path, 10_000), torch.zeros(200)
    for k in range(40):
        folder.put(f"{k}", value)
        os.utime(tmp_path / f"{k}.npy", (k, k))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert folder.get("39") is not None and folder.get("0") is None
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".npy"]


def test_augmented_images_have_as_many_views_as_were_asked_for():
    assert counted(data=images(augment=True))[0].augment
    data, network = counted(data=images(augment=True), views=3)
    assert network.seen == 2 + 60 + 60 and data.views.shape == (3, 20, 196, 1, 1)
    first, second = (torch.cat([b.inputs for b in data.training(8, seed)]) for seed in (1, 2))
    again = torch.cat([b.inputs for b in data.training(8, 1)])
    assert torch.equal(first, again) and not torch.equal(first, second)
    known = {one.numpy().tobytes() for one in data.views.flatten(0, 1)}
    assert all(one.numpy().tobytes() in known for one in first)


@each("network", [lambda: builtin.build("unet", 1, 1), lambda: nn.Sequential(Counted(), nn.Softmax(dim=1))])
def test_networks_whose_last_layer_takes_no_vectors_or_is_not_last_keep_their_images(network):
    torch.manual_seed(0)
    frozen = tuned(network(), SETTINGS)
    plain = images()
    assert featured(plain, frozen, 0, 3, None, lambda text: None) is plain
    assert frozen(next(plain.fixed("train", 2)).inputs) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), masks=False)


def run(folder, out, method="fedavg", **values):
    out.mkdir()
    values = {"datalists": str(folder), "site_names": SITES, "labels": "2", "size": 32, "channels": 1, **values}
    config = make_config(method, "classification:small", rounds=2, values={"tune": "head", "solo": False, **values})
    run_local(config, out)
    return read_model(out / "model.safetensors")


@each("method", ["fedavg", "fedism-plus", "fedce", "fedlwr", "fedheal"])
def test_methods_end_in_the_model_that_images_give(method, folder, tmp_path, monkeypatch):
    kept = run(folder, tmp_path / "kept", method=method)
    with monkeypatch.context() as patch:
        patch.setattr("fairflare.engine.setup.feature_cache.featured", lambda data, *more: data)
        plain = run(folder, tmp_path / "plain", method=method)
    for name, value in plain.items():
        torch.testing.assert_close(kept[name], value, atol=2e-5, rtol=1e-3)
    assert (tmp_path / "kept" / "sites").exists() == (tmp_path / "plain" / "sites").exists()


def test_a_site_s_own_file_names_the_folder_and_prediction_takes_images(folder, tmp_path, monkeypatch, capsys):
    own = SiteConfig(features=str(tmp_path / "kept"), data_root=str(folder), datalist="")
    monkeypatch.setattr(at_site, "find_site_config", lambda local, name: own)
    run(folder, tmp_path / "run")
    assert len(list((tmp_path / "kept").glob("*.npy"))) == 4 * 22
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(tmp_path / "run"), str(folder / "east" / "0.png"), "--out", str(tmp_path / "out")])
    assert not stop.value.code, capsys.readouterr()


@pytest.mark.long
def test_a_head_on_a_trunk_of_300_million_numbers_trains_in_a_second_a_round():
    """A random ViT-L, 4 sites x 200 images of 32 pixels: CPU seconds of a round's training, and memory."""
    from transformers import ViTConfig, ViTForImageClassification

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
            self.vit = ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, num_channels=1, **sizes))

        def forward(self, x):
            return self.vit(x).logits

    network = tuned(Wrapped(), SETTINGS)
    numbers = sum(value.numel() for value in network.buffers())
    assert numbers > 3e8
    sites = [featured(images(200, seed=k, held=4), network, 0, 3, None, lambda text: None) for k in range(4)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 2.5 * 4 * numbers + 1e9
    optimizer, began = torch.optim.Adam(network.parameters()), time.process_time()
    for data in sites:
        for batch in data.training(16, 0):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(batch.inputs), batch.targets).backward()
            optimizer.step()
    spent = time.process_time() - began
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{numbers:,} numbers, {spent:.2f} CPU s a round, {size:.2f} GB")
    assert spent <= 1
    assert np.isfinite(sum(float(p.detach().sum()) for p in network.parameters()))
