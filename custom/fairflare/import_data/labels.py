# SPDX-License-Identifier: Apache-2.0
"""What names of folders, columns and cells say, and whether labels are classes.

Several findings in one cell, numbers on a scale and dates are none, and hospitals that spell labels differently have
none in common.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from fairflare.core.errors import UserError
from fairflare.core.validation import flag, in_order, shown, some
from fairflare.data.readers.table_features import ISO, date_forms, iso_date
from fairflare.import_data.cells import Sites
from fairflare.import_data.proposal import SPLIT_OF, Choices, Found, Reading, is_missing


def plain(text: str) -> str:
    """``text`` in lower case, without accents."""
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(sign for sign in parts if not unicodedata.combining(sign))


WORDS: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")).items()
}
STAYS = ("hospitaliz", "hospitalis")
YES, NO = frozenset(WORDS["cell_yes"]), frozenset(WORDS["cell_no"])
EVENT, NO_EVENT = (frozenset({*map(plain, WORDS[f"cell_{key}"]), *WORDS[f"event_{key}"]}) for key in ("yes", "no"))
REVERSED = re.compile("censor|cnsr|alive|surviv")
"""Names, in lower case, of columns whose 1 or yes may say that there was no event."""
SPLITS = re.compile(
    r"(train(?:ing)?s?|val(?:id(?:ation)?)?s?|test(?:ing)?s?|dev|holdout)[\W_]*(?:set|data|daten|split|cases|images|imgs)"
)
PATIENT = re.compile(r"(patient|pat|subject|subj|sub|case|pid|p|id|mrn)[ _-]?\d{2,}.*", re.IGNORECASE)
"""Names of a patient's folder: a word such as "P" or "sub-" and a number of two digits or more."""
NUMBERED_CLASS = re.compile(r"(class|grade|stage|label|level|type|score|kl|birads)?[ _-]?\d{1,2}", re.IGNORECASE)
AFTER = re.compile(
    r"(^|_)(days?|time|months?|years?|hours?|weeks?)_?(to|until|till)_|"
    rf"(^|_)({'|'.join(WORDS['after'])})(_|$)|"
    r"^(time|zeit|(fu|os|pfs|dfs|rfs)_(time|days?|weeks?|months?|years?|tage|monate|event|status))$|"
    r"(_to_|_until_)(event|death|outcome|discharge|relapse|progression|last)"
)
"""Names of columns, in snake case, that say a time to the outcome or something after it."""


_PART_OF = re.compile(r"([a-zà-ÿ])([A-Z])")


def name_words(name: str) -> list[str]:
    """The words of a name: "Mayo-Clinic_2" -> mayo, clinic, 2."""
    return [part for part in re.split(r"[\W_]+", plain(_PART_OF.sub(r"\1 \2", name))) if part]


_BEGINNINGS = tuple(plain(word) for word in WORDS["site_begins"])
_PARTS = tuple(plain(word) for word in WORDS["site_holds"])


PERSON = re.compile(r"patient|subject|participant|pseudonym|proband|teilnehmer|paciente|患者")
"""What names of columns hold that say who it is."""
NOT_PERSON = ("age", "sex", "gender", "type", "weight", "height", "group", "class", "status", "position")


def says_site(name: str) -> bool:
    """Whether a folder's name is that of a hospital, as far as a word says it."""
    whole, words = plain(name), name_words(name)
    if any(stay in whole for stay in STAYS):
        return False
    return (
        any(part in whole for part in _PARTS)
        or any(word.startswith(_BEGINNINGS) for word in words)
        or any(word.rstrip("0123456789") in WORDS["site_alone"] for word in words)
    )


def split_word(name: str) -> str:
    """The split that a name such as "train_set" says, "training", "validation" or "testing"; "" where it says none."""
    word = match[1].rstrip("s") if (match := SPLITS.fullmatch(plain(name).strip())) else ""
    return SPLIT_OF.get(name.strip().lower(), "") or SPLIT_OF.get(word, "")


def says_view(name: str) -> bool:
    """Whether a folder's name is that of a modality, a view or a year, and so no hospital's or patient's."""
    words = name_words(name)
    return bool(words) and (all(word in WORDS["view"] for word in words) or bool(re.fullmatch(r"(19|20)\d\d", name)))


PART = re.compile(
    r"(.*[\W_])?(parts?|images?|imgs?|batch|chunk|archive|zip|vol(ume)?|download|data(set)?|shard|disk|cd|folder)[\W_]*\d+"
)


def are_parts(names: Collection[str]) -> bool:
    """Whether folders are parts of one download, as HAM10000_images_part_1 and images_002: alike but for a number."""
    return (
        len(names) > 1
        and len({re.sub(r"\d+$", "", name) for name in names}) == 1
        and all(PART.fullmatch(plain(name)) for name in names)
        and not any(map(says_site, names))
    )


def says_mask(name: str) -> bool:
    """Whether a folder's name says that masks lie in it: "CT_masks", "Ground Truth"."""
    return any(word in WORDS["mask"] for word in name_words(name))


def says_class(name: str) -> bool:
    """Whether a folder's name is that of a class: a known word, or one such as "grade" with a small number."""
    return (bool(NUMBERED_CLASS.fullmatch(name)) and not name.strip().isdigit()) or any(
        part in WORDS["class"] or (part.startswith("non") and part[3:] in WORDS["class"]) for part in name_words(name)
    )


def event_last(classes: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """``classes`` with the event, whose risk is reported, as the last of two, and whether their names say which it is.

    Names that say nothing keep their order: "1" and "2", "A" and "B".
    """
    says = {one: _says_event(one) for one in classes}
    clear = set(says.values()) == {-1, 1}
    if len(classes) == 2 and not clear:
        one_word = sorted(says.values()) in ([-1, 0], [0, 1])
        clear = one_word and not any(re.fullmatch(r"[-+.\d]+", one.strip()) for one in classes)
    known = clear and (len(classes) == 2 or 0 not in says.values())
    return (tuple(sorted(classes, key=says.__getitem__)) if known else tuple(classes)), known


def _says_event(name: str) -> int:
    """1: the name is an event's; -1: of none; 0: it says neither."""
    words = name_words(name) or [plain(name).strip()]
    turned = len(words) > 1 and words[0] in WORDS["event_not"]
    if turned or name.strip() == "-1":
        return -1
    return ("".join(words) in EVENT) - ("".join(words) in NO_EVENT)


def may_be_turned(name: str, *pairs: Sequence[str]) -> bool:
    """Whether 1 of one of the ``pairs`` of classes may be alive of another, as in a column called survived."""
    return bool(REVERSED.search(name.lower())) and len({*map(_are_answers, pairs)}) > 1


def _are_answers(pair: Sequence[str]) -> bool:
    return all(one.strip().lower() in YES | NO for one in pair)


def mostly(found: Collection[bool]) -> bool:
    return bool(found) and 2 * sum(found) >= len(found)


LATER = re.compile(
    r"(?:^|_)(day|tag|week|wk|woche|month|mon|monat|year|yr|jahr|visit)_?0*(\d{1,4})(?:_|$)|"
    r"(?:^|_)(?:0*(\d{1,4})_?(days?|d|weeks?|wk|months?|mo|years?|y))(?:_|$)|(?:^|_)at_(discharge|follow_?up)(?:_|$)"
)
"""Names, in snake case, that say a later day than that of the first measurements."""
BACK = frozenset(WORDS["span_before"])
"""Words with which a span of time lies before."""
SHORT = re.compile(r"(.+)_([dwmyv])0*(\d{1,3})")
"""A name that says a time by one letter, which counts where the same name with 0 is there: crea_d0, crea_d7."""


def known_after(column: str, others: Collection[str] = ()) -> bool:
    """Whether a column's name says that it is known only at or after the outcome.

    ``others``: names of the table's columns, which say what crea_d7 means.
    """
    words = name_words(column)
    snake = "_".join(words)
    if AFTER.search(snake):
        return True
    if (match := LATER.search(snake)) and not BACK & {*words}:
        unit, number = (match[1], match[2]) if match[1] else (match[4], match[3])
        return not number or (int(number) > (unit in ("day", "days", "tag", "d", "visit")) and int(number) < 1800)
    short = SHORT.fullmatch(snake)
    known = {"_".join(name_words(other)) for other in others} if short else set()
    return (
        short is not None
        and int(short[3]) > 0
        and bool(known & {f"{short[1]}_{short[2]}{zero}" for zero in ["0", "00"]})
    )


YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})([ T].*)?")
YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4}|\d{2})([ T].*)?")
MONTH_NAME = re.compile(r"\d{1,2}(-?)[A-Za-z]{3}\1\d{4}([ T].*)?")


def of_sites(cells: pd.Series, sites: Sites, clock: bool = False) -> pd.Series | None:
    """``as_iso`` for each site by itself, as one may write days first and another months; None where one is unclear."""
    found = [as_iso(cells.iloc[rows], clock) for rows in sites.values()]
    known = [own for own in found if own is not None]
    return pd.concat(known).reindex(cells.index) if len(known) == len(found) else None


def is_date(cell: str) -> bool:
    return bool(YEAR_FIRST.fullmatch(cell) or YEAR_LAST.fullmatch(cell) or MONTH_NAME.fullmatch(cell))


def as_iso(cells: pd.Series, clock: bool = False) -> pd.Series | None:
    """``cells`` as YYYY-MM-DD, "" where empty or no day; None where century, day or month is unclear.

    ``clock``: a time of day stays, as it does where a model reads dates by itself.
    """
    last = [cell for cell in cells.unique() if is_date(cell) and not YEAR_FIRST.fullmatch(cell)]
    forms = date_forms(last) if last else [ISO]
    if len(forms) != 1:
        return None
    read = (ISO, "YYYY/MM/DD", *forms)
    found = {cell: next(filter(None, (iso_date(cell, form) for form in read)), "") for cell in cells.unique()}
    days = {cell: day if clock else day[:10] for cell, day in found.items()}
    return cells.map({cell: day if "1800" <= day[:4] <= "2200" else "" for cell, day in days.items()}).astype(object)


FILLED = 0.9
"""Share of a column's cells from which on it counts as filled."""
FEW_ROWS, MANY_ROWS = 3, 30
"""A label of fewer rows than this is asked about in tables of so many."""
CODES = frozenset(("-9", "-99", "-999", "-1", "99", "999", "9999"))
PAIR = 2
MOST_GRADES = 6
"""Different whole numbers that are classes without being asked about."""
BETWEEN = ("|", ";", "+", "&", "/", ",")
"""Signs that stand between findings."""


def check_outcome(name: str, cells: Iterable[str], chosen: Choices, form: str = "") -> str:
    """Kind of the labels of a table's column ``name``: "classes", or as somebody asked said "regression", "multilabel".

    ``form``: what stands before the names of kinds of the data's form.

    Raises:
        UserError: they are dates, or several findings in one cell or numbers, and nobody can be asked.
    """
    counts = pd.Series(list(cells), dtype=object).value_counts()
    values = [str(value) for value in counts.index]
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    if not chosen.classes:
        amounts = numbers.notna().all() and len(values) > MOST_GRADES
        _check_rare(name, {str(value): int(n) for value, n in counts.items()}, amounts)
    if several := several_in(values):
        text = f"{name}: expected one class in each cell, got several findings in one, such as {shown(several)}"
        readings = [
            Reading("they are several labels of one case", f"--kind {form}multilabel"),
            Reading("another column is the outcome", "--label COLUMN"),
        ]
        if chosen.ask(text, readings):
            raise UserError(f"init: {text}; --label names another column")
        return "multilabel"
    if chosen.classes:
        return "classes"
    if len(values) > 2 and all(is_date(value) for value in values):
        raise UserError(
            f"init: {name}: expected classes, got dates such as {shown(values[0])}; times are not built yet"
        )
    whole = bool((numbers % 1 == 0).all())
    if numbers.isna().any() or len(values) <= 2 or (whole and len(values) <= MOST_GRADES):
        return "classes"
    got = f"{len(values)} different numbers from {numbers.min():g} to {numbers.max():g}"
    amount = Reading("they are an amount", f"--kind {form}regression")
    if not whole or len(values) > 50:
        other = Reading("another column is the outcome", "--label COLUMN")
        if chosen.ask(f"{name}: expected classes, got {got}", [amount, other]):
            raise UserError(f"init: {name}: expected classes, got {got}; --label names another column")
        return "regression"
    names = in_order(values)
    readings = [Reading("they are classes without an order", flag("classes", *names)), amount]
    return "regression" if chosen.ask(f"{name} holds {got}", readings) else "classes"


def _check_rare(name: str, counts: Mapping[str, int], amounts: bool) -> None:
    """Refuse a label of a row or two, as of a line of totals, and a code for missing; of ``amounts`` 9 among grades."""
    total = sum(counts.values())
    rare = [value for value, n in counts.items() if n < FEW_ROWS and not amounts]
    if total >= MANY_ROWS and rare and len(counts) - len(rare) > 1:
        text = f"{shown(rare[0])} has {counts[rare[0]]} of {total} rows"
        raise UserError(f"init: {name}: {text}: a mistake ({flag('missing', rare[0])}), or a class (--classes A,B,...)")
    codes = [value for value in counts if not amounts and (value in CODES or bare(value) in WORDS["cell_unknown"])]
    codes += ["9"] if "9" in counts and {*counts} <= {*"01234569"} else []
    if len(counts) > 2 and codes:
        text = f"{shown(codes[0])} among {some([value for value in in_order(counts) if value not in codes], 4)}"
        gap = flag("missing", f"{name}={codes[0]}")
        raise UserError(f"init: {name}: {text} is a code for missing ({gap}), or a class (--classes A,B,...)")


def same_numbers(labels: Sequence[str]) -> list[str]:
    """``labels`` with 1.0 as 1 where all are numbers, and with accents written in one way."""
    numbers = pd.to_numeric(pd.Series(list(labels), dtype=object), errors="coerce")
    if len(numbers) and numbers.notna().all():
        return [str(int(number)) if number == int(number) else str(number) for number in numbers]
    return [unicodedata.normalize("NFC", label) for label in labels]


def sign_between(cells: Sequence[str]) -> str:
    """The first sign that stands between labels in any cell; "|" counts in any case."""
    return next((sign for sign in BETWEEN if several_in(cells, (sign,))), BETWEEN[0])


def parted(cells: Sequence[str], sign: str) -> list[list[str]]:
    """The labels of each cell, with ``sign`` between them."""
    return [[part.strip() for part in cell.split(sign) if part.strip()] for cell in cells]


def several_in(values: Sequence[str], signs: Sequence[str] = BETWEEN) -> str:
    """A cell that holds several findings: its parts are labels, or parts of other labels; "" where there is none."""
    whole = set(values)
    for sign in signs:
        parts: dict[str, set[str]] = defaultdict(set)
        for value in values:
            for part in value.split(sign):
                parts[part.strip()].add(value)
        for value in values:
            own = [part.strip() for part in value.split(sign)]
            if len(own) > 1 and all(own) and any(part in whole or len(parts[part]) > 1 for part in own):
                return value
    return ""


def with_agreed_labels(found: Found, chosen: Choices) -> Found:
    """``found`` with the same two labels at every site, where the words of all say which is the event.

    Raises:
        UserError: names differ by upper and lower case alone, or hospitals share no label otherwise: they spell them
            differently, or hospital and class are the same.
    """
    labels: dict[str, set[str]] = defaultdict(set)
    for one in found.examples:
        labels[one.site].add(one.label)
    union: set[str] = set().union(*labels.values())
    pairs = {site: event_last(in_order(own)) for site, own in labels.items()}
    if not chosen.classes and len(union) > PAIR and all(sure and len(own) == PAIR for own, sure in pairs.values()):
        ordered = _turned(
            found.options.get("label") or chosen.label, {site: own for site, (own, _) in pairs.items()}, chosen
        )
        usual = Counter(ordered.values()).most_common(1)[0][0]
        read = {site: dict(zip(own, usual, strict=True)) for site, own in ordered.items()}
        examples = [replace(one, label=read[one.site][one.label]) for one in found.examples]
        texts = [
            f"{site}: {some(own, 2)} are read as {some(usual, 2)}" for site, own in ordered.items() if own != usual
        ]
        return replace(found, examples=examples, classes=usual, notes=(*found.notes, *texts))
    if twins := alike(union):
        raise UserError(f"init: labels {shown(twins[0])} and {shown(twins[1])} differ by upper and lower case alone")
    if chosen.classes or len(labels) < 2:
        return found
    joined, seen = {*list(labels)[:1]}, labels[next(iter(labels))]
    while more := {site for site in labels if site not in joined and labels[site] & seen}:
        joined |= more
        seen = seen.union(*(labels[site] for site in more))
    if len(joined) < len(labels) or (all(len(own) <= PAIR for own in labels.values()) and len(union) > PAIR):
        text = "; ".join(f"{site}: {some(in_order(labels[site]), 3)}" for site in in_order(labels)[:3])
        ways = f"({flag('classes', *in_order(union))} takes them for {len(union)} classes)"
        raise UserError(f"init: labels differ between sites ({text}): expected the same, with the same meaning {ways}")
    return found


def _turned(name: str, pairs: Mapping[str, tuple[str, ...]], chosen: Choices) -> Mapping[str, tuple[str, ...]]:
    """Site -> its two classes, the event last, where 1 of the column ``name`` may be no event: asked about."""
    if not may_be_turned(name, *pairs.values()):
        return pairs
    none, event = next(own for own in pairs.values() if _are_answers(own))
    words = next(own for own in pairs.values() if not _are_answers(own))
    readings = [Reading(f"{one} is {words[1]}", flag("event-value", one)) for one in (none, event)]
    if told := [one for one in chosen.event_value if _are_answers([one])]:
        turned = _says_event(told[0]) < 0
    else:
        turned = not chosen.ask(f"{name}: holds {none}, {event} at some sites and {some(words, 2)} at others", readings)
    return {site: own[::-1] if turned and _are_answers(own) else own for site, own in pairs.items()}


ATTRIBUTES, AGE = WORDS["column_group"], WORDS["column_age"]
BANDS = ((40, "under 40"), (60, "40 to 59"), (80, "60 to 79"), (1000, "80 and over"))
BAND = "age_band"
MOST_VALUES = 8
HEADERS: Mapping[str, str] = {
    "sex": "PatientSex",
    "age": "PatientAge",
    "manufacturer": "Manufacturer",
    "model": "ManufacturerModelName",
    "station": "StationName",
}
"""What a group may be called -> the DICOM header that says it."""
DICOM_AGE = re.compile(r"(\d{1,3})([YMWD])")
YEARS = {"Y": 1.0, "M": 12.0, "W": 52.18, "D": 365.25}


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of ``names`` that differ by upper and lower case alone; None where there are none."""
    names, lower = list(names), dict[str, str]()
    if len({name.casefold() for name in names}) == len({*names}):
        return None
    found = ((lower.setdefault(name.casefold(), name), name) for name in in_order(names))
    return next((pair for pair in found if pair[0] != pair[1]), None)


def bare(name: str) -> str:
    """``name`` in lower case, letters and digits alone."""
    return "".join(sign for sign in name.lower() if sign.isalnum())


def years(cells: pd.Series) -> pd.Series:
    """Ages as numbers; DICOM writes 045Y or 018M. NaN where a cell is no age."""
    found = cells.map(lambda cell: float(m[1]) / YEARS[m[2]] if (m := DICOM_AGE.fullmatch(cell)) else cell)
    return pd.to_numeric(found, errors="coerce")


def groups_of(table: pd.DataFrame, taken: Sequence[str], asked: Sequence[str]) -> list[dict[str, str]]:
    """Of each row the groups that its patient is in: name -> value, without what is missing; ages as bands.

    Columns with usual names count, but those that are ``taken``, and those that are ``asked`` for.

    Raises:
        UserError: one that is asked for is not there, or has too many values for groups.
    """
    about: list[dict[str, str]] = [{} for _ in range(len(table))]
    for name in table.columns:
        plain, cells = bare(name), table[name]
        if name not in asked and (name in taken or plain not in {*AGE, *ATTRIBUTES}):
            continue
        values = [cell for cell in cells.unique() if not is_missing(cell)]
        few = 2 <= len(values) <= MOST_VALUES and not any(sign in value for value in values for sign in "|;=+")
        ages = years(pd.Series(values, index=values, dtype=object)) if plain in AGE else pd.Series(dtype=float)
        if len(ages) and ages.reindex(cells[cells.isin(values)]).notna().mean() >= FILLED:
            key, known = (
                BAND,
                {cell: next((word for most, word in BANDS if age < most), "") for cell, age in ages.items()},
            )
        elif few and (plain in ATTRIBUTES or name in asked):
            key, known = name, {value: value for value in values}
        elif name in asked and len(values) > 1:
            text = f"2 to {MOST_VALUES} values without the signs | ; = +, got {some(in_order(values))}"
            raise UserError(f"--groups: {name}: expected {text}")
        else:
            continue
        for row, cell in zip(about, cells, strict=True):
            row |= {key: known[cell]} if known.get(cell) else {}
    if lost := [name for name in asked if name not in table.columns]:
        text = f"expected columns, levels or headers among {some(list(table.columns), 12)}, got {lost[0]!r}"
        raise UserError(f"--groups: {text}")
    return about
