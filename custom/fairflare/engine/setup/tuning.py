# SPDX-License-Identifier: Apache-2.0
"""What of a network trains: its last layer, its normalisation, or low-rank adapters; the rest, its body, is frozen.

A frozen entry becomes a buffer that no state dict holds. So the model of a run is what trains, and nothing else is
sent, checked, masked, noised, hashed, stored or reported. Server and sites build the same body: from the seed, or from
the file of weights whose SHA-256 the configuration names. A frozen module computes as in evaluation: dropout is off,
and running statistics do not move.

Adapters are those of LoRA (Hu et al., ICLR 2022): a layer with weight W (m, n) computes with W + (alpha / r) B A, of
which B (m, r) trains from zero. A (r, n) is drawn once, the same at every site, and frozen, as in FFA-LoRA (Sun et al.,
ICLR 2024). So a weighted mean of B A is B's weighted mean times A, without error. The rows of A are orthonormal: B A
has the norm of B, and two updates have the same cosine as their B. Rules that compare, clip or average updates do to
B A what they do to B; rules that look at single entries' signs (FedHEAL) look at B's.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fairflare.core.errors import UserError
from fairflare.core.seeds import derive
from fairflare.core.types import FROZEN
from fairflare.core.validation import shown, some
from fairflare.engine.setup.weights import start_from
from fairflare.networks.builtin import Ordered

if TYPE_CHECKING:
    from fairflare.engine.setup.run_config import RunConfig

NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
ADAPTER = "default"
"""The name that ``peft`` gives the one adapter of a layer."""
BODY, LOADS = "_fairflare_body", "_load_from_state_dict"
"""Attributes: of a network its frozen modules; of a module what torch calls to load its own entries."""


def tuned(network: nn.Module, config: RunConfig) -> nn.Module:
    """``network`` with its body frozen as ``config.tune`` says, changed in place.

    Raises:
        UserError: ``tune_layers`` names no layer that can have adapters, a rank exceeds a layer, or ``peft`` is absent.
    """
    head = _head(network)
    names = {f"{head}.{own}" for own, _ in network.get_submodule(head).named_parameters()}
    if isinstance(network, Ordered):
        names |= {own for own, _ in network.named_parameters(recurse=False)}
    if config.tune == "lora":
        names |= set(_adapt(network, config, head))
    elif config.tune == "norm":
        normalised = [name for name, module in network.named_modules() if isinstance(module, NORMALISATIONS)]
        if not normalised:
            raise UserError("tune: expected a network with normalisation layers for norm, got one without")
        names |= {f"{name}.{own}" for name in normalised for own, _ in network.get_submodule(name).named_parameters()}
    _freeze(network, names)
    return network


def begun(network: nn.Module, config: RunConfig, *, at_site: bool) -> nn.Module:
    """``tuned``, at a site from the weights that the run starts from, which the server has taken up already.

    Raises:
        UserError: they are not here, or as ``tuned``.
    """
    if at_site and config.init_from:
        start_from(config.init_from, network, ())
    return tuned(network, config)


def whole(network: nn.Module) -> nn.Module:
    """``network`` with its adapters merged into their layers and its body's entries back in its state dict, in place.

    What is left has the entries of the network before ``tuned``, and computes the same in evaluation.
    """
    for name, layer in list(_adapters(network)):
        layer.merge()
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, layer.get_base_layer())
    for module in network.modules():
        module.__dict__.pop(LOADS, None)
        for name, trains in module.__dict__.pop(FROZEN, {}).items():
            module._non_persistent_buffers_set.discard(name)
            if trains:
                value = module.get_buffer(name)
                del module._buffers[name]
                module.register_parameter(name, nn.Parameter(value, requires_grad=False))
    network.__dict__.pop(BODY, None)
    return network


def forget_body(network: nn.Module) -> None:
    """Let go of the frozen values and keep their shapes: what a server needs, which computes nothing with them."""
    for module in network.modules():
        for name in getattr(module, FROZEN, ()):
            module._buffers[name] = module.get_buffer(name).to("meta")


def sizes(network: nn.Module) -> tuple[int, int]:
    """Numbers that train, and numbers of the network in all."""
    trained = sum(parameter.numel() for parameter in network.parameters())
    return trained, trained + sum(one.numel() for one in network.buffers() if one.is_floating_point())


def words(tune: str, network: nn.Module) -> list[str]:
    """For the screen: how much of a tuned network trains and travels; nothing of another."""
    trained, every = sizes(network)
    return [] if tune == "all" else [f"tune {tune}: {trained:,} of {every:,} numbers train and travel"]


def _head(network: nn.Module) -> str:
    """The name of the last module that has parameters of its own."""
    own = [name for name, module in network.named_modules() if next(module.parameters(recurse=False), None) is not None]
    if len([name for name in own if name]) < 2:
        raise UserError("tune: expected all for a network of one layer, which has no body to freeze")
    return str(own[-1])


def _adapt(network: nn.Module, config: RunConfig, head: str) -> Iterator[str]:
    """Put adapters into the layers that ``config.tune_layers`` names; the names of B's entries."""
    try:
        peft: Any = importlib.import_module("peft")
    except ImportError:
        raise UserError("tune: lora needs peft: pip install 'fairflare[tune]'") from None
    able = list(_adaptable(network, head))
    parts = [part.strip() for part in config.tune_layers.split(",") if part.strip()]
    for part in parts:
        if not any(_means(part, name) for name in able):
            raise UserError(f"tune_layers: expected layers, or ends of their names, of {some(able)}; got {shown(part)}")
    chosen = [name for name in able if not parts or any(_means(part, name) for part in parts)]
    if not chosen:
        raise UserError("tune: expected a network with linear or convolutional layers below its last for lora")
    alpha = config.tune_alpha or config.tune_rank
    settings = peft.LoraConfig(r=config.tune_rank, lora_alpha=alpha, target_modules=chosen, lora_dropout=0.0)
    peft.inject_adapter_in_model(settings, network)
    for name, layer in _adapters(network):
        _draw(layer.lora_A[ADAPTER].weight, derive(config.seed, "lora", name), name)
        yield f"{name}.lora_B.{ADAPTER}.weight"


def _adaptable(network: nn.Module, head: str) -> Iterator[str]:
    """Layers that can have adapters: convolutions or linear ones, which have more numbers here, but not the last.

    Torch's attention reads its own projection's weight, past an adapter.
    """
    held: dict[Any, int] = {}
    for kind in (CONVOLUTIONS, (nn.Linear,)):
        weights = [module.weight for module in network.modules() if isinstance(module, kind)]
        held[kind] = sum(weight.numel() for weight in weights if isinstance(weight, Tensor))
    kinds = max(held, key=held.__getitem__)  # of equals the convolutions
    inside = {id(m.out_proj) for m in network.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, module in network.named_modules():
        if (
            isinstance(module, kinds)
            and name != head
            and getattr(module, "groups", 1) == 1
            and id(module) not in inside
        ):
            yield name


def _means(part: str, layer: str) -> bool:
    """Whether ``part`` is the layer's name or its end, as "fc1" of "blocks.0.fc1"."""
    return layer == part or layer.endswith(f".{part}")


def _adapters(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name -> layer of those that have an adapter."""
    return ((name, module) for name, module in network.named_modules() if hasattr(module, "lora_B"))


def _draw(weight: Tensor, seed: int, name: str) -> None:
    """Fill A, whose rows are the weight's first axis, with orthonormal rows; in float64, so that machines agree."""
    rows, columns = len(weight), weight[0].numel()
    if columns < rows:
        raise UserError(f"tune_rank: expected at most {columns} for layer {name}, got {rows}")
    drawn = torch.randn(columns, rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q, r = torch.linalg.qr(drawn)
    with torch.no_grad():
        weight.copy_((q * r.diagonal().sign()).T.reshape(weight.shape))


def _freeze(network: nn.Module, trained: Collection[str]) -> None:
    """Keep what is not ``trained``, and statistics of what does not train, out of state dicts."""
    shared = {id(p) for name, p in network.named_parameters(remove_duplicate=False) if name in trained}
    body = list[nn.Module]()
    for name, module in network.named_modules():
        begin = f"{name}." if name else ""
        own = dict(module.named_parameters(recurse=False))
        if any(begin + key in trained for key in own):
            continue  # its statistics move and travel
        if tied := [begin + key for key, value in own.items() if id(value) in shared]:
            raise UserError(f"tune: expected layers of their own, got {tied[0]}, which is another layer's that trains")
        stay = [key for key, _ in module.named_buffers(recurse=False) if key not in module._non_persistent_buffers_set]
        setattr(module, FROZEN, {key: key in own for key in [*own, *stay]})
        for key, value in own.items():
            del module._parameters[key]
            module.register_buffer(key, value.requires_grad_(False).detach(), persistent=False)
        module._non_persistent_buffers_set.update(stay)
        setattr(module, LOADS, _load_nothing)  # batch normalisation would ask for a count that is not there
        if not any(one.startswith(begin) for one in trained):
            body.append(module)
    setattr(network, BODY, body)
    network.requires_grad_(True)  # peft leaves it off at the last layer
    network.register_forward_pre_hook(_still)


def _load_nothing(*arguments: Any) -> None:
    """A frozen module has no entries in a state dict."""


def _still(network: nn.Module, arguments: Any) -> None:
    """Before each pass: modules of the body compute as in evaluation."""
    for module in getattr(network, BODY, ()):
        module.training = False
