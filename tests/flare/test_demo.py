# SPDX-License-Identifier: Apache-2.0
"""``make demo`` at small size, with real FLARE processes: what it prints, and the page at its end."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from federation_processes import here

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_prints_one_table_one_answer_and_one_page(tmp_path, capsys):
    demo = runpy.run_path(str(ROOT / "jobs" / "demo.py"))
    commands = SimpleNamespace(run=lambda words, **how: here(*words[3:], check=False))  # in this process
    demo["main"].__globals__.update(ROUNDS="2", SEEDS="0,1", subprocess=commands)
    demo["main"](tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 220
    assert [line for line in lines if "page: " in line] == lines[-1:]
    page = Path(lines[-1].removeprefix("page: "))
    text = page.read_text(encoding="utf-8")
    assert lines[-2].startswith("Cleveland") and lines[-2].rstrip(".") in text and "<svg" in text
    for target in ("fair/compare.html", "decision/join.html"):
        assert f'href="{target}"' in text and (page.parent / target).is_file()
    assert (tmp_path / "flare" / "fedism-plus-seed0" / "audit.jsonl").is_file()
