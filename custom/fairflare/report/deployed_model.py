# SPDX-License-Identifier: Apache-2.0
"""The results of the models that the sites use: a site's own one where the method gives it one, else the shared one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import PERSONAL
from fairflare.report.fairness import describe
from fairflare.report.values import listing

Json = dict[str, Any]
USED, COUNTED = "used", "counted"
"""Keys of a summary, each "personal" or absent: whose models sites use, and whose the run's results are."""
SHOWN = "shown"
"""Key of a summary whose results ``as_used`` has put in the place of the shared model's."""
PLAIN = "sgd"
"""The trainer of which no site has a model of its own."""


def used_models(config: Mapping[str, Any], personal: Json | None) -> str | None:
    """ "personal" where sites use models of their own, else None.

    Args:
        config: of the run. Older ones do not say it: there the results of own models are those of the trainer, unless
            that is the plain one, beside which a rule may show models that no site uses.
        personal: the section of them.
    """
    about = config.get("about") or {}
    if personal is None:
        return None
    if PERSONAL in (about.get(USED), about.get(COUNTED)):
        return PERSONAL
    return PERSONAL if USED not in about and config.get("trainer") not in (None, PLAIN) else None


def as_used(run: Json) -> Json:
    """The summary with the results of the models that the sites use as its results; itself where these are shared.

    Sites without a model of their own keep the shared one's results. Shared test sets are no site's: results there stay
    those of the shared model, as do those of the rounds.
    """
    if run.get(USED) != PERSONAL or COUNTED in run or not run.get("personal"):
        return run
    rows = own_rows(run["sites"], run["personal"])
    values = {row["site"]: row["value"] for row in rows}
    fairness = {**run["fairness"], **describe(values, run["higher_is_better"])}
    groups = run["personal"].get("groups")
    return {**run, "sites": rows, "fairness": fairness, "groups": groups, SHOWN: PERSONAL}


def own_rows(rows: Sequence[Json], personal: Json) -> list[Json]:
    """The sites' ``rows`` with the results of their own models; as they are where a site has none."""
    own = {row["site"]: row for row in personal["rows"]}
    return [_row(row, own.get(row["site"]) or {}) for row in rows]


def _row(row: Json, own: Mapping[str, Any]) -> Json:
    if own.get("personal") is None:
        return row
    return {**row, "value": own["personal"], **{key: own.get(key) or {} for key in ("test", "val", "intervals")}}


def remark(methods: Iterable[Mapping[str, Any]]) -> str:
    """Whose models the numbers of a comparison are of, in one sentence; "" where sites have none of their own.

    Args:
        methods: those of a comparison; ``used`` says whose models the sites use, ``shown`` whose results stand there.
    """
    own = [method for method in methods if method.get(USED)]
    shown = [str(method["label"]) for method in own if method.get(SHOWN)]
    hidden = [str(method["label"]) for method in own if not method.get(SHOWN)]
    found = (
        [f"Of {listing(shown)} the numbers are those of each site's own model, which the site uses."] if shown else []
    )
    if hidden:
        found.append(f"Of {listing(hidden)} they are those of the shared model, though sites use models of their own.")
    return " ".join(found)


def shared_only(methods: Sequence[Mapping[str, Any]]) -> str:
    """What has to be said where only the shared model can be looked at; "" where no method needs it."""
    shown = [str(method["label"]) for method in methods if method.get(SHOWN)]
    return f"Here also of {listing(shown)} the shared model's: no site holds these examples." if shown else ""
