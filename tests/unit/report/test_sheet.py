# SPDX-License-Identifier: Apache-2.0
"""The decision sheet: its numbers are those of decision.json, its languages say the same, names are text."""

import json
import string

import pytest
from markupsafe import escape

from cases import each
from decisions import decided
from fairflare.cli.main import main
from fairflare.decision.study import ANSWERS, PARTICIPATION
from fairflare.decision.verdicts import REASONS
from fairflare.report.decision import LANGUAGES, TEXTS, sheet_page, texts
from fairflare.report.values import likely


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
    english = {key: placeholders(one) for key, one in leaf_texts(texts("en")).items()}
    for language in LANGUAGES:
        found = {key: placeholders(one) for key, one in leaf_texts(texts(language)).items()}
        assert found == english, language
        assert set(texts(language)["verdicts"]) == set(texts(language)["todo"]) == set(ANSWERS)
        assert set(texts(language)["participations"]) == set(PARTICIPATION)


@each("language", LANGUAGES)
@each("verdict", ANSWERS)
def test_the_numbers_are_those_of_the_decision(verdict, language):
    found, words = decided(verdict), texts(language)
    page = sheet_page(found, "a", language)
    mark = "," if words["decimal"] == "," else "."
    for number in ("+10.0", "+20.0", "\u22122.3", "+7.7", "+65.6"):  # J, D and ends, in thousandths
        assert number.replace(".", mark) in page, number
    assert str(escape(words["verdicts"][verdict])) in page and str(escape(words["todo"][verdict])) in page
    assert str(escape(words["mix"].format(share=40))) in page and page.count("<svg") == 1
    assert str(escape(words["further"].format(low=f"0{mark}61", high=f"1{mark}65"))) in page
    assert all(str(escape(line)) in page for line in words["signatures"]) and 'class="sign"' in page
    assert str(escape(words["no_mix"])) in sheet_page(decided(share=0.0), "a", language)


def test_another_row_has_another_hash():
    one, other = decided(), decided()
    other["sites"]["a"]["estimands"]["U"]["value"] += 1e-9
    assert sheet_page(one, "a") == sheet_page(decided(), "a") and sheet_page(one, "a") != sheet_page(other, "a")


@each("language", LANGUAGES)
def test_a_withheld_answer_has_its_reason_in_every_language(language):
    found, words = decided("cannot be told"), texts(language)
    assert set(words["withheld"]) == set(REASONS) - {"few_patients", "few_outcomes"}, "these have no sheet"
    for code, said in words["withheld"].items():
        found["sites"]["a"] |= {"reason_code": code, "reason_value": 0.51}
        page = sheet_page(found, "a", language)
        assert str(escape(said.format(value=0.51))) in page
        assert (str(escape(words["no_answer"])) in page) == (code != "few_events")


def test_names_are_text(tmp_path):
    page = sheet_page(decided(site="<b>x"), "<b>x")
    assert "<b>x" not in page and "&lt;b&gt;x" in page


def test_the_command_writes_a_language_and_refuses_what_is_no_decision(tmp_path, capsys):
    (tmp_path / "decision.json").write_text(json.dumps(decided()))

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["join-sheet", *map(str, words)])
        return ended.value.code, capsys.readouterr()

    code, said = run(tmp_path, "--language", "fr", "--site", "a")
    assert code == 0 and said.out.split() == [str(tmp_path / "sheets" / "a.fr.html")]
    assert 'lang="fr"' in (tmp_path / "sheets" / "a.fr.html").read_text()
    code, said = run(tmp_path, "--site", "nobody")
    assert code == 2 and "--site: expected one of" in said.err and said.err.count("\n") == 1
    (tmp_path / "decision.json").write_text('{"sites": {"a": {"reason": "too few"}}}')
    code, said = run(tmp_path)
    assert code == 2 and "a: too few" in said.err


def test_no_probability_reads_as_certainty():
    assert [likely(p) for p in (0.0, 0.0049, 0.005, 0.0317, 0.9949, 0.9951)] == [
        "< 0.01", "< 0.01", "0.01", "0.03", "0.99", "> 0.99"
    ]  # fmt: skip
