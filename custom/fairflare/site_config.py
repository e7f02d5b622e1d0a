# SPDX-License-Identifier: Apache-2.0
"""One small file per hospital, where its data are and what it allows; it stays there and is never part of a job."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from fairflare.errors import UserError

VARIABLE = "FAIRFLARE_SITE_CONFIG"
FILES = ("fairflare_site.yaml", "fairflare_site.yml", "fairflare_site.json")


@dataclasses.dataclass(frozen=True)
class SiteConfig:
    """What a site decides for itself.

    Attributes:
        data_root: folder that holds the site's data; a relative one starts at the configuration's own folder. No path
            of the datalist may lead out of it.
        datalist: the site's datalist or table, relative to ``data_root`` and inside it.
        gpu: number of the GPU to use; None takes the first one, where there is one.
        batch_size: in place of the job's, for a smaller GPU; None keeps the job's.
        num_workers: threads that read images ahead of the training; 0 reads them when they are needed.
        cache_rate: share of the images that stay in memory once read, in [0, 1].
        min_count: the fewest examples of a group whose numbers may leave; None: none leave.
        secure_sum: True takes part in jobs with secure sums only.
        site: the site's name; the job gives it, the file does not.
    """

    data_root: str = ""
    datalist: str = ""
    gpu: int | None = None
    batch_size: int | None = None
    num_workers: int = 0
    cache_rate: float = 1.0
    min_count: int | None = 10
    secure_sum: bool = False
    site: str = ""


def find_site_config(local: Path | None = None, site: str = "") -> SiteConfig | None:
    """The configuration that ``FAIRFLARE_SITE_CONFIG`` names, or ``fairflare_site.yaml`` in ``local``; None: neither.

    Where the variable names a folder, as for trying several sites on one machine, it is ``<site>.yaml`` in there.

    Raises:
        UserError: see ``read_site_config``.
    """
    if named := os.environ.get(VARIABLE):
        path = Path(named)
        own = [path / f"{site}{suffix}" for suffix in (".yaml", ".yml", ".json")] if path.is_dir() else [path]
        found = [file for file in own if file.is_file()] or own[:1]
    else:
        found = [local / name for name in FILES if local and (local / name).is_file()]
    return dataclasses.replace(read_site_config(found[0]), site=site) if found else None


def read_site_config(path: Path) -> SiteConfig:
    """Read a YAML or JSON file.

    Raises:
        UserError: no such file, not a mapping, an unknown key (lists the known ones) or a value of another kind.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML too
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = type(error).__name__
        raise UserError(f"site configuration {path.name}: expected a YAML or JSON file ({what})") from None
    if not isinstance(content, dict):
        raise UserError(f"site configuration {path.name}: expected keys and values, got {type(content).__name__}")
    known = [field.name for field in dataclasses.fields(SiteConfig) if field.name != "site"]
    for key in content:
        if key not in known:
            raise UserError(f"site configuration {path.name}: unknown key {key!r}; known: {', '.join(known)}")
    for key, least in (("gpu", 0), ("batch_size", 2), ("num_workers", 0), ("min_count", 0)):
        _expect_number(path.name, key, content.get(key, least), least)
    share = content.get("cache_rate", 1.0)
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise UserError(f"site configuration {path.name}: cache_rate: expected a number from 0 to 1, got {share!r}")
    if type(content.get("secure_sum", False)) is not bool:
        got = content["secure_sum"]
        raise UserError(f"site configuration {path.name}: secure_sum: expected true or false, got {got!r}")
    for key in ("data_root", "datalist"):
        if not isinstance(content.get(key, ""), str):
            raise UserError(f"site configuration {path.name}: {key}: expected a path, got {content[key]!r}")
    root = content.get("data_root")
    if root and content.get("datalist"):
        home = (path.parent / root).resolve()
        if not (home / content["datalist"]).resolve().is_relative_to(home):
            got = content["datalist"]
            raise UserError(f"site configuration {path.name}: datalist: expected a path inside data_root, got {got!r}")
    return SiteConfig(**{**content, "data_root": str((path.parent / root).resolve()) if root else ""})


def stricter(own: int | None, job: int | None) -> int | None:
    """The larger of two minimum counts; None, which lets nothing leave, is the largest."""
    return None if own is None or job is None else max(own, job)


def _expect_number(file: str, key: str, value: Any, least: int) -> None:
    optional = value is None and key != "num_workers"
    if not optional and (type(value) is not int or value < least):
        raise UserError(f"site configuration {file}: {key}: expected a whole number of at least {least}, got {value!r}")
