# SPDX-License-Identifier: Apache-2.0
"""What a run of the method ``signs`` says of the methods that its federation may gain by, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.core.types import GROUP_COUNT, GROUP_LOSS, of_family
from fairflare.engine.audit import verify
from fairflare.engine.files import AUDIT
from fairflare.functional.blocks import SIMILARITY
from fairflare.report.audit_reader import read_trail
from fairflare.report.clinical import wilson
from fairflare.report.fairness import weighted

ROUNDS = 5
"""First rounds, and last, over which signs are means."""


@dataclass(frozen=True)
class Signs:
    """Of the received models on the sites' training data.

    Attributes:
        site: whose loss is largest; ``site_gap``: by which share it exceeds the mean over examples, in the last rounds.
        group: whose loss over all sites is largest, ``group_gap`` as for sites; "" and 0 where none may leave.
        agreement: the lowest of the sites' mean cosines between its update and the others', in the first rounds.
        similarity: the lowest linear CKA of a site's and the mean model's layer, a mean over the last rounds.
    """

    site: str
    site_gap: float
    group: str
    group_gap: float
    agreement: float
    similarity: float


def signs_of(folder: Path) -> Signs:
    """The signs in the log of a run; raises UserError where its method did not measure them."""
    rounds = read_trail(verify(folder / AUDIT)).rounds
    if not rounds or "agreement" not in rounds[0].get("notes", {}):
        raise UserError(f"{folder}: expected a run of the method signs, which --advise runs")
    first, last = rounds[:ROUNDS], rounds[-ROUNDS:]
    replies = [(site, one["scalars"], one["n_examples"]) for line in last for site, one in line["accepted"].items()]
    losses = _means((site, scalars["loss"], 1) for site, scalars, _ in replies)
    sizes = _means((site, n, 1) for site, _, n in replies)
    groups = _means(
        (name, scalars[f"{GROUP_LOSS}/{name}"], n)
        for _, scalars, _ in replies
        for name, n in of_family(scalars, GROUP_COUNT).items()
    )
    usual = sum(losses[site] * n for site, n in sizes.items()) / sum(sizes.values()) or 1.0
    site, group = (max(one, key=lambda name: one[name], default="") for one in (losses, groups))
    alike = _means(
        (f"{s} {layer}", value, 1)
        for s, scalars, _ in replies
        for layer, value in of_family(scalars, SIMILARITY).items()
    )
    agreement = _means((s, value, 1) for line in first for s, value in line["notes"]["agreement"].items())
    group_gap = groups[group] / usual - 1 if group else 0.0
    low = min(agreement.values()), min(alike.values(), default=1.0)
    return Signs(site, losses[site] / usual - 1, group, group_gap, *low)


def _means(values: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Name -> the mean of its values, each with its weight."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for name, value, n in values:
        pairs.setdefault(name, []).append((n, value))
    return {name: mean for name, own in pairs.items() if (mean := weighted(own)) is not None}


NOTHING, OWN, GROUPS = "nothing", "own", "groups"
TRY = {
    NOTHING: "keep FedAvg: no sign speaks for another method",
    OWN: "a model for each site, `fairflare run ditto`",
    GROUPS: "weights of groups, `fairflare run fedufo --set level=attribute`",
}
"""Advice -> what to try."""
RATES = {NOTHING: (0, 3, 0, 2), OWN: (17, 17, 0, 5), GROUPS: (0, 0, 0, 0)}
"""Advice -> how often it was right and given, on tables and on images: lab/regimes/results."""
CONFLICT, WORSE_SITE, WORSE_GROUP = -0.3, 0.5, 0.08
"""Agreement below which, and gaps of site and group above which, something is advised; chosen on seeds 100 to 119."""


def advised(signs: Signs) -> str:
    """A key of ``TRY``."""
    if signs.agreement < CONFLICT or signs.site_gap > WORSE_SITE:
        return OWN
    return GROUPS if signs.group_gap > WORSE_GROUP else NOTHING


def advice_on(signs: Signs) -> dict[str, str]:
    """ "try", a key of ``TRY``; "text", what to try and the signs; "sure", how often such advice was right."""
    what = advised(signs)
    right, n, right_images, images = RATES[what]
    low, high = wilson(right + right_images, n + images)
    seen = [
        f"{signs.site} loses {signs.site_gap:+.0%} against the mean",
        *([f"group {signs.group} {signs.group_gap:+.0%}"] if signs.group else []),
        f"lowest agreement {signs.agreement:.2f}",
        f"lowest CKA {signs.similarity:.2f}",
    ]
    where = f"{right} of {n} federations of tables and {right_images} of {images} of images"
    sure = f"Such advice was right in {where} [{low:.0%}, {high:.0%}]: compare before you change."
    return {"try": what, "text": f"{TRY[what]} ({', '.join(seen)}).", "sure": sure}
