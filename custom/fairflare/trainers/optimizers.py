# SPDX-License-Identifier: Apache-2.0
"""PyTorch's optimizers without its compiler.

Methods of ``torch.optim``'s classes import ``torch._dynamo`` when they are first called, to tell a compiler that there
may be to leave them alone: 1.3 CPU seconds in every process that trains, and a look for it at every step.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch

WRAPPED = ("step", "zero_grad", "add_param_group", "state_dict", "load_state_dict")
"""The methods that do so."""
T = TypeVar("T", bound=torch.optim.Optimizer)


def eager(cls: type[T]) -> type[T]:
    """The optimizer ``cls`` without what its methods are wrapped in: the same arithmetic and the same state.

    Args:
        cls: a class of ``torch.optim`` whose ``differentiable`` stays off, as it is by default.
    """
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(cls, name)) for name in WRAPPED}
    methods["step"] = torch.no_grad()(methods["step"])  # as the wrapper has it
    return type(cls.__name__, (cls,), methods)


Adam, SGD = eager(torch.optim.Adam), eager(torch.optim.SGD)
