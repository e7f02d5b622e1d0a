# SPDX-License-Identifier: Apache-2.0
"""How a site computes: device, memory layout, compiler, number format of training passes, batches that do not fit."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from fairflare.core.errors import UserError
from fairflare.core.findings import Finding

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Iterable[torch.Tensor]")
N = TypeVar("N", bound="torch.nn.Module")
Precision = Literal["auto", "float32", "bfloat16"]
Layout = Literal["auto", "contiguous", "channels_last"]
Compiler = Literal["none", "inductor", "cudagraphs"]
LossOf = Callable[["torch.Tensor", slice], "torch.Tensor"]
"""Outputs of some rows and the rows -> their part of the batch's loss; the parts add up to it."""
KEEP = {-1: 2**28, -3: 2**25}
"""glibc's M_TRIM_THRESHOLD, and M_MMAP_THRESHOLD at its largest: bytes."""
GIVE_BACK = {-3: 2**19, -8: 2}
"""M_MMAP_THRESHOLD: blocks of this size are pages of their own; M_ARENA_MAX: heaps that threads share."""
OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")
"""Environment variables that say the same of a process."""
WIDEST = 128
"""Channels of a convolution up to which a CPU is faster with channels last: wider ones outweigh what pooling saves."""
LEAST = 2
"""Examples of a pass: BatchNorm cannot train on one."""


def no_grad(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` under ``torch.no_grad``, which is asked for when the function is called: PyTorch may come later."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


@dataclass
class Execution:
    """A site's own way of computing; what is computed is the job's.

    Attributes:
        precision: of training passes: "bfloat16" runs them under autocast; "auto" does so on GPUs that have it. Probes
            and evaluation always compute in the network's own precision.
        micro_batch: the most examples of one training pass; None: a whole batch. Halved when memory runs out.
        layout: of images and convolutions in memory: "auto" is channels_last on a GPU, on a CPU where ``is_narrow``
            says so of the network, and else as the network has it. Another layout rounds otherwise.
        compiler: backend of ``torch.compile`` for training passes; rounds otherwise, too.
        beside: further devices, of the same type: each training batch is shared out among all. The gradient is that of
            the batch, rounded otherwise; BatchNorm sees each device's share, and keeps the statistics of the first's.
            Networks with hooks stay on ``device``.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "float32"
    micro_batch: int | None = None
    layout: Layout = "auto"
    compiler: str = "none"
    beside: tuple[torch.device, ...] = ()

    def __post_init__(self) -> None:
        self._compiled: tuple[torch.nn.Module, Callable[..., Any]] | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def memory_format(self) -> torch.memory_format:
        """The layout of images and convolutions; preserve_format: as the network and the data have it."""
        if self.layout == "auto":
            return torch.channels_last if self.on_gpu else torch.preserve_format
        return torch.channels_last if self.layout == "channels_last" else torch.contiguous_format

    def place(self, network: torch.nn.Module) -> None:
        """Move ``network`` to the device and its convolutions to the layout, where they are not there yet."""
        wanted, keeps = self.memory_format, torch.preserve_format
        tensors = list(chain(network.parameters(), network.buffers()))
        images = [tensor for tensor in tensors if tensor.dim() == 4]
        if images and wanted == keeps and is_narrow(network):
            wanted = torch.channels_last
        placed = all(tensor.device == self.device for tensor in tensors)
        if not placed or not all(wanted == keeps or tensor.is_contiguous(memory_format=wanted) for tensor in images):
            network.to(self.device)
            if wanted != keeps:
                network.to(memory_format=wanted)  # type: ignore[call-overload]  # torch's stubs lack it

    def backward(self, network: torch.nn.Module, inputs: torch.Tensor, loss_of: LossOf) -> torch.Tensor:
        """Add the gradient of a batch's loss to the parameters' gradients, in as many passes as memory needs.

        After an out-of-memory error the gradients are cleared and the batch is tried once more in passes of half the
        size, which later batches keep. BatchNorm then sees smaller batches.

        Args:
            network: in training mode, its gradients cleared.
            inputs: (N, ...) on the device.

        Returns:
            The batch's loss, detached.

        Raises:
            torch.OutOfMemoryError: it did not fit twice, or there is nothing left to halve.
        """
        try:
            return self._passes(network, inputs, loss_of)
        except torch.OutOfMemoryError:
            size = min(self.micro_batch or len(inputs), -(-len(inputs) // len(self._runners(network))))
            if size < 2 * LEAST:
                raise
        # Out of the handler, whose traceback would keep the failed pass in memory.
        self.micro_batch = size // 2
        network.zero_grad(set_to_none=True)
        if self.on_gpu:
            torch.cuda.empty_cache()
        return self._passes(network, inputs, loss_of)

    def fits(self, network: torch.nn.Module, inputs: torch.Tensor, loss_of: LossOf) -> bool:
        """Whether one training pass over ``inputs`` fits into memory; leaves no gradients."""
        try:
            self._passes(network.train(), inputs, loss_of)
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            network.zero_grad(set_to_none=True)

    def _passes(self, network: torch.nn.Module, inputs: torch.Tensor, loss_of: LossOf) -> torch.Tensor:
        rows = slice(0, inputs.shape[0])
        if self.device.type == "cpu" and self.compiler == "none" and not self.beside and not self.micro_batch:
            # The same engine without the checks in Python, which cost a small model a quarter of its pass.
            loss = self._loss(network, inputs, loss_of, rows)
            torch.autograd.Variable._execution_engine.run_backward(
                (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
            return loss.detach()
        losses, runners = [], self._runners(network)
        parts = self._parts(rows.stop, len(runners))
        for start in range(0, len(parts), len(runners)):
            # All devices compute forward before the first one computes backward.
            some = [self._loss(runner, inputs, loss_of, rows) for runner, rows in zip(runners, parts[start:])]
            torch.autograd.backward(some)
            losses += [loss.detach() for loss in some]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _loss(self, runner: Callable[..., Any], inputs: torch.Tensor, loss_of: LossOf, rows: slice) -> torch.Tensor:
        half = self.precision == "bfloat16"
        if self.precision == "auto":
            half = self.on_gpu and torch.cuda.is_bf16_supported()
        some = inputs if rows == slice(0, inputs.shape[0]) else inputs[rows]
        if some.dim() == 4 and self.memory_format != torch.preserve_format:
            some = some.contiguous(memory_format=self.memory_format)
        with torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext():
            outputs = runner(some)
        return loss_of(outputs.float() if outputs.dtype == torch.bfloat16 else outputs, rows)

    def _parts(self, n: int, fewest: int = 1) -> list[slice]:
        """Rows of each pass: equal shares, none of them a single example, where possible so many."""
        most = self.micro_batch or n
        parts = max(1, min(max(-(-n // most), fewest), n // LEAST))
        edges = [k * n // parts for k in range(parts + 1)]
        return [slice(a, b) for a, b in zip(edges, edges[1:])]

    def _runners(self, network: torch.nn.Module) -> list[Callable[..., Any]]:
        """Inputs to outputs, both on ``device``, for each device that takes a part of a batch."""
        hooks = (module._forward_hooks or module._forward_pre_hooks for module in network.modules())
        # Compiled code calls no hooks, and what they see elsewhere would lie on different devices.
        if (self.beside or self.compiler != "none") and any(hooks):
            return [network]
        runner: Callable[..., Any] = network
        if self.compiler != "none":
            self._compiled = self._compiled or (network, torch.compile(network, backend=self.compiler))
            runner = self._compiled[1] if self._compiled[0] is network else network
        return [runner, *(partial(_elsewhere, network, self.device, other) for other in self.beside)]


def is_narrow(network: torch.nn.Module) -> bool:
    """Whether a CPU computes ``network`` in channels last.

    A rule of layers and shapes, so that all machines round alike: it has 2D convolutions, none of more than ``WIDEST``
    channels, and no instance normalisation, which is slower so.
    """
    sizes = [max(p.shape[:2]) for p in network.parameters() if p.dim() == 4]
    slow = torch.nn.modules.instancenorm._InstanceNorm
    return bool(sizes) and max(sizes) <= WIDEST and not any(isinstance(module, slow) for module in network.modules())


def placed(network: N, device: torch.device) -> N:
    """``network`` itself, moved to ``device`` and laid out as a site without wishes of its own has it."""
    Execution(device).place(network)
    return network


def plainly(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the CPU: what leaves a network is summed in the same order wherever it has been."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _elsewhere(
    network: torch.nn.Module, home: torch.device, device: torch.device, inputs: torch.Tensor
) -> torch.Tensor:
    """The network's outputs as computed on ``device``, from copies of its weights: gradients come back through them.

    What the network changes in its buffers is lost with the copies.
    """
    from torch.func import functional_call

    entries = chain(network.named_parameters(), network.named_buffers())
    copies = {name: entry.to(device, non_blocking=True, copy=True) for name, entry in entries}
    outputs: torch.Tensor = functional_call(network, copies, (inputs.to(device, non_blocking=True),))
    return outputs.to(home, non_blocking=True)


WRAPPED = ("step", "add_param_group", "state_dict", "load_state_dict")
"""Methods of optimizers that import ``torch._dynamo`` when they are first called, to tell a compiler that there may be
to leave them alone: 1.3 CPU seconds in every process that trains, and a look for it at every step."""


@functools.cache
def eager(cls: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """torch's optimizer ``cls`` without what its methods are wrapped in: the same arithmetic and the same state."""
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(cls, name)) for name in WRAPPED}
    methods["step"] = torch.no_grad()(methods["step"])  # as the wrapper has it
    methods["step"].hooked = True  # nor in a profiler's mark, which costs a small model's step a tenth
    methods["zero_grad"] = _clear
    return type(cls.__name__, (cls,), methods)


def _clear(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    """``zero_grad`` without a profiler's mark."""
    for group in self.param_groups:
        for parameter in group["params"]:
            parameter.grad = None if set_to_none or parameter.grad is None else parameter.grad.detach().zero_()


def memory_findings(
    execution: Execution,
    network: torch.nn.Module,
    batch: Any,
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> list[Finding]:
    """A warning where one training pass over ``batch`` does not fit into the GPU; without a GPU nothing is tried."""
    if not execution.on_gpu or execution.fits(network, batch.inputs, lambda out, rows: objective(out, batch.targets)):
        return []
    n = len(batch.targets)
    return [Finding("warning", "gpu_memory", "train", n, f"a batch of {n} does not fit; it is trained on in parts")]


def shared_gpu(place: int) -> int | None:
    """Which GPU is the turn of the process or site number ``place`` on this machine; None where there is none."""
    return place % torch.cuda.device_count() if torch.cuda.is_available() else None


def default_device(gpu: int | None = None) -> torch.device:
    """GPU number ``gpu``, the first one when None, or the CPU where there is none; UserError when there are fewer."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if (gpu or 0) >= torch.cuda.device_count():
        raise UserError(f"gpu: expected a number below {torch.cuda.device_count()}, got {gpu}")
    return torch.device(f"cuda:{gpu or 0}")


def ahead(batches: Iterator[T], device: torch.device) -> Iterator[T]:
    """``batches``, each made while the device still computes on the one before: on a GPU, in a stream of their own.

    Args:
        device: where the network computes; nothing is made ahead where it is no GPU.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # what it reads may have been made there
    with torch.cuda.stream(stream):
        batch = next(batches, None)
    while batch is not None:
        torch.cuda.current_stream(device).wait_stream(stream)
        for tensor in batch:
            if tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(device))
        yield batch
        with torch.cuda.stream(stream):
            batch = next(batches, None)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` on ``device``; towards a GPU through pinned memory, so that the host does not wait for the copy."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def keep_freed_memory() -> bool:
    """Let the C library, where it is glibc, keep up to 256 MiB of freed memory for the next step; whether it does.

    Without this, the gradients and activations of every step are pages that the kernel takes back and clears anew: 5 %
    of a ResNet-18's step on a CPU, and more of GSAM's, which holds two gradients. Whoever has set glibc's own variables
    for this is obeyed.
    """
    return _set_malloc(KEEP)


def give_back_freed_memory() -> bool:
    """Let the C library, where it is glibc, give every freed block of 512 KiB or more back at once; whether it does.

    For a server that carries models: what its transport's threads have freed would else stay in each thread's heap.
    Whoever has set glibc's own variables for this is obeyed.
    """
    return _set_malloc(GIVE_BACK)


def _set_malloc(options: Mapping[int, int]) -> bool:
    if any(name in os.environ for name in OF_THE_USER):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, another system
        return False
    return all(mallopt(option, value) == 1 for option, value in options.items())
