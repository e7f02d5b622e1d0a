# SPDX-License-Identifier: Apache-2.0
"""The one list of numbers and sections, which pages, comparisons, their files and TensorBoard read.

The package's own stand in the modules of ``own``, in the order of the page; others are found in plugins
(``core.plugins``) by being there.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import TypeVar

from fairflare.core import plugins
from fairflare.core.errors import UserError
from fairflare.report.section import Quantity, Section

Known = TypeVar("Known", Quantity, Section)


def quantities() -> dict[str, Quantity]:
    """Name -> quantity, in the order of the page; UserError where two have one name."""
    found: dict[str, Quantity] = {}
    for module, one in _known(Quantity, _modules()):
        if found.setdefault(one.name, one) is not one:
            raise UserError(f"{module}: expected a new name of a quantity, got {one.name!r}")
    return found


def sections() -> dict[str, Section]:
    """Id -> section, in the order of the page."""
    return {one.id: one for _, one in _known(Section, _modules())}


def _modules() -> tuple[ModuleType, ...]:
    if plugins.files():
        from fairflare.core import registry  # loads them; a report without plugins needs no list of methods

        registry.methods()
    return (*own(), *plugins.modules())


def own() -> tuple[ModuleType, ...]:
    """Modules that hold quantities and sections, in the order of the page."""
    from fairflare.report import (
        after,
        benefit,
        chosen,
        clinical,
        coefficients,
        groups,
        membership,
        notes,
        numbers,
        personal,
        preflight,
        rounds,
        sanity_checks,
        shared_sets,
        sites,
        survival,
    )

    first = (sites, sanity_checks, coefficients, chosen, benefit, membership, personal, clinical, survival, after)
    return (*first, groups, notes, numbers, shared_sets, preflight, rounds)


@lru_cache(maxsize=8)
def _known(kind: type[Known], modules: tuple[ModuleType, ...]) -> list[tuple[str, Known]]:
    """Each with its module's name, once."""
    held = [
        (module.__name__, one)
        for module in modules
        for value in vars(module).values()
        for one in (value if isinstance(value, tuple) else (value,))
    ]
    return list({id(one): (name, one) for name, one in held if isinstance(one, kind)}.values())
