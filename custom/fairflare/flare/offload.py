# SPDX-License-Identifier: Apache-2.0
"""Sites' tensors on the server's disk: FLARE writes them there as they arrive, and they are read one at a time.

The switch is two values in the FOBS context of the cell that receives results; the simulator has a second such cell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR as ROOT
from nvflare.app_opt.pt.lazy_tensor_dict import _LazyRef as LazyRef
from nvflare.fuel.utils.fobs import FOBSContextKey
from safetensors import SafetensorError, safe_open

from fairflare.core.lazy_tensors import Stored
from fairflare.core.schema import Answer, answer_fields
from fairflare.core.tensor_files import DTYPES


@contextlib.contextmanager
def offloaded(engine: Any, folder: Path) -> Iterator[Path]:
    """Have FLARE write the tensors that arrive below a new folder in ``folder``, which goes when this ends.

    FLARE's own ``setup_tensor_disk_offload`` takes the system's temporary folder, which may lie in memory and is not
    cleared when a process is killed, and knows one cell.
    """
    root = Path(tempfile.mkdtemp(prefix="updates_", dir=folder))
    cells = _receiving(engine)
    before = [_switch(cell) for cell in cells]
    try:
        for cell in cells:
            cell.update_fobs_context({FOBSContextKey.TENSOR_DISK_OFFLOAD: True, ROOT: str(root)})
        yield root
    finally:
        for cell, values in zip(cells, before, strict=True):
            cell.update_fobs_context(values)
        shutil.rmtree(root, ignore_errors=True)


def _switch(cell: Any) -> dict[str, Any]:
    """A cell's present values of what switches this on."""
    context = cell.get_fobs_context()
    return {key: context.get(key) for key in (FOBSContextKey.TENSOR_DISK_OFFLOAD, ROOT)}


def _receiving(engine: Any) -> list[Any]:
    """The cells that results may arrive at."""
    own = getattr(getattr(engine, "run_manager", None), "cell", None) or engine.get_cell()
    of_simulator = getattr(getattr(engine, "server", None), "job_cell", None)
    return [cell for cell in (own, of_simulator) if cell is not None]


def in_files(answer: Answer, root: Path) -> Answer:
    """The answer with the tensors that FLARE has written below ``root`` as ``Stored``, none of them read.

    FLARE's own references know neither type nor shape. None stands in place of one that leads elsewhere or to no
    tensor, and the gate refuses that.
    """
    found: dict[str, Any] = {
        name: {key: _in_file(item, root) for key, item in value.items()}
        for name, spec in answer_fields().items()
        if spec.kind in ("update", "tensors") and isinstance(value := getattr(answer, name), Mapping)
    }
    return dataclasses.replace(answer, **found)


def _in_file(value: Any, root: Path) -> Any:
    if type(value) is not LazyRef:
        return value
    try:
        return _described(value, root)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        return None


def _described(ref: LazyRef, root: Path) -> Stored:
    """Where the one tensor of a file lies in it; raises ValueError or SafetensorError where its header is not of it.

    The site wrote that header: safetensors takes none that the file's own length does not bear out.
    """
    path = Path(ref.file_path)
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError("a file that the server did not write")
    with safe_open(path, framework="pt") as file:
        if list(file.keys()) != [ref.key]:
            raise ValueError("not one tensor")
        about = file.get_slice(ref.key)
        dtype, shape = DTYPES[about.get_dtype()], tuple(about.get_shape())
    stored = Stored(path, 0, dtype, shape, owner=ref)
    return dataclasses.replace(stored, offset=path.stat().st_size - stored.nbytes)
