# SPDX-License-Identifier: Apache-2.0
"""What names of folders, columns and cells say: a hospital, a class, a patient, yes or no, a time after the outcome."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Collection
from datetime import date
from pathlib import Path

import pandas as pd
import yaml

from fairflare.import_data.proposal import SPLIT_OF

WORDS: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")).items()
}
STAYS = ("hospitaliz", "hospitalis")
YES, NO = frozenset(WORDS["cell_yes"]), frozenset(WORDS["cell_no"])
SPLITS = re.compile(
    r"(train(?:ing)?s?|val(?:id(?:ation)?)?s?|test(?:ing)?s?|dev|holdout)[\W_]*(?:set|data|daten|split|cases|images|imgs)"
)
PATIENT = re.compile(r"(patient|pat|subject|subj|sub|case|pid|p|id|mrn)[ _-]?\d{2,}.*", re.IGNORECASE)
NUMBERED_CLASS = re.compile(r"(class|grade|stage|label|level|type|score|kl|birads)?[ _-]?\d{1,2}", re.IGNORECASE)
AFTER = re.compile(
    r"(^|_)(days?|time|months?|years?|hours?|weeks?)_?(to|until|till)_|"
    r"(^|_)(los|length_of_stay|liegedauer|verweildauer|follow_?up|survival|discharged?|entlass\w*|deceased|death|died|"
    r"dod|tod|todes\w*|mortality|autops\w*|obdukt\w*|palliat\w*|event|outcome|censor(ed|ing)?|readmi\w*|"
    r"post_?(op|outcome|event|discharge)\w*|hospital_days|days_in_hospital|icu_(days|stay|los)|stay_days|tte|ttd|"
    r"time_at_risk|surv|vital_status|last_contact|last_seen|sterbe\w*|u(e)?berleb\w*|nachbeobacht\w*)(_|$)|"
    r"^(time|zeit|(fu|os|pfs|dfs|rfs)_(time|days?|weeks?|months?|years?|tage|monate|event|status))$|"
    r"(_to_|_until_)(event|death|outcome|discharge|relapse|progression|last)"
)
"""Names of columns, in snake case, that say a time to the outcome or something after it."""


_PART_OF = re.compile(r"([a-zà-ÿ])([A-Z])")


def plain(text: str) -> str:
    """``text`` in lower case, without accents."""
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(sign for sign in parts if not unicodedata.combining(sign))


def _parts(name: str) -> list[str]:
    """The words of a name: "Mayo-Clinic_2" -> mayo, clinic, 2."""
    return [part for part in re.split(r"[\W_]+", plain(_PART_OF.sub(r"\1 \2", name))) if part]


_BEGINNINGS = tuple(plain(word) for word in WORDS["site_begins"])
_PARTS = tuple(plain(word) for word in WORDS["site_holds"])


def says_site(name: str) -> bool:
    """Whether a folder's name is that of a hospital, as far as a word says it."""
    whole, words = plain(name), _parts(name)
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
    words = _parts(name)
    return bool(words) and (all(word in WORDS["view"] for word in words) or bool(re.fullmatch(r"(19|20)\d\d", name)))


def says_mask(name: str) -> bool:
    """Whether a folder's name says that masks lie in it: "CT_masks", "Ground Truth"."""
    return any(word in WORDS["mask"] for word in _parts(name))


def looks_numbered(names: Collection[str]) -> bool:
    """Whether names are of one pattern with a number of three digits or more: TCGA_CS_4900, 1020."""
    shapes = {re.sub(r"\d+", "#", name) for name in names}
    return len(shapes) == 1 and all(re.search(r"\d{3,}", name) for name in names)


def says_class(name: str) -> bool:
    """Whether a folder's name is that of a class: a known word, or one such as "grade" with a small number."""
    return (bool(NUMBERED_CLASS.fullmatch(name)) and not name.strip().isdigit()) or any(
        part in WORDS["class"] or (part.startswith("non") and part[3:] in WORDS["class"]) for part in _parts(name)
    )


def says_patient(name: str) -> bool:
    """Whether a folder's name is that of a patient: a word such as "P" or "sub-" and a number of two digits or more."""
    return bool(PATIENT.fullmatch(name)) and not says_site(name)


def mostly(found: Collection[bool]) -> bool:
    """Whether at least half are true."""
    return bool(found) and 2 * sum(found) >= len(found)


def known_after(column: str) -> bool:
    """Whether a column's name says that it is known only at or after the outcome."""
    snake = "_".join(_parts(column))
    return bool(AFTER.search(snake))


YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})([ T].*)?")
YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4}|\d{2})([ T,].*)?")


def of_sites(cells: pd.Series, sites: pd.Series) -> pd.Series | None:
    """``as_iso`` for each site by itself, as one may write days first and another months; None where one is unclear."""
    found = [as_iso(own) for _, own in cells.groupby(sites.to_numpy())]
    known = [own for own in found if own is not None]
    return pd.concat(known).reindex(cells.index) if len(known) == len(found) else None


def is_date(cell: str) -> bool:
    return bool(YEAR_FIRST.fullmatch(cell) or YEAR_LAST.fullmatch(cell))


def as_iso(cells: pd.Series) -> pd.Series | None:
    """``cells`` as YYYY-MM-DD, "" where empty or no day; None where century, day or month is unclear."""
    last = [match for cell in cells if (match := YEAR_LAST.fullmatch(cell))]
    day_first = any(match[2] == "." or int(match[1]) > 12 for match in last)
    month_first = any(int(match[3]) > 12 for match in last)
    if (
        len({match[2] for match in last}) > 1
        or any(len(match[4]) == 2 for match in last)
        or (last and day_first == month_first)
    ):
        return None

    def iso(cell: str) -> str:
        if match := YEAR_FIRST.fullmatch(cell):
            year, month, day = match[1], match[2], match[3]
        elif match := YEAR_LAST.fullmatch(cell):
            year, day, month = match[4], *((match[1], match[3]) if day_first else (match[3], match[1]))
        else:
            return ""
        with contextlib.suppress(ValueError):  # no day of a calendar
            return date(int(year), int(month), int(day)).isoformat() if 1800 <= int(year) <= 2200 else ""
        return ""

    return cells.map(iso)
