# SPDX-License-Identifier: Apache-2.0
"""What a method's parts have where nobody says otherwise; a site is sent every setting with its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairflare.core import registry
from fairflare.core.registry import Method
from fairflare.core.settings import Given, Owners, bare
from fairflare.core.types import Training
from fairflare.engine.setup.method_parts import MethodParts, part


def default_parts(method: str | Method, values: Mapping[str, Any] | None = None) -> MethodParts:
    """A method's parts with its own defaults.

    Args:
        values: settings that differ, by any name that works, see ``core.settings``.

    Raises:
        UserError: there is no such method or setting, or a value does not fit.
    """
    entry = registry.get_method(method) if isinstance(method, str) else method
    owners = Owners(registry.owners(entry), entry.shared)
    found = defaults_of(entry, owners) | owners.resolved(values or {})
    return MethodParts.of({owner: part(cls, owners.values(owner, found)) for owner, cls in owners.classes.items()})


def defaults_of(entry: Method, owners: Owners) -> dict[str, Given]:
    """Full name -> the method's own default, where ``owners`` has such a setting.

    A shared quantity that the method gives no value has the default of the first part that it is declared for.
    """
    first = {name: registry.parameters(owners.full[full[0]])[bare(full[0])] for name, full in owners.shared.items()}
    equal = {full: Given(name, first[name]) for name, targets in owners.shared.items() for full in targets}
    return equal | declared(entry, owners)


def declared(entry: Method, owners: Owners) -> dict[str, Given]:
    """Full name -> what the method itself says, where ``owners`` has such a setting."""
    return _declared(Owners(registry.owners(entry), entry.shared), entry.settings, owners)


def reference_of(entry: Method, owners: Owners) -> dict[str, Given]:
    """Full name -> what the method's reference variant implies, where ``owners`` has such a setting."""
    declared = Owners({**registry.owners(entry), "train": Training}, entry.shared)
    return _declared(declared, entry.reference, owners)


def _declared(declared: Owners, values: Mapping[str, Any], owners: Owners) -> dict[str, Given]:
    return {full: given for full, given in declared.resolved(values).items() if full in owners.full}
