# SPDX-License-Identifier: Apache-2.0
"""The decision sheet: its numbers are join.json's, its languages say the same, what leaves comes from the schema."""

import json
import re
import string

import pytest
from markupsafe import escape

from cases import each
from fairflare.cli.main import main
from fairflare.core.schema import answer_fields
from fairflare.report.join import LANGUAGES, MOST_NAMES, TEXTS, sheet, sheet_page, texts
from fairflare.report.values import likely
from fairflare.studies.describe import leaving
from fairflare.studies.joined import write_sheets

FIELDS = leaving("fedavg", secure=True, after=False, solo=False)


def candidate(benefit, verdict, p_harm, more=40):
    ends = {"own_low": benefit - 0.02, "own_high": benefit + 0.02, "low": benefit - 0.01, "high": benefit + 0.01}
    shrunken = {"shrunken": benefit * 0.9, "p_harm": p_harm, "verdict": verdict, "more_patients": more}
    return {"benefit": benefit, **ends, **shrunken}


def joined(verdicts=("gains", "cannot be told"), share=0.5, sites=("a", "b"), more=40):
    names = ("fedavg", "fedavg + intercept")
    rows = {
        name: candidate(0.0123 - 0.02 * k, verdict, (0.0317, 0.4321)[k], more)
        for k, (name, verdict) in enumerate(zip(names, verdicts, strict=True))
    }
    mix = {"share": share, "p_harm": 0.0456, "benefit": 0.0078, "low": -0.0012, "high": 0.0165}
    row = {"n": 120, "candidates": rows, "mix": mix}
    about = {"title": "A & B", "task": "heart:full", "methods": ["fedavg"], "folds": 5, "repeats": 3, "margin": 0.002}
    kinds = {site: {"regression": 14, "trees": 1} for site in sites}
    more_of_it = {"candidates": dict.fromkeys(names, {}), "weights": dict(zip(names, (0.25, 0.75), strict=True))}
    return {**about, **more_of_it, "sites": dict.fromkeys(sites, row), "own_models": kinds, "refused": {"small": "n"}}


def leaf_texts(of, path=()):
    if isinstance(of, dict):
        return {key: one for name, more in of.items() for key, one in leaf_texts(more, (*path, name)).items()}
    if isinstance(of, list):
        return {key: one for k, more in enumerate(of) for key, one in leaf_texts(more, (*path, k)).items()}
    return {path: of}


def placeholders(of):
    return sorted(name for _, name, _, _ in string.Formatter().parse(of) if name is not None)


def test_catalogues_have_the_same_keys_and_placeholders():
    assert {path.stem for path in TEXTS.iterdir()} == set(LANGUAGES)
    english = {key: placeholders(one) for key, one in leaf_texts({**texts("en"), "meanings": {}}).items()}
    meanings = {spec.meaning for spec in answer_fields().values()}
    for language in LANGUAGES:
        found = leaf_texts({**texts(language), "meanings": {}})
        assert {key: placeholders(one) for key, one in found.items()} == english, language
        assert set(texts(language)["meanings"]) <= meanings, language
        if language != "en":
            assert {row["meaning"] for row in FIELDS} <= set(texts(language)["meanings"]), language


@each("language", LANGUAGES)
def test_the_numbers_are_those_of_join_json(language):
    found, mark = joined(), texts(language)["decimal"]
    made = sheet(found, "a", FIELDS, language)
    page = sheet_page(made)
    row = found["sites"]["a"]
    assert made["candidates"] == row["candidates"] and {**made["mix"], "sentence": 0} == {**row["mix"], "sentence": 0}
    for one in row["candidates"].values():
        for key in ("benefit", "own_low", "own_high", "shrunken", "low", "high"):
            assert f"{one[key]:+.4f}".replace("-", "\N{MINUS SIGN}").replace(".", mark) in page, (language, key)
        assert f"{one['p_harm']:.2f}".replace(".", mark) in page
    best = row["candidates"]["fedavg"]
    shown = [
        f"{best[key]:+.4f}".replace("-", "\N{MINUS SIGN}").replace(".", mark) for key in ("shrunken", "low", "high")
    ]
    assert all(number in made["answer"]["sentence"] for number in shown)
    assert re.findall(r"(\d+)\s?%", made["mix"]["sentence"])[:3] == ["50", "12", "38"]
    assert f'lang="{language}"' in page and "small" in page
    meanings = [texts(language)["meanings"].get(row["meaning"], row["meaning"]) for row in FIELDS]
    assert all(f"<code>{row['name']}</code>" in page for row in FIELDS)
    assert all(str(escape(meaning)) in page for meaning in meanings)


@each(
    "verdicts, share, more, kind",
    [
        (("gains", "loses"), 0.5, 40, "join"),
        (("loses", "gains"), 0.5, 40, "join_with"),
        (("loses", "loses"), 0.0, 40, "stay"),
        (("no difference that matters",) * 2, 0.0, 40, "same"),
        (("cannot be told", "loses"), 0.0, 40, "needs_more"),
        (("cannot be told", "loses"), 0.0, None, "needs_many"),
    ],
)
def test_every_answer_has_its_sentence(verdicts, share, more, kind):
    for language in LANGUAGES:
        made = sheet(joined(verdicts, share, more=more), "b", FIELDS, language)
        assert made["answer"]["kind"] == kind and "{" not in made["answer"]["sentence"] + made["mix"]["sentence"]
        assert (made["mix"]["sentence"] == texts(language)["no_mix"]) == (share == 0)


@each("language", LANGUAGES)
def test_a_sheet_says_whose_epsilon_it_is_or_that_there_is_none(language):
    found, words = joined(), texts(language)["privacy"]
    assert sheet(found, "a", FIELDS, language)["privacy"] == {"methods": {}, "sentences": [words["none"]]}
    found["methods"] = ["fedavg", "glm"]
    found["privacy"] = {"fedavg": {whose: {"epsilon": 2.5, "delta": 1e-5} for whose in ("record", "hospital")}}
    made = sheet(found, "a", FIELDS, language)
    record, hospital, *rest = made["privacy"]["sentences"]
    number = "2.5".replace(".", texts(language)["decimal"])
    assert all(f"psilon {number} " in one and "elta 1e-05" in one and "fedavg" in one for one in (record, hospital))
    assert rest == [words["uncovered"], words["others"]] and record != hospital
    assert all(str(escape(one)) in sheet_page(made) for one in made["privacy"]["sentences"])


def test_names_are_text_and_no_files_of_their_own(tmp_path):
    """A site's name is no markup, no placeholder and no path; groups are shown where there are any."""
    names = ["<script>alert(1)</script>", "../{0.__class__}", *(f"h{k}" for k in range(30))]
    found = joined(sites=names)
    told = {"benefit": 0.01, "low": -0.02, "high": 0.04}
    group = {"women <b>": {"n": 61, "candidates": dict.fromkeys(found["sites"]["h1"]["candidates"], told)}}
    found["sites"][names[0]] = {**found["sites"]["h1"], "groups": group}
    pages = write_sheets(found, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheets"] and len(pages) == 32
    assert [path.name for path in pages[:3]] == ["hospital-1.html", "hospital-2.html", "h0.html"]
    text = pages[0].read_text()
    assert (
        "<script" not in text
        and "&lt;script&gt;alert(1)" in text
        and "women &lt;b&gt;" in text
        and "+.0100" in text.replace("+0.0100", "+.0100")
    )
    assert "../{0.__class__}" in pages[1].read_text() and f"and {32 - MOST_NAMES} more" in text
    assert json.loads((tmp_path / "sheets" / "hospital-1.json").read_text())["groups"]["women <b>"]["n"] == 61


def test_the_command_writes_a_language_and_refuses_what_is_no_join(tmp_path, capsys):
    (tmp_path / "join.json").write_text(json.dumps(joined()))
    for arguments, code, words in (
        (["--language", "de", "--site", "b"], 0, "b.de.html"),
        (["--site", "c\n"], 2, "--site: expected one of"),
        (["--language", "xx"], 2, "xx"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["sheet", str(tmp_path), *arguments])
        said = capsys.readouterr()
        assert (ended.value.code or 0) == code and words in said.out + said.err
    assert [path.name for path in sorted((tmp_path / "sheets").iterdir())] == ["b.de.html", "b.de.json"]
    for broken in ("{}", '{"sites": {"a": 1}, "candidates": {"x": {}}, "methods": []}', "[1"):
        (tmp_path / "join.json").write_text(broken)
        with pytest.raises(SystemExit) as ended:
            main(["sheet", str(tmp_path)])
        assert ended.value.code == 2 and "join.json: expected" in capsys.readouterr().err


def test_no_probability_reads_as_certainty():
    assert [likely(p) for p in (0.0, 0.0049, 0.005, 0.0317, 0.9949, 0.9951)] == [
        "< 0.01", "< 0.01", "0.01", "0.03", "0.99", "> 0.99"
    ]  # fmt: skip
