# SPDX-License-Identifier: Apache-2.0
"""Networks by name, and what a wrong weights file is told."""

import pytest
import torch
from torch import nn

from cases import each
from fairflare.core.errors import UserError
from fairflare.networks import builtin as networks
from fairflare.networks import images


@pytest.mark.parametrize("name", ["small-cnn", "small-cnn-bn"])
def test_small_cnn(name):
    network = networks.build(name, 1, 5)
    assert network(torch.zeros(2, 1, 48, 48)).shape == (2, 5)
    assert 50_000 < sum(p.numel() for p in network.parameters()) < 200_000
    kinds = {type(m).__name__ for m in network.modules()}
    assert ("BatchNorm2d" in kinds) == (name == "small-cnn-bn")


def test_mlp_and_linear():
    assert networks.build("mlp", 7, 2)(torch.zeros(3, 7)).shape == (3, 2)
    assert sum(p.numel() for p in networks.build("linear", 7, 2).parameters()) == 7 * 2 + 2


def test_the_callers_seed_decides_the_weights():
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(networks.build("small-cnn", 1, 5).state_dict()["head.weight"])
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])


def layers_with_parameters(network):
    return [(name, m) for name, m in network.named_modules() if next(m.parameters(recurse=False), None) is not None]


@each("norm, kind", [("batch", "BatchNorm2d"), ("instance", "InstanceNorm2d"), ("group", "GroupNorm")])
@each("name, layers, low, high", [("unet", 41, 7.755e6, 7.765e6), ("small-unet", 32, 1e5, 1.5e5)])
def test_unets(name, layers, low, high, norm, kind):
    network = networks.build(name, 1, 3, norm=norm)
    found = layers_with_parameters(network)
    assert {type(m).__name__ for _, m in found} == {"Conv2d", "ConvTranspose2d", kind} and len(found) == layers
    assert low < sum(p.numel() for p in network.parameters()) < high
    assert network(torch.zeros(2, 1, 32, 48)).shape == (2, 3, 32, 48)


def test_unet_layers_compute_once_each_in_the_order_of_the_state_dict():
    network, called = networks.build("small-unet", 1, 2, norm="batch"), []
    for name, module in layers_with_parameters(network):
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    network(torch.zeros(2, 1, 16, 16))
    assert called == list(dict.fromkeys(key.rpartition(".")[0] for key in network.state_dict()))
    assert not any(getattr(m, "inplace", False) for m in network.modules())


NORMS = [("batch", nn.BatchNorm2d), ("instance", nn.InstanceNorm2d), ("group", nn.GroupNorm)]


@each("norm, kind", NORMS)
@each("name", ["resnet10", "resnet18"])
def test_the_norm_of_a_resnet_is_everywhere(name, norm, kind):
    network = networks.build(name, 3, 10, norm=norm)
    found = [m for m in network.modules() if isinstance(m, (nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm))]
    assert {type(m) for m in found} == {kind} and len(found) == {"resnet10": 12, "resnet18": 20}[name]
    assert all(m.weight.eq(1).all() and m.bias.eq(0).all() for m in found)
    assert networks.normalisation(network) == norm
    assert network(torch.rand(2, 3, 64, 64)).shape == (2, 10)


def test_resnet10_keeps_small_images_large():
    """FedHEAL's: 5.43 M parameters without the 2 * 512 * 513 of a projection head."""
    network, shapes = networks.build("resnet10", 3, 10).eval(), {}
    for name, module in network.named_children():
        module.register_forward_hook(lambda _, x, y, name=name: shapes.update({name: tuple(y.shape[1:])}))
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert "maxpool" not in shapes and shapes["conv1"] == shapes["layer1"] == (64, 32, 32)
    assert (shapes["layer2"], shapes["layer3"], shapes["layer4"]) == ((128, 16, 16), (256, 8, 8), (512, 4, 4))
    assert sum(p.numel() for p in network.parameters()) == 4_903_242
    assert round((4_903_242 + 2 * 512 * 513) / 1e6, 2) == 5.43
    assert network.conv1.kernel_size == (3, 3) and network.conv1.stride == (1, 1)
    assert networks.build("resnet10", 1, 7)(torch.rand(2, 1, 48, 48)).shape == (2, 7)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet10_layers_compute_once_each_in_the_order_of_the_state_dict(norm):
    network, called = networks.build("resnet10", 3, 10, norm=norm), []
    layers = layers_with_parameters(network)
    for name, module in layers:
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    network(torch.rand(2, 3, 32, 32))
    assert len(layers) == 12 + 12 + 1  # convolutions, normalisations, head
    assert called == list(dict.fromkeys(key.rpartition(".")[0] for key in network.state_dict()))


def test_unknown_name():
    with pytest.raises(UserError, match="network: expected one of small-cnn, .*linear, .*got 'vgg'"):
        networks.build("vgg", 1, 5)


def test_resnet18_has_the_layout_of_torchvision():
    state = images.resnet18(3, 1000).state_dict()
    assert len(state) == 122
    assert state["conv1.weight"].shape == (64, 3, 7, 7) and "layer2.0.downsample.0.bias" not in state
    assert sum(t.numel() for t in images.resnet18(3, 1000).parameters()) == 11_689_512
