# SPDX-License-Identifier: Apache-2.0
"""Has the model learned? It is held against an answer that needs no network, and its last rounds are looked at.

Two rules. Of classes the score is log loss, a proper score, against that of the site's shares of the classes, named for
everybody, and at most that of even odds (log C): all that is asked of a task of the package, of training that adjusts
logits, and where counts may not leave a site. Without classes it is the headline metric against that of a constant
answer. A model *has learned* where the mean gain over the sites that have both is above zero by its 95 % interval over
sites (Student t), and *has not* where the interval's upper end is below ``GAIN`` of the baseline's score; between them
it cannot be told. With one site the gain itself decides. It is *still improving* where, over the last
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
from fairflare.report.fairness import mean, mean_ci
from fairflare.report.section import Quantity
from fairflare.report.values import chance, label, number, plural, text, with_interval

Json = dict[str, Any]
TRIVIAL = "trivial"
"""Key of an evaluation in the log."""
QUANTITIES = (
    Quantity(
        "trivial",
        "mean over sites, without a network",
        lambda run: (run.get("learned") or {}).get("trivial"),
        column="Without a network",
    ),
)
GAIN = 0.01
"""Share of the baseline's value: a gain that is surely less is nothing learned."""
LOSS_KEYS, HEADLINE_KEYS = ("loss", "trivial_loss"), ("model", "trivial")
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
        learned: True, False, or None where it cannot be told; score: "loss" or "headline", in which gain is, above 0
        where the model is better (mean over sites and interval, ``fairness.mean_ci``); better and compared: at how many
        of how many sites it is above 0; rows: site, model and trivial in the headline metric, loss and trivial_loss
        (None: not known), gain and better; trivial: mean over the sites that
        have a model's value, None where one of them has no answer; trend (see ``_trend``) and still_improving. None
        where nothing is known of a trivial answer.
    """
    held = [_row(trail, row, headline, about, own) for row in rows]
    if all(row["trivial"] is None and row["trivial_loss"] is None for row in held):
        return None
    of_loss = any(row["loss"] is not None and row["trivial_loss"] is not None for row in held)
    (ours, least), sign = (LOSS_KEYS, -1) if of_loss else (HEADLINE_KEYS, 1 if higher else -1)
    for row in held:
        known = row[ours] is not None and row[least] is not None
        row["gain"] = sign * (row[ours] - row[least]) if known else None
        row["better"] = row["gain"] > 0 if known else None
    gain: Json = mean_ci(row["gain"] for row in held)
    means = trail.totals.means
    loss = "loss" if means.get(headline) else "train_loss"
    trend = _trend("score", means.get(headline, []), 1 if higher else -1) or _trend(loss, means.get(loss, []), -1)
    learned = None
    if gain["mean"] is not None:
        low, high = (gain["mean"] if gain[end] is None else gain[end] for end in ("low", "high"))
        nothing = GAIN * abs(mean(row[least] for row in held if row["better"] is not None) or 0.0)
        learned = False if high < nothing or high <= 0 else True if low > 0 else None
    better = [row["better"] for row in held if row["better"] is not None]
    found: Json = {"metric": headline, "score": "loss" if of_loss else "headline", "learned": learned, "gain": gain}
    found |= {"better": sum(better), "compared": len(better)}
    tested = [row["trivial"] for row in held if row["model"] is not None]
    found |= {"trivial": None if None in tested else mean(tested), "rows": held}  # of the sites of the model's mean
    return {**found, "trend": trend, "still_improving": trend is not None}


def trivial_of(summary: Json, site: str) -> float | None:
    """What the trivial answer reaches at a site, in the headline metric; None where that is not known."""
    rows = (summary.get("learned") or {}).get("rows") or ()
    return next((row["trivial"] for row in rows if row["site"] == site), None)


def beside_trivial(value: float, trivial: float, higher: bool) -> str:
    """What follows the sentence with a value: what the answer without a network reaches in the same metric."""
    better = value > trivial if higher else value < trivial
    no_better = f"That is no better than an answer that needs no network ({text(trivial)})."
    return f"An answer that needs no network reaches {text(trivial)}." if better else no_better


def verdict(summary: Mapping[str, Any]) -> str:
    """One sentence for the first screen where the model has not learned; empty elsewhere."""
    found = summary.get("learned") or {}
    if found.get("learned") is not False:
        return ""
    whose = "The sites' own models have" if summary.get("used") else "This model has"
    return f"{whose} not learned: {_gain(found, summary)}."


def _gain(found: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The model's score beside that of a baseline, in words, with the interval of their distance."""
    of_loss, gain = found["score"] == "loss", found["gain"]
    rows = [row for row in found["rows"] if row["gain"] is not None]
    ours, least = (text(mean(row[key] for row in rows)) for key in (LOSS_KEYS if of_loss else HEADLINE_KEYS))
    name = "log loss" if of_loss else label(summary["headline"], summary)
    ends = "" if gain["low"] is None else f"; gain {with_interval(gain)}, 95 % interval over sites"
    sites = plural(found["compared"], "site")
    where = sites if found["compared"] == len(found["rows"]) else f"the {sites} where both are known"
    return f"{name} {ours} on average over {where}, {least} without training{ends}"


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """What the first screen says beside the verdict: the baseline where it is not lost to, and the last rounds."""
    found = summary.get("learned") or {}
    said = []
    if found.get("compared") and found["learned"] is not False:
        models = "The sites' own models" if summary.get("used") else "The model"
        even = {math.log(max(len((summary.get("task") or {}).get("classes") or ()), 1))}
        against = "even odds" if {row["trivial_loss"] for row in found["rows"]} == even else "the baseline"
        how = f"{models} beats {against} at {found['better']} of {found['compared']}"
        how = how.replace("models beats", "models beat") + f" {'site' if found['compared'] == 1 else 'sites'}"
        unsure = "" if found["learned"] else "Too few sites to tell whether the model has learned. "
        said.append(f"{unsure}{how}: {_gain(found, summary)}.")
    if trend := found.get("trend"):
        names = {"score": f"validation {label(found['metric'], summary)}"}
        names |= {"loss": "validation loss", "train_loss": "training loss"}
        way = "rose" if trend["to"] > trend["from"] else "fell"
        said.append(
            f"It was still improving: over the last {trend['rounds']} rounds the {names[trend['of']]} {way} from "
            f"{text(trend['from'])} to {text(trend['to'])} (means of the first and last third), more than its noise. "
            "More rounds will help (--rounds)."
        )
    return said


def _row(trail: Trail, row: Json, headline: str, about: Json, own: bool) -> Json:
    splits = (trail.evaluation.get("sites") or {}).get(row["site"]) or {}
    value = number(((splits.get(TRIVIAL) or {}).get("test") or {}).get(headline))
    if value is None and row["value"] is not None and named(headline).flat:
        value = chance(headline, about)
    found = {"site": row["site"], "model": row["value"], "trivial": value}
    return {
        **found,
        "loss": number((row.get("test") or {}).get("loss")),
        "trivial_loss": _loss_to_beat(splits, about, own),
    }


def _loss_to_beat(splits: Mapping[str, Any], about: Json, own: bool) -> float | None:
    """A site's log loss without a network; None for masks, whose loss is none of odds."""
    classes = len(about.get("classes") or ()) if about.get("group_metric") == "accuracy" else 0
    if classes < 2:
        return None
    found = number(((splits.get(TRIVIAL) or {}).get("test") or {}).get("loss")) if own else None
    return min(math.log(classes), math.inf if found is None else found)


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
