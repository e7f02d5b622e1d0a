# SPDX-License-Identifier: Apache-2.0
"""MONAI's networks that a job may name: a closed list of classes, each with its own list of plain arguments.

A configuration comes from whoever submits a job. The modules of ``monai.networks.nets`` hold much besides networks,
even functions that download and unpickle a file, so nothing there is found by name: what is not in ``NETWORKS`` cannot
be asked for. No argument takes a path, a URL, a module or a callable, and pretrained weights are always off.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks

from fairflare.core.errors import UserError
from fairflare.core.validation import expected, shown, unlisted

LIBRARY = "monai.networks.nets"
LARGEST = 150_000_000
"""Numbers that a network may hold, parameters and buffers together: 600 MB as float32, above every default below."""


@dataclass(frozen=True)
class Kind:
    """What an argument may be: in words, and as a test of a JSON value."""

    expected: str
    fits: Callable[[Any], bool]


def whole(least: int, most: int) -> Kind:
    return Kind(f"a whole number from {least} to {most}", lambda v: type(v) is int and least <= v <= most)


def number(least: float, most: float) -> Kind:
    def fits(value: Any) -> bool:
        return type(value) in (int, float) and least <= value <= most and math.isfinite(value)

    return Kind(f"a number from {least:g} to {most:g}", fits)


def one_of(*values: Any) -> Kind:
    """One of ``values``; True is not 1."""
    known = [(type(value), value) for value in values]
    return Kind(f"one of {', '.join(map(repr, values))}", lambda v: (type(v), v) in known)


def many(each: Kind, most: int, least: int = 1) -> Kind:
    """A list of ``least`` to ``most`` values of one kind."""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and least <= len(value) <= most and all(map(each.fits, value))

    return Kind(f"a list of {least} to {most}, each {each.expected}", fits)


def either(*kinds: Kind) -> Kind:
    return Kind(" or ".join(kind.expected for kind in kinds), lambda v: any(kind.fits(v) for kind in kinds))


def named(**known: Mapping[str, Kind]) -> Kind:
    """A layer's name in any case, alone or as [name, {argument: value}] with the arguments of ``known``."""

    def fits(value: Any) -> bool:
        name, given = value if isinstance(value, list) and len(value) == 2 else (value, {})
        kinds = known.get(name.lower()) if isinstance(name, str) else None
        if kinds is None or not isinstance(given, dict):
            return False
        return all(key in kinds and kinds[key].fits(one) for key, one in given.items())

    keys = sorted({key for kinds in known.values() for key in kinds})
    return Kind(f"one of {', '.join(known)}, or [name, {{...}}] with {', '.join(keys)}", fits)


def as_monai(value: Any) -> Any:
    """A JSON value with tuples in place of lists."""
    return tuple(map(as_monai, value)) if isinstance(value, list) else value


FLAG, NOTHING = one_of(True, False), one_of(None)
DIMENSIONS, CHANNELS, DEPTH = whole(1, 3), whole(1, 2048), whole(1, 64)
RATE = number(0, 0.95)
KERNEL = either(whole(1, 9), many(whole(1, 9), 3))
STRIDE = either(whole(1, 8), many(whole(1, 8), 3))
WIDTHS, DEPTHS = many(CHANNELS, 8), many(DEPTH, 8)
EDGES = either(whole(1, 1024), many(whole(1, 1024), 3))
SHAPE = many(whole(1, 4096), 4)
RUNNING = {"eps": number(1e-12, 1), "momentum": number(0, 1), "affine": FLAG}
NORM = named(
    batch=RUNNING, instance=RUNNING, group={"num_groups": whole(1, 256), "eps": number(1e-12, 1), "affine": FLAG}
)
SLOPE = {"negative_slope": number(0, 1), "inplace": FLAG}
INPLACE = {"inplace": FLAG}
ACT = named(
    **dict.fromkeys(("relu", "relu6", "selu", "mish"), INPLACE),
    **dict.fromkeys(("gelu", "sigmoid", "tanh", "softplus", "swish", "memswish"), {}),
    elu={"alpha": number(0, 10), **INPLACE},
    leakyrelu=SLOPE,
    prelu={"init": number(0, 1)},
)
ORDER = one_of("NDA", "NAD", "DNA", "DAN", "ADN", "AND", "NA", "AN", "DA", "AD", "ND", "DN", "N", "D", "A")
OFF = one_of(False)


def each(names: str, kind: Kind) -> dict[str, Kind]:
    """Every one of the arguments ``names``, separated by blanks, is of one kind."""
    return dict.fromkeys(names.split(), kind)


MAYBE = either(RATE, NOTHING)
PLAIN = {"spatial_dims": DIMENSIONS, **each("in_channels out_channels", CHANNELS)}
CLASSES = {"spatial_dims": DIMENSIONS, **each("in_channels num_classes", CHANNELS)}
LAYERS = {"act": ACT, "norm": NORM}
STAGES = {"channels": WIDTHS, "strides": many(STRIDE, 8), "kernel_size": KERNEL, "dropout": MAYBE}
UPSAMPLE = one_of("deconv", "pixelshuffle", "nontrainable")
DENSE = {**PLAIN, **LAYERS, "init_features": whole(1, 512), "growth_rate": whole(1, 256), "block_config": DEPTHS}
DENSE |= {"bn_size": whole(1, 16), "dropout_prob": RATE}
SQUEEZE = {**CLASSES, "layers": many(DEPTH, 4, 4), **each("groups reduction", whole(1, 64)), "inplanes": whole(1, 512)}
SQUEEZE |= {"downsample_kernel_size": whole(1, 7), "dropout_prob": MAYBE, "input_3x3": FLAG}
UNET = {**PLAIN, **LAYERS, **STAGES, "up_kernel_size": KERNEL, "num_res_units": whole(0, 8), "bias": FLAG}
SEGRES = {**PLAIN, **LAYERS, "init_filters": whole(1, 512), **each("blocks_down blocks_up", DEPTHS)}
SEGRES |= {"upsample_mode": UPSAMPLE}
CLASSIFIER = {"in_shape": SHAPE, **LAYERS, **STAGES, "num_res_units": whole(0, 8), "bias": FLAG}
ATTENTION = {**PLAIN, "norm_name": NORM, "spatial_dims": one_of(2, 3), "qkv_bias": FLAG}
BACKBONES = [f"efficientnet-b{k}" for k in range(9)]
RESNETS = [f"resnet{n}" for n in (10, 18, 34, 50, 101, 152, 200)]
SENETS = ("SENet154", "SEResNet50", "SEResNet101", "SEResNet152", "SEResNext50", "SEResNext101")
HIDDEN = whole(1, 8192)

NETWORKS: dict[str, tuple[str, dict[str, Kind]]] = {
    "AttentionUnet": ("attentionunet", {**PLAIN, **STAGES, "dropout": RATE, "up_kernel_size": KERNEL}),
    "BasicUNet": (
        "basic_unet",
        {**PLAIN, **LAYERS, "upsample": UPSAMPLE, "features": many(CHANNELS, 6, 6), "bias": FLAG, "dropout": RATE},
    ),
    "Classifier": (
        "classifier",
        {**CLASSIFIER, "classes": CHANNELS, "last_act": either(one_of("sigmoid", "softmax", "tanh"), NOTHING)},
    ),
    "DenseNet": ("densenet", DENSE),
    **{f"DenseNet{n}": ("densenet", {**DENSE, "pretrained": OFF}) for n in (121, 169, 201, 264)},
    "DynUNet": (
        "dynunet",
        {**PLAIN, **each("kernel_size upsample_kernel_size", many(KERNEL, 8)), "strides": many(STRIDE, 8)}
        | {"filters": WIDTHS, "dropout": MAYBE, "norm_name": NORM, "act_name": ACT}
        | each("res_block trans_bias", FLAG),
    ),
    "EfficientNetBN": (
        "efficientnet",
        {**CLASSES, "model_name": one_of(*BACKBONES), "norm": NORM, "adv_prop": FLAG, "pretrained": OFF},
    ),
    "FlexibleUNet": (
        "flexible_unet",
        {**PLAIN, **LAYERS, "backbone": one_of(*BACKBONES, *RESNETS), "decoder_channels": many(whole(1, 1024), 5, 5)}
        | {"dropout": RATE, "upsample": UPSAMPLE, **each("decoder_bias is_pad", FLAG), "pretrained": OFF}
        | {"interp_mode": one_of("nearest", "linear", "bilinear", "bicubic", "trilinear")},
    ),
    "FullyConnectedNet": (
        "fullyconnectednet",
        {**each("in_channels out_channels", HIDDEN), "hidden_channels": many(HIDDEN, 16), "dropout": MAYBE}
        | {"act": ACT, "bias": FLAG, "adn_ordering": ORDER},
    ),
    "HighResNet": (
        "highresnet",
        {**PLAIN, "norm_type": NORM, "acti_type": ACT, "dropout_prob": RATE, "bias": FLAG}
        | {"channel_matching": one_of("pad", "project")},
    ),
    "Regressor": ("regressor", {**CLASSIFIER, "out_shape": SHAPE}),
    "ResNet": (
        "resnet",
        {"block": one_of("basic", "bottleneck"), "layers": many(DEPTH, 4, 4), "block_inplanes": many(CHANNELS, 4, 4)}
        | {"spatial_dims": DIMENSIONS, **each("n_input_channels num_classes", CHANNELS)}
        | {"conv1_t_size": KERNEL, "conv1_t_stride": STRIDE, "shortcut_type": one_of("A", "B")}
        | {"widen_factor": number(0.05, 4), **each("no_max_pool bias_downsample", FLAG), **LAYERS},
    ),
    **{name: ("senet", {**SQUEEZE, "pretrained": OFF}) for name in SENETS},
    "SegResNet": ("segresnet", {**SEGRES, "dropout_prob": MAYBE, "use_conv_final": FLAG}),
    "SegResNetDS": ("segresnet_ds", SEGRES),
    "SwinUNETR": (
        "swin_unetr",
        {**ATTENTION, "patch_size": whole(1, 8), "depths": many(whole(1, 24), 4, 4), "mlp_ratio": number(0.1, 8)}
        | {"num_heads": many(whole(1, 64), 4, 4), "window_size": either(whole(1, 12), many(whole(1, 12), 3))}
        | {"feature_size": whole(12, 192), **each("drop_rate attn_drop_rate dropout_path_rate", RATE)}
        | {**each("normalize patch_norm use_checkpoint use_v2", FLAG), "downsample": one_of("merging", "mergingv2")},
    ),
    "UNETR": (
        "unetr",
        {**ATTENTION, "img_size": EDGES, "feature_size": whole(1, 256), "hidden_size": whole(8, 1536)}
        | {"mlp_dim": whole(8, 6144), "num_heads": whole(1, 64), "proj_type": one_of("conv", "perceptron")}
        | {**each("conv_block res_block", FLAG), "dropout_rate": RATE},
    ),
    "UNet": ("unet", {**UNET, "dropout": RATE, "adn_ordering": ORDER}),
    "VNet": (
        "vnet",
        {**PLAIN, "act": ACT, "dropout_prob_down": MAYBE, "dropout_prob_up": many(RATE, 2, 2)}
        | {"dropout_dim": DIMENSIONS, "bias": FLAG},
    ),
}
"""Class -> the module that defines it below ``LIBRARY``, and the arguments that it may be given."""


def is_listed(dotted: str) -> bool:
    """Whether ``dotted`` is in MONAI's name space, which this list alone decides about."""
    return dotted.split(".")[0] == LIBRARY.split(".")[0]


def checked(dotted: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name in ``NETWORKS`` and arguments as the class takes them; nothing is imported.

    Raises:
        UserError: ``dotted`` is not on the list, or an argument is unknown or out of range.
    """
    name = dotted.rpartition(".")[2]
    file, kinds = NETWORKS.get(name, ("", {}))
    if not file or dotted not in (f"{LIBRARY}.{name}", f"{LIBRARY}.{file}.{name}"):
        known = ", ".join(NETWORKS)
        raise UserError(f"model: expected a network that {LIBRARY} defines, got {shown(dotted)}; known: {known}")
    taken = {}
    for key, value in args.items():
        if key not in kinds:
            raise UserError(f"model: {name}: {unlisted('argument', key, kinds)}")
        expected(f"model: {name}: {key}", kinds[key].fits(value), kinds[key].expected, value)
        taken[key] = as_monai(value)
    return name, taken | ({"pretrained": False} if "pretrained" in kinds else {})


def build(dotted: str, args: Mapping[str, Any]) -> nn.Module:
    """The network ``dotted`` with ``args``; weights come from torch's global generator.

    Raises:
        UserError: see ``checked``; or it would hold more than ``LARGEST`` numbers.
        Exception: MONAI's own, where the arguments do not fit together.
    """
    name, taken = checked(dotted, args)
    module = importlib.import_module(f"{LIBRARY}.{NETWORKS[name][0]}")
    cls = getattr(module, name, None)
    if not (inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__ == module.__name__):
        raise UserError(f"model: {name} is no network of the MONAI that is installed here")
    with _counted(name):
        return cls(**taken)


@contextmanager
def _counted(name: str) -> Iterator[None]:
    """Stop a construction at ``LARGEST`` numbers: torch tells of each tensor before it is filled."""
    held = 0

    def count(module: nn.Module, key: str, tensor: Tensor | None) -> None:
        nonlocal held
        held += 0 if tensor is None else tensor.numel()
        if held > LARGEST:
            raise UserError(f"model: {name}: expected at most {LARGEST:,} parameters, got more")

    with ExitStack() as held_hooks:
        held_hooks.callback(hooks.register_module_parameter_registration_hook(count).remove)
        held_hooks.callback(hooks.register_module_buffer_registration_hook(count).remove)
        yield
