# SPDX-License-Identifier: Apache-2.0
"""The sentences of a run's first screen, computed from the numbers, for a reader who does not train models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report import sanity_checks as learned
from fairflare.report.values import capital, chance, label, listing, meaning, plural, text

Json = Mapping[str, Any]
MOST_NAMED, SHOWN = 12, 3
"""Sites that a sentence names, and of more than that how many."""


def opening(summary: Json) -> list[str]:
    """What a clinician should know first of one run: how it serves whom, the benefit of joining, and what happened."""
    happened = _refusals(summary) + _bounds(summary) + _unlike(summary) + _late(summary)
    sets = [summary["test_sets"][kind].get(summary["headline"]) for kind in ("clean_mean", "corrupted_mean")]
    if None not in sets:
        clean, corrupted = map(text, sets)
        happened += [
            f"On the shared test sets the model reaches {clean} on clean and {corrupted} on corrupted examples."
        ]
    joining = (summary.get("benefit") or {}).get("sentences") or []
    first = [_state(summary), *attendance(summary), *_service(summary)]
    paragraphs = [first, *([joining] if joining else []), happened]
    return [" ".join(sentences) for sentences in paragraphs]


def attendance(summary: Json) -> list[str]:
    """Who was named and not there, and who came and left with the last segment."""
    rows, found = summary.get("segments") or [], list[str]()
    for row in rows:
        began = f"the segment after round {row['after']}" if row["after"] else "the run"
        were = "was" if len(row["away"]) == 1 else "were"
        found += [f"{listing(row['away'])} {were} named and not connected when {began} began."] if row["away"] else []
    if len(rows) > 1:
        last = rows[-1]
        moves = listing(f"{listing(last[key])} {key}" for key in ("came", "left") if last[key])
        found.append(
            f"The last of {len(rows)} segments began after round {last['after']}{f': {moves}' if moves else ''}."
        )
    return found


FEW = 30
"""Validation patients below which what a validation split says is mostly noise."""


def study(summary: Json) -> str:
    """What the page is about: "Predicting died" of a table of the sites' own, else the task's title."""
    options, task = summary["task"].get("options") or {}, summary["task"]
    own = options.get("site_names") and options.get("label")
    return f"Predicting {options['label']}" if own else str(task.get("title") or task.get("id") or "unnamed task")


def headline(summary: Json) -> str:
    """What the page says first: "Predicting died: AUC 0.74 on average, 0.02 at West".

    That is the metric of the terminal's first line, and where fairness is reported in another one that too.
    """
    fairness, metric = summary["fairness"], label(summary["headline"], summary)
    if fairness["mean"] is None:
        return f"{study(summary)}: does it serve every site?"
    ends = [(one["label"], one) for one in (summary.get("risks") or ())[:1] if one["label"] != metric]
    told = [
        f"{words} {text(one['mean'], 2)} on average, {text(one['worst']['value'], 2)} at {one['worst']['site']}"
        for words, one in [*ends, (metric, fairness)]
    ]
    return f"{study(summary)}: {'; '.join(told)}"


def size(summary: Json) -> str:
    """ "4 sites; 546 training and 230 test patients": as far as the log says it."""
    known = {"training": "n_examples", "test": "n_test"}
    sums = {split: sum(row.get(key) or 0 for row in summary["sites"]) for split, key in known.items()}
    told = listing(f"{n:.0f} {split}" for split, n in sums.items() if n)
    return plural(len(summary["sites"]), "site") + (f"; {told} patients" if told else "")


def not_concluded(summary: Json) -> list[str]:
    """What must not be concluded from the first screen, the weightiest first."""
    few = (row for row in summary["sites"] if row.get("n_val") and row["n_val"] < FEW)
    short = [f"{row['site']}: {row['n_val']:.0f}" for row in few]
    measured = (summary.get("benefit") or {}).get("metrics")
    candidates = (
        (summary["status"] != "completed", "Anything of a finished model: the run did not complete."),
        (True, "That another training would end alike: this is one run with one seed."),
        (
            bool(measured),
            "That every gain or loss is real: each interval is of one site's test patients, and of many intervals some "
            "exclude zero by chance.",
        ),
        (not measured, "That a site gains or loses by joining: no site was compared with a model of its own."),
        (
            bool(short),
            f"Much from validation splits of fewer than {FEW} patients, which are mostly noise ({_some(short)}).",
        ),
        (True, "That it is safe to act on: nobody has tested the model at other hospitals or in care."),
    )
    return [text for holds, text in candidates if holds]


GLOSSARY = {
    "Benefit of joining": "How much better the federation's model is than one that the site has trained alone, on the "
    "site's own test patients. Above zero joining is better.",
    "95 % interval": "The values that fit the tested patients. Where it holds zero, nobody can tell whether the site "
    "gains or loses.",
    "Training, validation and test patients": "Those that the model learns from, those that training is watched on, "
    "and those that it has never seen. Nobody is in two of them.",
    "Round": "One exchange: the server sends the model, each site trains it on its own patients and sends its update.",
    "Aggregation weight": "How strongly a site's update was used in a round.",
    "Gap": "The best site's value less the worst site's.",
    "Standard deviation over sites": "How far the sites' values are spread; ddof 1 divides by one less than the number "
    "of sites, ddof 0 by that number.",
    "Bottom decile": "The mean over the worst tenth of the sites.",
    "Jain's index": "Evenness between sites: 1 where all have the same value, 1 over their number at the least.",
}


def glossary(summary: Json) -> list[tuple[str, str]]:
    """The page's terms, its metrics first: (name, what it means)."""
    names = dict.fromkeys([summary["headline"], *(summary.get("metrics") or {})])
    told = [(capital(label(name, summary)), meaning(name, summary)) for name in names]
    return [*((name, f"{capital(text)}.") for name, text in told if text), *GLOSSARY.items()]


def _state(summary: Json) -> str:
    title, done, planned = summary["method"]["title"], summary["rounds_done"], summary["rounds_planned"]
    sites, of_planned = plural(len(summary["sites"]), "site"), f"{done} of {planned or 'an unknown number of'} rounds"
    if summary["status"] == "completed":
        return f"{title} trained one shared model across {sites} in {plural(done, 'round')}."
    ended = "failed" if summary["status"] == "failed" else "has not finished"
    return f"This run of {title} across {sites} {ended}: {of_planned} are recorded."


def _service(summary: Json) -> list[str]:
    fairness, metric = summary["fairness"], label(summary["headline"], summary)
    if fairness["mean"] is None:
        return ["There is no result of a final model on the sites' test examples: nothing can be said about fairness."]
    n, low, high = fairness["n_sites"], fairness["worst"], fairness["best"]
    explained = meaning(summary["headline"], summary)
    explained = f" ({metric}: {explained})" if explained else ""
    sites = "at the only site with a result" if n == 1 else f"on average over {n} sites"
    found = risk_words(summary) + worst_class(summary)
    found += [f"On the sites' own test examples the model's {metric} is {text(fairness['mean'])} {sites}{explained}."]
    if (trivial := (summary.get("learned") or {}).get("trivial")) is not None:
        found.append(learned.beside_trivial(fairness["mean"], trivial, summary["higher_is_better"]))
    guessing, least = chance(summary["headline"], summary), fairness["ci"]["low"]
    if guessing is not None and (fairness["mean"] if least is None else least) <= guessing:
        found.append("That is not clearly better than guessing.")
    if n > 1:
        bottom, top = (_named(summary, end["site"]) for end in (low, high))
        ends_of = f"{bottom} worst ({text(low['value'])}) and {top} best ({text(high['value'])})"
        found.append(f"It serves {ends_of}: a gap of {text(fairness['gap'])}.")
    found += learned.sentences(summary) + _not_defined(summary)
    if fairness["left_out"]:
        found.append(f"No test result in {metric} came from {_some(fairness['left_out'])}.")
    return found


def risk_words(summary: Json) -> list[str]:
    """How good the risks of two classes are, in one sentence; [] of other outcomes."""
    told = [
        f"{one['label']} {text(one['mean'])} ({text(one['worst']['value'])} at {one['worst']['site']})"
        for one in summary.get("risks") or ()
    ]
    return [f"Risks on the sites' own test patients, mean and worst site: {', '.join(told)}."] if told else []


def worst_class(summary: Json) -> list[str]:
    """Of more than two classes the one that is found least, in one sentence; [] of other outcomes."""
    found, classes = summary.get("groups") or {}, summary["task"].get("classes") or ()
    if len(classes) < 3 or found.get("by") != "label" or found["worst"]["group"] is None:
        return []
    return [f"Worst class: {found['worst']['group']}, of whose cases {text(found['worst']['value'])} are found."]


def _not_defined(summary: Json) -> list[str]:
    """Which metrics some sites' test cases leave undefined, and what they need."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    of_groups = (summary.get("groups") or {}).get("metric")
    for name, about in (summary.get("metrics") or {}).items():
        if name == of_groups and not any(name in row["test"] for row in summary["sites"]):
            continue  # what groups are compared in, which is no metric of a site
        sites = [row["site"] for row in summary["sites"] if row["test"] and name not in row["test"]]
        if sites and about.get("needs"):
            lacking.setdefault((about["needs"], *sites), []).append(label(name, summary))
    return [
        f"Not defined at {_some(sites)}: {'; '.join(names[:MOST_NAMED])} (needed are {needs})."
        for (needs, *sites), names in lacking.items()
    ]


def _some(sites: Sequence[str]) -> str:
    if len(sites) <= MOST_NAMED:
        return listing(sites)
    return f"{len(sites)} sites ({', '.join(sites[:SHOWN])} and {len(sites) - SHOWN} more)"


def _named(summary: Json, site: str) -> str:
    described = {row["site"]: row["description"] for row in summary["sites"]}.get(site)
    return f"{site} ({described})" if described else site


def _refusals(summary: Json) -> list[str]:
    found = summary["contributions"]
    missing = found["expected"] - found["accepted"]
    if not found["expected"]:
        return []
    if not missing:
        return [f"No update was left out of the model ({found['accepted']} accepted)."]
    counts = {row["site"]: row["expected"] - row["accepted"] for row in summary["sites"]}
    times = {1: "once", 2: "twice"}
    who = listing(f"{site} ({times.get(count, f'{count} times')})" for site, count in counts.items() if count)
    were = "was" if missing == 1 else "were"
    return [f"{missing} of {found['expected']} updates {were} rejected or never arrived: {who}."]


def _unlike(summary: Json) -> list[str]:
    """Which sites say of themselves what does not fit; [] where none."""
    found: dict[str, dict[str, list[str]]] = {"others": {}, "past": {}}
    for row in summary.get("unlike") or ():
        found[row["against"]].setdefault(row["site"], []).append(row["number"])
    words = {"others": "the other sites'", "past": "what was said before"}
    who = {of: listing(f"{site} ({listing(names)})" for site, names in each.items()) for of, each in found.items()}
    told = [f"Numbers of {sites} are unlike {words[against]}." for against, sites in who.items() if sites]
    return [*told, "That can be an error, a lie, or patients who differ."] if told else []


def _bounds(summary: Json) -> list[str]:
    """What the bounds took from which site; [] where they did not act."""
    rows = summary.get("bounds") or ()
    clipped = listing(
        f"{row['site']} ({plural(row['clipped'], 'round')}, to {text(row['kept'], 2)} of its length)"
        for row in rows
        if row["clipped"]
    )
    capped = listing(
        f"{row['site']} ({plural(row['capped'], 'round')}, at {text(row['cap'], 2)})" for row in rows if row["capped"]
    )
    said = [f"Updates that stood out were shortened: {clipped}."] if clipped else []
    return said + ([f"Aggregation weights were capped: {capped}."] if capped else [])


def _late(summary: Json) -> list[str]:
    """Which sites the rounds ended without, and what that means for them; [] where none."""
    late = {row["site"]: (row["codes"].get("late", 0), row["expected"]) for row in summary["sites"]}
    who = [f"{site} was late in {count} of {plural(asked, 'round')}" for site, (count, asked) in late.items() if count]
    if not who:
        return []
    ended = summary["min_responses"]
    rounds = f"Rounds ended after {ended} answers" if ended else "Rounds ended before every site had answered"
    return [
        f"{rounds}, and what came later was not used: {listing(who)}. Who is late is not a matter of chance: the model "
        "learns less from slower sites, and may serve their patients less well."
    ]
