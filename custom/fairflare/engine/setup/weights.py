# SPDX-License-Identifier: Apache-2.0
"""Where the initial model comes from: the seed or, as far as it fits, a file's tensors.

A configuration holds the SHA-256 of these (``init_from``), a run's folder the tensors (``initial.safetensors``), so
that it goes on without the file. Names of files are said on the command line and in ``FAIRFLARE_INIT_FROM``, for this
process and those it starts; no configuration, log or report has them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairflare.core.errors import DataError, UserError
from fairflare.core.types import StateDict
from fairflare.core.validation import SHA256, shown
from fairflare.data.site_config import SiteConfig
from fairflare.engine import files
from fairflare.engine.hashes import model_hash
from fairflare.engine.pickled import read_pickled

VARIABLE = "FAIRFLARE_INIT_FROM"
BUNDLE = Path("models", "model.pt")
"""Where a MONAI bundle keeps its weights."""
HUGGING_FACE = "model.safetensors"
INSIDE = ("state_dict", "model_state_dict", "model", "network", "net", "weights")
"""Where checkpoints keep a state dict."""
WRAPPERS = ("module.", "_orig_mod.", "model.", "network.", "net.", "backbone.")
"""What comes before an entry's name where a module has the network in it."""
SHOWN = 3
SHORT = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Origin:
    """What a run's initial model has of a file.

    Attributes:
        entries: of the network, as far as the server sends them.
        numbers: in these.
        matched: entries that the file has with the same shape.
        taken: numbers in these.
        other: entries whose shape in the file is another one, as "head.weight (10 x 128 there, 2 x 128 here)".
        missing: entries that the file does not have.
        unused: entries of the file that the network does not have.
    """

    entries: int
    numbers: int
    matched: int
    taken: int
    other: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def lines(self) -> list[str]:
        """For the screen: what matched, what starts at random, what is left."""
        share = f"{self.taken:,} of {self.numbers:,} numbers"
        found = [f"init-from: {self.matched} of the network's {self.entries} entries are in the file ({share})"]
        kept = [*self.other, *(f"{name} (not in the file)" for name in self.missing)]
        found += [f"init-from: random as without it: {_some(kept)}"] if kept else []
        return found + ([f"init-from: in the file alone, not used: {_some(self.unused)}"] if self.unused else [])


def named(value: Any) -> str:
    """What a configuration says of ``value``, a RUN, FILE or BUNDLE on this machine: its tensors' hash.

    Raises:
        UserError: it cannot be read as such, or holds numbers that are not finite.
    """
    text = str(value)
    if not text or text.lower() == "none":
        return ""
    if SHA256.fullmatch(text):  # of a configuration that was made here
        return text
    path = source_of(Path(text).expanduser())
    sha256 = model_hash(_tensors(path))
    _name(path)
    return sha256


def find(sha256: str, folder: Path | None = None) -> None:
    """Name the tensors that a run keeps in its ``folder``, for this process and those it starts."""
    if sha256 and folder is not None and files.is_file(folder / files.INITIAL):
        _name((folder / files.INITIAL).resolve())


def find_body(sha256: str, place: Path, own: SiteConfig | None) -> None:
    """Name the frozen weights at a site: its own file, or what a job has brought into the folder ``place``.

    Raises:
        DataError: there are none, or they are not those that the run's configuration names.
    """
    named_here = own.weights if own is not None else ""
    path, where = Path(named_here) if named_here else place / files.INITIAL, "weights in fairflare_site.yaml"
    if not named_here and not files.is_file(path):
        raise DataError("weights", f"{where}: expected the file of the run's weights ({sha256[:12]}), got none")
    try:
        found = model_hash(_tensors(source_of(path)))
    except UserError as error:
        raise DataError("weights", f"{where}: {error}") from None
    if found != sha256:
        raise DataError("weights", f"{where}: expected weights of SHA-256 {sha256[:12]}, got {found[:12]}")
    _name(source_of(path))


def keep(sha256: str, folder: Path) -> None:
    """Write the tensors of ``sha256`` to the run's ``folder``; nothing where there are none, or they are there."""
    if sha256 and not files.is_file(folder / files.INITIAL):
        files.save_tensors(folder / files.INITIAL, tensors_of(sha256))


def tensors_of(sha256: str) -> StateDict:
    """The tensors whose hash a configuration names; UserError where no named file has them."""
    for path in _named_files():
        with contextlib.suppress(UserError):  # another one is meant
            if files.is_file(path) and model_hash(found := _tensors(path)) == sha256:
                return found
    raise UserError("init_from: the run's initial weights are not here: expected their file with --init-from")


def start_from(sha256: str, network: nn.Module, local: Collection[str]) -> Origin:
    """Load what fits of the named tensors into ``network``.

    Args:
        local: entries that stay at the sites, which start them as they always do: no job brings them any.

    Raises:
        UserError: no entry fits.
    """
    own = {name: value for name, value in network.state_dict().items() if name not in local}
    given = tensors_of(sha256)
    library: Any = getattr(network, "network", network)
    given = library.entries_of(given) if hasattr(library, "entries_of") else given
    given = unwrapped(given, own)
    fits = {name for name in own if name in given and _fits(own[name], given[name])}
    if not any(own[name].is_floating_point() for name in fits):
        names = f"{_some(sorted(given))}; the network has {_some(list(own))}"
        raise UserError(f"init_from: no entry of the file fits the network: it has {names}")
    with torch.no_grad():
        for name in fits:
            own[name].copy_(given[name])
    return Origin(
        len(own),
        _numbers(own.values()),
        len(fits),
        _numbers(own[name] for name in fits),
        tuple(_shapes(name, given[name], own[name]) for name in own if name in given and name not in fits),
        tuple(name for name in own if name not in given),
        tuple(name for name in given if name not in own and name not in local),
    )


def unwrapped(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> StateDict:
    """``given`` under the names that most of ``own`` have: wrappers add one to all of them, as "module."."""
    best, most = dict(given), -1
    homes = {key.partition(".")[0] for key in own}  # a body alone may lack the name that it has in the network
    ways = [("", prefix) for prefix in _prefixes(given)] + [(f"{home}.", "") for home in sorted(homes)]
    for before, prefix in ways:
        names = {before + key.removeprefix(prefix): value for key, value in given.items()}
        score = sum(name in own and _fits(own[name], value) for name, value in names.items())
        if score > most:
            best, most = names, score
    return best


def source_of(path: Path) -> Path:
    """The file with the tensors: of a run's folder its final model, of a MONAI bundle its weights, else itself."""
    if not path.is_dir():
        if not path.is_file():
            raise UserError(f"init_from: no such file or folder: {path.name}")
        return path.resolve()
    if files.is_file(path / files.CONFIG) and (files.is_file(path / files.AUDIT) or files.is_file(path / files.MODEL)):
        if not files.is_file(path / files.MODEL):
            raise UserError(f"init_from: the run in {path.name} has not ended: it has no {files.MODEL}")
        return (path / files.MODEL).resolve()
    if files.is_file(path / BUNDLE):
        return (path / BUNDLE).resolve()
    if (path / "config.json").is_file() and not files.is_file(path / files.AUDIT):  # Hugging Face's
        found = [one.name for one in sorted(path.iterdir()) if one.suffix in (files.SUFFIX, ".bin", ".pt", ".h5")]
        if found != [HUGGING_FACE]:
            raise UserError(
                f"init_from: {path.name}: expected {HUGGING_FACE}, not pickled nor in parts, got {_some(found)}"
            )
        return (path / HUGGING_FACE).resolve()
    raise UserError(f"init_from: {path.name}: expected a run's folder or a MONAI bundle ({BUNDLE.as_posix()} in it)")


def _tensors(path: Path) -> StateDict:
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> StateDict:
    """A file's tensors by name; nothing in it is executed. The other arguments say which state of the file it is."""
    name = path.name
    try:
        content = files.read_tensors(path) if path.suffix.lower() == files.SUFFIX else _from_torch(path)
    except UserError as error:
        raise UserError(f"init_from: {error}") from None
    found = files.checked_model(_state_dict(content, name), f"init_from: {name}")
    found = {key: value.float() if value.dtype in SHORT else value.contiguous() for key, value in found.items()}
    if not any(value.is_floating_point() for value in found.values()):
        raise UserError(f"init_from: {name}: expected a state dict, found no weights in it")
    for key, value in found.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UserError(f"init_from: {name}: {shown(key)} holds numbers that are not finite")
    return found


def _from_torch(path: Path) -> Any:
    """What is in a file of ``torch.save``, also as torch wrote them before 1.6."""
    if path.suffix.lower() == ".onnx" or _is_program(path):
        kind = "ONNX" if path.suffix.lower() == ".onnx" else "TorchScript"
        raise UserError(f"{path.name} is a program ({kind}): expected weights, as a state dict or {files.SUFFIX}")
    if zipfile.is_zipfile(path):
        return read_pickled(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path.name}: expected weights that torch.load reads ({type(error).__name__})") from None


def _state_dict(content: Any, name: str) -> Mapping[str, Any]:
    """The entries of ``content``, or of what a checkpoint keeps them in."""
    while isinstance(content, Mapping) and not any(isinstance(value, Tensor) for value in content.values()):
        inner = next((content[key] for key in INSIDE if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise UserError(f"init_from: {name}: expected a state dict, which is tensors by name")
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def _is_program(path: Path) -> bool:
    """Whether the file is one of ``torch.jit.save`` or ``torch.export.save``, which hold code."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile):
        return False
    return "constants.pkl" in names or any(name.startswith("code/") or name.startswith("models/") for name in names)


def _prefixes(given: Mapping[str, Tensor]) -> list[str]:
    """ "", and what WRAPPERS add to some of the names, one after the other."""
    found = [""]
    for prefix in found:
        if len(prefix) < 40:
            found += [p for w in WRAPPERS if any(key.startswith(p := prefix + w) for key in given)]
    return found


def _name(path: Path) -> None:
    found = [path, *(one for one in _named_files() if one != path)]
    os.environ[VARIABLE] = os.pathsep.join(map(str, found))


def _named_files() -> list[Path]:
    return [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def _fits(own: Tensor, given: Tensor) -> bool:
    return own.shape == given.shape and own.is_floating_point() == given.is_floating_point()


def _numbers(values: Iterable[Tensor]) -> int:
    return sum(value.numel() for value in values)


def _shapes(name: str, given: Tensor, own: Tensor) -> str:
    there, here = (" x ".join(map(str, one.shape)) or "1" for one in (given, own))
    return f"{name} ({there} in the file, {here} here)" if there != here else f"{name} (another type)"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(shown(name)[1:-1] for name in names[:SHOWN]) + more
