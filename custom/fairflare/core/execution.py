# SPDX-License-Identifier: Apache-2.0
"""How a site computes: device, memory layout, number format of training passes, and batches that do not fit."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairflare.core.errors import UserError
from fairflare.core.findings import Finding

Precision = Literal["auto", "float32", "bfloat16"]
MALLOC = {-1: 2**28, -3: 2**25}
"""glibc's M_TRIM_THRESHOLD, and M_MMAP_THRESHOLD at its largest: bytes."""
LEAST = 2
"""Examples of a pass: BatchNorm cannot train on one."""


@dataclass
class Execution:
    """A site's own way of computing; what is computed is the job's.

    Attributes:
        device: where the network lives.
        precision: of training passes: "bfloat16" runs them under autocast; "auto" does so on GPUs that have it. Probes
            and evaluation always compute in the network's own precision.
        micro_batch: the most examples of one training pass; None: a whole batch. Halved when memory runs out.
    """

    device: torch.device = torch.device("cpu")
    precision: Precision = "float32"
    micro_batch: int | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA GPU."""
        return self.device.type == "cuda"

    def place(self, network: nn.Module) -> None:
        """Move ``network`` to the device, on a GPU in the channels-last layout that its convolutions are fastest in."""
        there = all(tensor.device == self.device for tensor in chain(network.parameters(), network.buffers()))
        if there and not self.on_gpu:
            return
        network.to(self.device)
        if self.on_gpu:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it

    def backward(self, network: nn.Module, inputs: Tensor, loss_of: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Add the gradient of a batch's loss to the parameters' gradients, in as many passes as memory needs.

        After an out-of-memory error the gradients are cleared and the batch is tried once more in passes of half the
        size, which later batches keep. BatchNorm then sees smaller batches.

        Args:
            network: in training mode, its gradients cleared.
            inputs: (N, ...) on the device.
            loss_of: outputs of some rows and the rows -> their part of the batch's loss; the parts add up to it.

        Returns:
            The batch's loss, detached.

        Raises:
            torch.OutOfMemoryError: it did not fit twice, or there is nothing left to halve.
        """
        try:
            return self._passes(network, inputs, loss_of)
        except torch.OutOfMemoryError:
            size = min(self.micro_batch or len(inputs), len(inputs))
            if size < 2 * LEAST:
                raise
        # Out of the handler, whose traceback would keep the failed pass in memory.
        self.micro_batch = size // 2
        network.zero_grad(set_to_none=True)
        if self.on_gpu:
            torch.cuda.empty_cache()
        return self._passes(network, inputs, loss_of)

    def fits(self, network: nn.Module, inputs: Tensor, loss_of: Callable[[Tensor, slice], Tensor]) -> bool:
        """Whether one training pass over ``inputs`` fits into memory; leaves no gradients."""
        try:
            self._passes(network.train(), inputs, loss_of)
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            network.zero_grad(set_to_none=True)

    def _passes(self, network: nn.Module, inputs: Tensor, loss_of: Callable[[Tensor, slice], Tensor]) -> Tensor:
        losses = []
        for rows in self._parts(len(inputs)):
            with torch.autocast(self.device.type, torch.bfloat16) if self._is_half else nullcontext():
                outputs = network(self._laid_out(inputs[rows]))
            loss = loss_of(outputs.float() if outputs.dtype == torch.bfloat16 else outputs, rows)
            loss.backward()
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _parts(self, n: int) -> list[slice]:
        """Rows of each pass: equal shares, none of them a single example."""
        most = self.micro_batch or n
        parts = max(1, min(-(-n // most), n // LEAST))
        edges = [k * n // parts for k in range(parts + 1)]
        return [slice(a, b) for a, b in zip(edges, edges[1:])]

    def _laid_out(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=torch.channels_last) if self.on_gpu and inputs.dim() == 4 else inputs

    @property
    def _is_half(self) -> bool:
        if self.precision == "auto":
            return self.on_gpu and torch.cuda.is_bf16_supported()
        return self.precision == "bfloat16"


def memory_findings(
    execution: Execution, network: nn.Module, batch: Any, objective: Callable[[Tensor, Tensor], Tensor]
) -> list[Finding]:
    """A warning where one training pass over ``batch`` does not fit into the GPU; without a GPU nothing is tried."""
    if not execution.on_gpu or execution.fits(network, batch.inputs, lambda out, rows: objective(out, batch.targets)):
        return []
    n = len(batch.targets)
    return [Finding("warning", "gpu_memory", "train", n, f"a batch of {n} does not fit; it is trained on in parts")]


def default_device(gpu: int | None = None) -> torch.device:
    """GPU number ``gpu``, the first one when None, or the CPU where there is none; UserError when there are fewer."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if (gpu or 0) >= torch.cuda.device_count():
        raise UserError(f"gpu: expected a number below {torch.cuda.device_count()}, got {gpu}")
    return torch.device(f"cuda:{gpu or 0}")


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; towards a GPU through pinned memory, so that the host does not wait for the copy."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def keep_freed_memory() -> bool:
    """Let the C library, where it is glibc, keep up to 256 MiB of freed memory for the next step; whether it does.

    Without this, the gradients and activations of every step are pages that the kernel takes back and clears anew: 5 %
    of a ResNet-18's step on a CPU, and more of GSAM's, which holds two gradients. Whoever has set glibc's own variables
    (``MALLOC_...``) is obeyed.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, another system
        return False
    return all(mallopt(option, value) == 1 for option, value in MALLOC.items())
