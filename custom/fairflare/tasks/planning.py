# SPDX-License-Identifier: Apache-2.0
"""Defaults for a user's own data from the sites' fingerprints: a rule for each setting, with its reason.

Every number here was chosen on embedded tasks written out as a user's folders, with seeds and sites in
``docs/results/defaults.md``; what the figures there did not decide stays as the task's preset has it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low
from typing import Any

import numpy as np

from fairflare.core.validation import in_order, shown, some
from fairflare.data.inputs import SIGN
from fairflare.data.readers.table_features import ISO, READ
from fairflare.data.table_columns import features_of
from fairflare.data.table_fingerprint import TableFingerprint, agreed, inputs
from fairflare.tasks.fingerprint import Fingerprint
from fairflare.tasks.forms import FORMS

Prints = Mapping[str, Fingerprint]
MULTIPLE = 16
"""The edge in pixels is a multiple of it, as the U-Nets' poolings need."""
SMALLEST, LARGEST = 32, 128
"""Edge in pixels. Twice the edge takes four times as long; whoever has GPUs sets a larger one."""
LEAST_STD = 0.02
"""On [0, 1]: an image that is black but for a few pixels is not blown up further."""
AIR = -900.0
"""Hounsfield units up to which there is air; the lungs' tissue begins above."""
MOSTLY = 0.75
"""Share of what is no air that a window is laid around."""
NARROWEST = 80.0
"""Hounsfield units; radiologists' narrowest usual window, that of the brain."""
OVERLAP = 0.2
"""Share of the sites' values from which on two sites' windows overlap; below it the plan says so."""
LONGEST_SHOWN = 60
"""Characters of a value that a line of reasons shows."""
MOST_VOXELS = 64**3
"""Of a volume without being asked: twice as many along each edge take eight times as long."""
STEP, PATCH = 16, 32
"""Voxels along an edge are a multiple of the first, and a patch has at most the second."""
FINEST, COARSER = 1.0, 1.15
"""Edge of a voxel in mm that is no further reduced, and the factor by which all three grow until volumes fit."""
TIMES, MIDDLE = 5.0, 1.2816
"""How many times larger mean and spread are in other units; standard deviations of half of a normal's middle 80 %."""
FAR_SHARE, WIDER = 0.1, 2.0
"""Share of an encoder's numbers whose means, and factor by which their spreads may differ between sites."""
MOST_CODES = 10
"""Levels of a column that may be codes of another one's."""
SPACINGS = 1.5
"""How many times coarser one site's pixels may be than another's before the plan says so."""


@dataclass(frozen=True)
class Effort:
    """How long a kind of data is trained on.

    Attributes:
        batches: that a usual site's data should make at least, so that a pass is more than a step or two.
        smallest: batch.
        largest: batch, unless more are needed for a usual site to see its data once in ``most_steps``.
        steps: optimizer steps of a usual site in the whole run.
        rounds: fewest communication rounds; models that are averaged rarely drift apart.
        most_rounds: largest number of them.
        fewest_steps: local steps of a round at least, at every site.
        most_steps: at most; one pass over a site's own data if that is in between.
    """

    batches: int
    smallest: int
    largest: int
    steps: int
    rounds: int
    most_rounds: int
    fewest_steps: int
    most_steps: int


EFFORTS: Mapping[str, Effort] = {
    "segmentation": Effort(4, 4, 8, 300, 12, 40, 12, 120),
    "classification": Effort(4, 4, 16, 800, 20, 40, 20, 240),
    "tabular": Effort(4, 8, 32, 400, 20, 40, 12, 240),
    "survival": Effort(4, 8, 32, 400, 20, 40, 12, 240),
    "volume-segmentation": Effort(4, 2, 4, 300, 12, 40, 12, 60),
    "volume-classification": Effort(4, 2, 4, 400, 20, 40, 12, 120),
}
"""Kind of data -> how long it is trained on. Volumes have no study behind them: those of images, by smaller batches."""
LINEAR = Effort(4, 8, 64, 320, 40, 40, 8, 240)
"""The same of a linear model on a table."""
LARGEST_BATCH = 64
"""Whatever a site's size."""
GAIN = 0.01
"""Of a network's log loss over a linear model's, on average over sites, from which on tables get a network."""
FASTEST, REACH = 0.1, 3.0
"""Largest learning rate of a linear model, and what the number of its inputs divides to get a smaller one."""
BEST = "results are of the round that is best on validation data"
AGAIN = 0.2
"""Of the usual learning rate, where a run starts from trained weights."""


@dataclass(frozen=True)
class Choice:
    """One setting that follows from the data: its full name, its value, and the reason in words."""

    setting: str
    value: Any
    reason: str

    def __str__(self) -> str:
        """ "batch_size 8: a usual site has 40 training images"."""
        value = f" {self.value}" if len(str(self.value)) <= LONGEST_SHOWN else ""
        return f"{self.setting.partition('.')[2]}{value}: {self.reason}"


def plan(kind: str, prints: Prints) -> list[Choice]:
    """The settings that the sites' fingerprints ask for; [] for a kind of data without rules, or no fingerprints."""
    if kind not in FORMS or not prints:
        return []
    form = FORMS[kind]
    effort = EFFORTS.get(kind) or EFFORTS["tabular" if form.table else "classification"]
    if form.table and kind in EFFORTS:
        own, linear = _of_table(prints)
        effort = LINEAR if linear else effort
    elif form.table:  # nobody has measured whether a linear model is enough: the preset's network stays
        own = [Choice(*one) for one in agreed(_tables(prints))]
    else:
        grid = _grid(prints, form.masks) if form.volumes else [_size(prints)]
        own = [choice for choice in (_channels(prints), *grid, *_scaling(prints)) if choice]
    return [
        *own,
        *_outcome(prints),
        *_effort(effort, prints, kind),
        Choice("run.best_by", "mean", "many rounds fit training data better than they predict others"),
        Choice("run.headline", "best", f"{BEST}, and so is what predicts"),
    ]


def _outcome(prints: Prints) -> list[Choice]:
    """The scale of an amount: mean and spread over the training examples of all sites that tell theirs."""
    known = [(one.n_train, *one.outcome) for one in prints.values() if one.outcome]
    total = sum(n for n, _, _ in known)
    if not known:
        return []
    mean = math.fsum(n * m for n, m, _ in known) / total
    spread = math.sqrt(math.fsum(n * (s**2 + (m - mean) ** 2) for n, m, s in known) / total)
    reason = f"mean and spread of the outcome over the training examples of {_sites(len(known))}"
    return [Choice("task.outcome_scale", f"{mean:.9g},{spread:.9g}", reason)]


def cautions(prints: Prints) -> list[str]:
    """What the sites differ in and no setting mends, one line each."""
    outcomes = {site: tuple(one.outcome) for site, one in prints.items() if one.outcome}
    return [*_units("outcome", outcomes), *_of_tables(_tables(prints)), *_of_spacing(prints), *_of_values(prints)]


def _units(name: str, known: Mapping[str, tuple[float, ...]]) -> list[str]:
    """A line where two sites' mean and spread are of other units."""
    if len(known) < 2 or not other_units(low := min(known.values()), high := max(known.values())):
        return []
    at = [next(site for site in known if known[site] == end) for end in (low, high)]
    text = f"a mean of {low[0]:.4g} at {at[0]} and of {high[0]:.4g} at {at[1]}"
    return [f"{name}: {text}: are the units the same?"]


FAHRENHEIT = (1.8, 32.0)
USUAL = (7, 10, 12, 24, 30.44, 60, 100, 365.25, 1000, 1e6)
"""Factors between prefixes of units, and between units of time."""
UNITS: Mapping[str, tuple[float, ...]] = {
    r"crea|krea": (88.42,),
    r"gluc|gluk": (18.02,),
    r"chol|[lh]dl": (38.67,),
    r"trig": (88.57,),
    r"bili": (17.1,),
    r"urea|bun|harn": (0.357, 0.1665),
    r"h(a?e|\u00e4)mogl|hb$|hgb": (10, 0.6206),
    r"calc|kalz": (0.2495,),
    r"weight|gewicht": (0.4536,),
    r"height|gr(oe|\u00f6)": (2.54, 100),
    r"press|druck|bp$|pa?[co]+2": (0.1333,),
}
"""What a column's name holds, in small letters -> factors: mg/dl to umol/l or mmol/l, g/dl to g/l or mmol/l, lb to kg,
inches or m to cm, mmHg to kPa."""
ROUNDING = 1e-6
SWAP = {"0": "1", "1": "0"}
NEAR = math.log(1.25), math.log(2.0)
"""How far mean and spread may be from the others' once they are converted."""


def conversion(name: str, own: Sequence[float], others: Sequence[float]) -> tuple[float, float] | None:
    """What a site's numbers are multiplied by, and what is added then, to have the others' unit; None: nothing usual.

    ``own`` and ``others`` are a middle and a spread. Factors that the column's ``name`` suggests come first.
    """
    far: dict[tuple[float, float], float] = {}
    named = [factors for words, factors in UNITS.items() if re.search(words, name.lower())]
    for factors in (*named, USUAL) if min(*own, *others) > 0 else ():
        rules = [(by, 0.0) for factor in factors for by in (factor, 1 / factor)]
        if "temp" in name.lower():
            rules = [FAHRENHEIT, (1 / FAHRENHEIT[0], -FAHRENHEIT[1] / FAHRENHEIT[0])]
        far = far or _near(rules, own, others)
    return min(far, key=far.__getitem__) if far else None


def _near(
    rules: Sequence[tuple[float, float]], own: Sequence[float], others: Sequence[float]
) -> dict[tuple[float, float], float]:
    """Those of ``rules`` that bring mean and spread near the others', and how far they then are."""
    far = {}
    for by, plus in rules:
        parts = [(own[0] * by + plus) / others[0], own[1] * by / others[1]]
        if min(parts) > 0 and all(abs(math.log(p)) < near for p, near in zip(parts, NEAR)):
            far[by, plus] = abs(math.log(parts[0]))
    return far


RARE = 0.25
"""Share of rows with 1 up to which another site's may be counted the other way round."""


def turned(own: float, usual: float) -> bool:
    """Whether a site's share of rows with 1 is small where the others' is large, as where 0 and 1 change places."""
    return min(own, usual) <= RARE and max(own, usual) >= 1 - RARE


def converting(
    site: str, rules: Mapping[str, tuple[float, float] | None], words: Mapping[str, Any], dates: Mapping[str, str] = {}
) -> str:
    """The lines of the file of ``site`` by which its columns get the others' units and words; "" where there are none.

    ``rules``, ``words`` and ``dates`` are of columns: as ``conversion`` says, word -> the others', form of dates.
    """
    found = {"scale": {name: float(f"{rule[0]:.5g}") for name, rule in rules.items() if rule}}
    found["shift"] = {name: round(rule[1], 4) for name, rule in rules.items() if rule and rule[1]}
    lines = [f"{key}: {json.dumps(one)}" for key, one in found.items() if one]
    lines += [f"recode: {json.dumps(words, ensure_ascii=False)}"] if words else []
    lines += [f"dates: {json.dumps(dates)}"] if dates else []
    return f"If these are not the same, lines of the file of {site} convert: {' and '.join(lines)}" if lines else ""


def _of_tables(tables: Mapping[str, TableFingerprint]) -> list[str]:
    found: list[str] = []
    rules: dict[str, dict[str, Any]] = {site: {} for site in tables}
    words: dict[str, dict[str, Any]] = {site: {} for site in tables}
    one = next(iter(tables.values()), TableFingerprint(()))
    numbers = [feature.column for feature in features_of(one.features, one.columns)[0]]
    found += _of_vectors(tables, [name for name in numbers if SIGN in name])
    scaled = [name for name in numbers if SIGN not in name]
    for name in scaled:  # of 0 and 1 the spread follows from the mean
        shares = {site: table.numbers[name][1] for site, table in tables.items() if name in table.numbers}
        spreads = [table.numbers[name][2] for table in tables.values() if name in table.numbers]
        if all(abs(s**2 - m * (1 - m)) < ROUNDING for m, s in zip(shares.values(), spreads, strict=True)):
            usual = median_low(shares.values()) if shares else 0.0
            for site in (one for one, share in shares.items() if turned(share, usual)):
                words[site][name] = SWAP
                found.append(f"{name} is 1 in {shares[site]:.0%} of the rows of {site} and in {usual:.0%} elsewhere")
    untold = [name for name in scaled if not any(name in table.numbers for table in tables.values())]
    if untold:
        found.append(f"no site has enough values to tell a mean of {some(untold)}: they do not count")
    silent = [site for site, table in tables.items() if scaled and not table.numbers]
    if silent and len(silent) < len(tables):
        found.append(f"{some(silent)}: no mean or spread leaves, so the scaling is that of the other sites")
    for name in scaled:
        known = {site: table.numbers[name][1:] for site, table in tables.items() if name in table.numbers}
        found += (said := _units(name, known))
        usual = median_low(mean for mean, _ in known.values()) if said else 0.0
        others = next((own for own in known.values() if own[0] == usual), None)
        for site, own in known.items():
            if others and other_units(*sorted((own, others))):
                rules[site][name] = conversion(name, own, others)
    for name in one.levels:
        alike: dict[str, list[str]] = {}
        for level in in_order({level for table in tables.values() for level in table.levels.get(name, ())}):
            alike.setdefault("".join(level.lower().split()), []).append(level)
        twins = [" and ".join(map(shown, group)) for group in alike.values() if len(group) > 1]
        if twins:
            found.append(f"column {name}: {some(twins, 3)} are different levels")
        levels = {site: table.levels[name] for site, table in tables.items() if table.levels.get(name)}
        for site, pairs in _of_codes(levels, bool(one.columns[name].separator)).items():
            words[site][name] = pairs
            found.append(f"column {name}: {some([*pairs], 3)} at {site} and {some([*pairs.values()], 3)} elsewhere")
    said, dates = _of_dates(tables)
    lines = (converting(site, rules[site], words[site], dates[site]) for site in tables)
    return [*found, *said, *filter(None, lines)]


def _of_vectors(tables: Mapping[str, TableFingerprint], names: Sequence[str]) -> list[str]:
    """A line for each site whose features lie elsewhere than the others', by mean and spread of each number."""
    every = {site: table.numbers for site, table in tables.items() if {*names} <= {*table.numbers}}
    found, middle = [], median_low if len(every) > 2 else (lambda values: values[0])
    usual = {name: middle([one[name][1] for one in every.values()]) for name in names if every}
    spread = {name: middle([one[name][2] for one in every.values()]) or 1.0 for name in names if every}
    for site, own in every.items() if names else ():
        far = sum(abs(own[name][1] - usual[name]) > spread[name] for name in names)
        wide = median((own[name][2] or 1.0) / spread[name] for name in names)
        if far > FAR_SHARE * len(names) or not 1 / WIDER < wide < WIDER:
            said = f"{far} of {len(names)} means differ by more than a spread, spreads are {wide:.2g} times the others'"
            found.append(
                f"features {names[0].partition(SIGN)[0]} of {site}: {said}: the same images, stain and encoder?"
            )
    return found


def _of_codes(levels: Mapping[str, Sequence[str]], lists: bool) -> dict[str, dict[str, str]]:
    """Site -> its level -> that of most sites, where it has as many and none of theirs: by spelling, or in order.

    Codes of ``lists`` are those of a catalogue, of which only the spelling differs, as in i10.9 and I109.
    """
    usual = max(levels.values(), key=lambda one: sum(bool({*one} & {*other}) for other in levels.values()), default=())
    found = {}

    def spelled(level: str) -> str:
        return re.sub(r"[\s.\-/]" if lists else r"\s", "", level.lower())

    known = {spelled(one): one for one in usual}
    for site, own in levels.items():
        alike = {one: known[spelled(one)] for one in own if spelled(one) in known and one not in usual}
        if lists and alike and len(known) == len(usual):
            found[site] = alike
        elif not lists and not {*own} & {*usual} and len(own) == len(usual) <= MOST_CODES:
            whole = len(alike) == len(own)
            found[site] = alike if whole else dict(zip(in_order(own), in_order(usual), strict=True))
    return found


def _of_dates(tables: Mapping[str, TableFingerprint]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """What sites' dates differ in, and site -> column -> how its file may say that they are written."""
    said: list[str] = []
    found: dict[str, dict[str, str]] = {site: {} for site in tables}
    for name in dict.fromkeys(name for one in tables.values() for name in one.dates):
        own = {site: one.dates[name] for site, one in tables.items() if name in one.dates}
        sure = Counter(text for text, _, _ in own.values() if "|" not in text)
        for site, (text, low, high) in own.items():
            forms = text.split("|")
            if forms[0] == ISO and forms[1:]:
                said.append(f"no day of {name} at {site} lies after the 12th: have day and month changed places?")
                found[site][name] = forms[1]
            elif forms[0] not in READ:
                likely = [form for form in forms if sure[form]] if forms[1:] else forms
                which = "" if len(likely) == 1 else f": dates: {json.dumps({name: forms[0]})} in its file says which"
                said.append(f"{name} is written {' or '.join(forms)} at {site}{which}")
                found[site] |= {name: likely[0]} if len(likely) == 1 else {}
            others = [other for key, other in own.items() if key != site and other[1]]
            if low and others and all(high < start or low > end for _, start, end in others):
                years = f"{median_low(one[1] for one in others)} to {median_low(one[2] for one in others)}"
                said.append(
                    f"{name} lies in {low} to {high} at {site} and in {years} elsewhere: are the dates the same?"
                )
    return said, found


def other_units(low: Sequence[float], high: Sequence[float]) -> bool:
    """Whether mean and spread are both many times larger, or the middle 80 % of two normal distributions apart."""
    (mean, spread), (other, wide) = low, high
    times = 0 < TIMES * mean < other and 0 < TIMES * spread < wide
    return times or other - mean > MIDDLE * (spread + wide) > 0


def _of_values(prints: Prints) -> list[str]:
    known = {site: one.values for site, one in prints.items() if one.mean is not None}
    without = [site for site, values in known.items() if values is None]
    windows = {site: (values[0], values[-1]) for site, values in known.items() if values is not None}
    if windows and without:
        text = f"at {some(list(windows), 3)} and not at {some(without, 3)}: each image there is scaled by itself"
        return [f"values are measured from one zero, as Hounsfield units are, {text}"]
    for site, (low, high) in windows.items():
        for other, (left, right) in windows.items():
            if min(high, right) - max(low, left) < OVERLAP * (max(high, right) - min(low, left)):
                text = f"between {low:g} and {high:g} at {site} and between {left:g} and {right:g} at {other}"
                return [f"values lie {text}: they may not be in the same units"]
    means = {site: (fmean(one.mean), fmean(one.std)) for site, one in prints.items() if one.mean and one.std}
    dark, bright = (pick(means, key=means.__getitem__, default="") for pick in (min, max))
    if dark != bright and means[bright][0] - means[dark][0] > fmean((means[dark][1], means[bright][1])):
        text = f"a mean of {means[dark][0]:.2f} at {dark} and of {means[bright][0]:.2f} at {bright}"
        return [f"pixels on [0, 1] have {text}: are images of one inverted, or scaled otherwise?"]
    return []


def _of_spacing(prints: Prints) -> list[str]:
    if any(one.edges for one in prints.values()):
        return _of_edges({site: one.edges for site, one in prints.items() if one.edges})
    known = {site: one.spacing for site, one in prints.items() if one.spacing}
    if len(known) < 2 or max(known.values()) <= SPACINGS * min(known.values()):
        return []
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    text = f"pixels are {known[low]:g} mm wide at {low} and {known[high]:g} mm at {high}"
    return [f"{text}: images are resampled to one number of pixels, so that the same structure has different sizes"]


def _of_edges(known: Mapping[str, Sequence[float]]) -> list[str]:
    """Volumes are resampled to one spacing; what a coarser scan has not seen comes back at no spacing."""
    for axis, words in enumerate(("to the right", "to the front", "upwards")):
        low, high = (pick(known, key=lambda site: known[site][axis]) for pick in (min, max))
        if known[high][axis] > SPACINGS * known[low][axis]:
            text = f"voxels are {known[low][axis]:g} mm {words} at {low} and {known[high][axis]:g} mm at {high}"
            return [f"{text}: all are resampled to one spacing, and details that {high} has not seen stay unseen"]
    return []


def _tables(prints: Prints) -> dict[str, TableFingerprint]:
    return {site: one.table for site, one in prints.items() if one.table is not None}


def _channels(prints: Prints) -> Choice | None:
    known = {site: one for site, one in prints.items() if one.mean is not None}
    if not known:
        return None
    if coloured := [site for site, one in known.items() if one.coloured]:
        n = max(len(known[site].mean or ()) for site in coloured)
        what = "contrasts" if n != 3 or any(one.voxels for one in known.values()) else "colours"
        return Choice("task.channels", n, f"images of {some(coloured, 3)} have {what}")
    return Choice("task.channels", 1, "images of every site are grey")


def _size(prints: Prints) -> Choice | None:
    edges = {site: max(one.height, one.width) for site, one in prints.items() if one.height and one.width}
    if not edges:
        return None
    usual = median(edges.values())
    size = int(min(max(round(usual / MULTIPLE) * MULTIPLE, SMALLEST), LARGEST))
    reason = f"the sites' images have {_range(sorted(edges.values()))} pixels on the longer edge (median at each site)"
    return Choice("task.size", size, f"{reason}; at most {LARGEST} without being asked" if usual > LARGEST else reason)


def _grid(prints: Prints, masks: bool) -> list[Choice]:
    """The sites' median spacing, coarser where volumes would have too many voxels; the largest site's extent."""
    known = [(np.array(one.voxels), np.array(one.edges)) for one in prints.values() if one.voxels and one.edges]
    if not known:
        return []
    extent = np.max([voxels * edges for voxels, edges in known], axis=0)
    usual = np.maximum(np.median([edges for _, edges in known], axis=0), FINEST)
    spacing, shape = usual, _steps(extent, usual)
    while math.prod(shape) > MOST_VOXELS:
        spacing = np.maximum(spacing, min(spacing) * COARSER)  # the finest axes first: voxels become cubes
        shape = _steps(extent, spacing)
    edges, voxels = ",".join(f"{edge:.3g}" for edge in spacing), ",".join(map(str, shape))
    ours = " x ".join(f"{edge:.3g}" for edge in usual)
    said = f"the sites' voxels have {ours} mm (median, at least {FINEST:g})"
    if (spacing > usual).any():
        said += f"; coarser, so that a volume has at most {MOST_VOXELS} of them"
    size = " x ".join(f"{edge:.0f}" for edge in extent)
    patch = ",".join(str(min(n, PATCH)) for n in shape)
    return [
        Choice("task.spacing", edges, said),
        Choice("task.shape", voxels, f"the largest median extent of a site's volumes is {size} mm"),
        *([Choice("task.patch", patch, f"at most {PATCH} voxels along an edge")] if masks else []),
    ]


def _steps(extent: Any, spacing: Any) -> list[int]:
    return [max(math.ceil(n / STEP) * STEP, STEP) for n in np.round(extent / spacing, 3).tolist()]


def _scaling(prints: Prints) -> list[Choice]:
    """Mean and spread that every site counts for equally: the largest one's scanner is not everybody's."""
    known = [one for one in prints.values() if one.mean and one.std]
    if not known:
        return []
    window, chosen = _window(known)
    channels = max(len(one.mean or ()) for one in known)
    # Of each channel the sites' values; a grey site has one for all channels.
    means, spreads = (
        [[(getattr(one, name) * channels)[k] for one in known] for k in range(channels)] for name in ("mean", "std")
    )
    if window is not None:
        low, high = window
        scaled = [np.clip((np.array(one.values) - low) / (high - low), 0, 1) for one in known]
        means, spreads = [[float(one.mean()) for one in scaled]], [[float(one.std()) for one in scaled]]
    centre = [fmean(found) for found in means]
    # The spread of the sites' images together: within sites, and of the sites' means.
    whole = [
        math.sqrt(max(fmean([s**2 + m**2 for s, m in zip(stds, found)]) - middle**2, 0.0))
        for stds, found, middle in zip(spreads, means, centre)
    ]
    reason = f"of the training images' pixels on [0, 1], {len(known)} sites counting alike"
    return [
        *chosen,
        Choice("task.mean", _listed(centre), f"mean {reason}"),
        Choice("task.std", _listed([max(value, LEAST_STD) for value in whole]), f"spread {reason}"),
    ]


def _window(known: Sequence[Fingerprint]) -> tuple[tuple[float, float] | None, list[Choice]]:
    """Ends of the window that all sites' values are scaled by; None unless those of every site are measured.

    Of CT the shortest interval with ``MOSTLY`` of what is no air, and half of its length on either side: that is where
    the tissue is that images are of. Of anything else nearly all values. Sites count alike.
    """
    if any(one.values is None for one in known):
        return None, []
    values = np.sort(np.concatenate([one.values or [] for one in known]))
    tissue = values[values > AIR]
    if values[0] <= AIR and len(tissue) > len(known):
        n = math.ceil(MOSTLY * len(tissue))
        starts, ends = tissue[: len(tissue) - n + 1], tissue[n - 1 :]
        k = int(np.argmin(ends - starts))
        low, high = float(starts[k]), float(ends[k])
        margin = max((high - low) / 2, (NARROWEST - (high - low)) / 2)
        low, high = max(low - margin, AIR - margin), high + margin
        reason = f"most of what is no air, and a margin, lies between {low:.4g} and {high:.4g} Hounsfield units"
    else:
        low, high = float(values[0]), float(values[-1])
        reason = f"the sites' values lie between {low:.4g} and {high:.4g}"
    step = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    low, high = math.floor(round(low / step, 6)) * step, math.ceil(round(high / step, 6)) * step
    text = f"{(low + high) / 2:.6g},{high - low:.6g}"
    return (low, high), [Choice("task.window", text, f"{reason}; what lies outside counts as the nearer end")]


def _effort(effort: Effort, prints: Prints, kind: str) -> list[Choice]:
    """Batch, local steps and rounds, from a usual site: a batch is never larger than the site that it is of."""
    what = f"{FORMS[kind].example}s"
    usual, classes = median(one.n_train for one in prints.values()), max(one.classes for one in prints.values())
    fits = 2 ** int(math.log2(max(usual / effort.batches, 1)))
    batch = min(max(fits, effort.smallest, _power_above(classes)), effort.largest)
    batch = min(max(batch, _power_above(usual / effort.most_steps)), LARGEST_BATCH)
    steps = min(max(math.ceil(usual / batch), effort.fewest_steps), effort.most_steps)
    rounds = min(max(math.ceil(effort.steps / steps), effort.rounds), effort.most_rounds)
    least, most, have = effort.fewest_steps, effort.most_steps, f"a usual site has {usual:.0f} training {what}"
    own = [min(max(math.ceil(one.n_train / batch), least), most) for one in prints.values()]
    return [
        Choice("train.batch_size", batch, f"{have}; a smaller one takes what it has"),
        Choice("train.epochs", 1, f"a round is one pass over a site's own {what}, {_range(sorted(own))} steps here"),
        Choice("train.fewest_steps", least, f"a pass over few {what} is drawn out to so many steps"),
        Choice("train.most_steps", most, "a longer pass goes on in the next round"),
        Choice("train.rounds", rounds, f"{steps * rounds} steps at a usual site, {effort.steps} or more are usual"),
    ]


def _of_table(prints: Prints) -> tuple[list[Choice], bool]:
    """Levels and scaling that the sites agree on; and a linear model with a penalty that suits its number of weights,
    by plain steps that cannot diverge, unless validation asks for a network.

    A penalty of p / (2 n) on the mean loss is a prior under which the logit of p standardised inputs has a spread of
    about 1. Their curvature is at most p / 2, so that plain steps are safe below a rate of 4 / p.

    Returns:
        The choices, and whether the model is linear.
    """
    tables = _tables(prints)
    if not tables:
        return [], False
    found = [Choice(*one) for one in agreed(tables)]
    p, n = max(inputs(tables), 1), sum(one.n_train for one in prints.values())
    gains = [one.network_gain for one in prints.values() if one.network_gain is not None]
    if gains and fmean(gains) >= GAIN and 2 * sum(gain > 0 for gain in gains) > len(gains):
        shown = f"{fmean(gains):.3f} on average over {_sites(len(gains))}"
        text = f"a network's validation log loss is below a linear model's by {shown}"
        return [*found, Choice("task.model", "mlp", text)], False
    said = f"over {_sites(len(gains))} a network's validation log loss is not {GAIN:g} below it"
    return [
        *found,
        Choice("task.model", "linear", said if gains else "few rows"),
        Choice("train.optimizer", "sgd", "plain steps lead a site no further away than its data do"),
        Choice("train.momentum", 0.0, "of plain steps"),
        Choice("train.lr", float(f"{min(FASTEST, REACH / p):.3g}"), f"{p} inputs move together in a step"),
        Choice("train.weight_decay", float(f"{p / (2 * n):.3g}"), f"{p} inputs over 2 x {n} training rows"),
    ], True


def _sites(n: int) -> str:
    return f"{n} site" + ("s" if n > 1 else "")


def _power_above(value: float) -> int:
    return int(2 ** math.ceil(math.log2(max(value, 1))))


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:.3f}" for value in values)


def _range(values: Sequence[int]) -> str:
    return f"{values[0]}" if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
