# SPDX-License-Identifier: Apache-2.0
"""Has the model learned? It is held against an answer that needs no network, and its last rounds are looked at.

Two rules. A model *has not learned* where it is no better than the trivial answer at more than half of the sites that
have both: in the headline metric, or in log loss, a proper score that takes calibration in. The log loss to beat is
that of the trivial answer, and at most that of even odds (log C): all that is asked of a task of the package, of
training that adjusts logits, and where counts may not leave a site. It is *still improving* where, over the last
quarter of the rounds (at least six), the straight line through the mean of the sites' validation scores rises by more
than twice its standard error per round and by 0.01 in all; or where the same holds of the validation loss, falling by
5 % of its mean. Without validation data the training loss counts, falling by 10 %: it falls longer than a model gets
better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.core.metric import named
from fairflare.report.audit_reader import Trail
from fairflare.report.fairness import mean
from fairflare.report.values import chance, label, number, plural, text

Json = dict[str, Any]
TRIVIAL = "trivial"
"""Key of an evaluation in the log."""
QUANTITIES = {"trivial": "mean over sites, without a network"}
"""What a comparison of methods says of it, with its name in a table."""
LAST, FEWEST = 0.25, 6
"""Share of the rounds that are looked at, and how many they are at least."""
ERRORS = 2.0
"""Standard errors that a slope must exceed."""
LEAST = {"score": 0.01, "loss": 0.05, "train_loss": 0.10}
"""What must change over these rounds: a score by so much, a loss by this share of its mean."""


def learned_section(
    trail: Trail, rows: Sequence[Json], headline: str, higher: bool, about: Json, own: bool = False
) -> Json | None:
    """What the final model is held against, and whether its last rounds still brought something.

    Args:
        rows: one per site, with the ``value`` of the final model, or of the site's own where sites use such.
        about: of the task: the metrics in words, with chance levels, and the classes.
        own: whether the data are a user's own, and trained on as they are: the log loss to beat is the site's own.

    Returns:
        learned: True, False, or None where it cannot be said; better and compared: at how many of how many sites the
        model is better; rows: site, model, trivial, better, loss and trivial_loss (None: not known); trivial: mean over
        sites; trend (see ``_trend``) and still_improving. None where nothing is known of a trivial answer.
    """
    held = [_row(trail, row, headline, higher, about, own) for row in rows]
    if all(row["trivial"] is None for row in held):
        return None
    both = [row for row in held if row["better"] is not None]
    better, trend = sum(row["better"] for row in both), _trends(trail, headline, higher)
    learned = 2 * better >= len(both) if both else None
    found = {"metric": headline, "learned": learned, "better": better, "compared": len(both)}
    found |= {"trivial": mean(row["trivial"] for row in held), "rows": held}
    return {**found, "trend": trend, "still_improving": trend is not None}


def learned_quantities(run: Json) -> dict[str, float | None]:
    return {"trivial": (run.get("learned") or {}).get("trivial")}


def trivial_of(summary: Json, site: str) -> float | None:
    """What the trivial answer reaches at a site, in the headline metric; None where that is not known."""
    rows = (summary.get("learned") or {}).get("rows") or ()
    return next((row["trivial"] for row in rows if row["site"] == site), None)


def verdict(summary: Mapping[str, Any]) -> str:
    """One sentence for the first screen where the model has not learned; empty elsewhere."""
    found = summary.get("learned") or {}
    if found.get("learned") is not False:
        return ""
    metric, both = label(summary["headline"], summary), [row for row in found["rows"] if row["better"] is not None]
    if said := _by_loss(found, summary, both):
        return said
    means = [text(mean(row[key] for row in both)) for key in ("trivial", "model")]
    own = ("The sites' own models have", "their", "they")
    whose = own if summary.get("used") else ("This model has", "its", "the model")
    return (
        f"{whose[0]} not learned: at {found['compared'] - found['better']} of {_compared(found)} {whose[1]} "
        f"{metric} is no better than what needs no network (there {means[0]} on average; {whose[2]} {means[1]})."
    )


def _by_loss(found: Mapping[str, Any], summary: Mapping[str, Any], both: Sequence[Json]) -> str:
    """The sentence where it is the log loss that fails at most sites; "" elsewhere."""
    known = (row for row in both if row.get("trivial_loss") is not None)
    failed = [row for row in known if not (row["loss"] or 0) < row["trivial_loss"]]
    if 2 * len(failed) <= len(both):
        return ""
    whose = "The sites' own models have" if summary.get("used") else "This model has"
    ours, least = (text(mean(row[key] for row in failed)) for key in ("loss", "trivial_loss"))
    return (
        f"{whose} not learned: at {len(failed)} of {_compared(found)} its risks are no better than each site's share "
        f"of the classes, named for everyone (log loss {ours} on average there; that answer's {least})."
    )


def _compared(found: Mapping[str, Any]) -> str:
    """The sites that have both answers, and that others have not."""
    n, others = found["compared"], len(found["rows"]) - found["compared"]
    return plural(n, "site") if not others else f"the {plural(n, 'site')} where both are known"


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """What the first screen says beside the verdict: the trivial answer where it is beaten, and the last rounds."""
    found = summary.get("learned") or {}
    said = []
    if found.get("learned"):
        whole = "at every site" if found["compared"] == len(found["rows"]) else "at all of them"
        where = whole if found["better"] == found["compared"] else f"at {found['better']} of them"
        model = "the site's own model" if summary.get("used") else "the model"
        reached = f"{text(found['trivial'])} on average over {_compared(found)}"
        said.append(f"What needs no network reaches {reached}; {model} is better {where}.")
    if trend := found.get("trend"):
        names = {"score": "validation score", "loss": "validation loss", "train_loss": "training loss"}
        way = "rose" if trend["to"] > trend["from"] else "fell"
        said.append(
            f"It was still improving: over the last {trend['rounds']} rounds the {names[trend['of']]} {way} from "
            f"{text(trend['from'])} to {text(trend['to'])} (means of the first and last third), more than its noise. "
            "More rounds will help (--rounds)."
        )
    return said


def _row(trail: Trail, row: Json, headline: str, higher: bool, about: Json, own: bool) -> Json:
    splits = (trail.evaluation.get("sites") or {}).get(row["site"]) or {}
    value = number(((splits.get(TRIVIAL) or {}).get("test") or {}).get(headline))
    if value is None and row["value"] is not None and named(headline).flat:
        value = chance(headline, about)
    better = None
    if value is not None and row["value"] is not None:
        better = row["value"] > value if higher else row["value"] < value
    loss, least = number((row.get("test") or {}).get("loss")), _loss_to_beat(splits, about, own)
    if better is not None and loss is not None and least is not None:
        better = better and loss < least
    found = {"site": row["site"], "model": row["value"], "trivial": value, "better": better}
    return {**found, "loss": loss, "trivial_loss": least}


def _loss_to_beat(splits: Mapping[str, Any], about: Json, own: bool) -> float | None:
    """A site's log loss without a network; None for masks, whose loss is none of odds."""
    classes = len(about.get("classes") or ()) if about.get("group_metric") == "accuracy" else 0
    if classes < 2:
        return None
    found = number(((splits.get(TRIVIAL) or {}).get("test") or {}).get("loss")) if own else None
    return min(math.log(classes), math.inf if found is None else found)


def _trends(trail: Trail, headline: str, higher: bool) -> Json | None:
    """The first kind of number whose last rounds still improve; None where none does, or where that is not known."""
    means = trail.totals.means
    scores = means.get(headline, [])
    loss = "loss" if scores else "train_loss"
    return _trend("score", scores, 1 if higher else -1) or _trend(loss, means.get(loss, []), -1)


def _trend(of: str, values: Sequence[float], sign: int) -> Json | None:
    """of, rounds, from, to, slope, error; None unless the last values improve as the rule says.

    ``from`` and ``to``: means over the first and the last third of these rounds, which are possible values.
    """
    n = max(FEWEST, math.ceil(LAST * len(values)))
    if len(values) < n:
        return None
    last = values[-n:]
    level, places = math.fsum(last) / n, [k - (n - 1) / 2 for k in range(n)]
    spread = math.fsum(place**2 for place in places)
    slope = math.fsum(place * value for place, value in zip(places, last)) / spread
    left = math.fsum((value - level - slope * place) ** 2 for place, value in zip(places, last))
    error = math.sqrt(left / (n - 2) / spread)
    least = LEAST[of] * (1 if of == "score" else abs(level))
    third = n // 3
    begin, end = math.fsum(last[:third]) / third, math.fsum(last[-third:]) / third
    if sign * slope <= ERRORS * error or sign * slope * (n - 1) < least or sign * (end - begin) <= 0:
        return None
    return {"of": of, "rounds": n, "from": begin, "to": end, "slope": slope, "error": error}
