# SPDX-License-Identifier: Apache-2.0
"""Flags and commands that messages print are pasted into a shell as they stand, and mean what they meant."""

import csv
import re
import shlex
import subprocess

from cases import each
from command_line import call
from fairflare.core.validation import LIST_FLAGS, flag
from hospital_tables import cohort

ODD = ("vital status", "it's", "CRP, mg/l", "$HOME `id`", 'a "b"', "x;y", "-", "crp=<0.5", "*")


def pasted(text):
    """The arguments that a shell makes of ``text``."""
    return subprocess.run(f"printf '%s\\0' {text}", shell=True, capture_output=True, text=True).stdout.split("\0")[:-1]


@each("value", ODD)
def test_a_flag_comes_out_of_a_shell_as_it_was(value):
    assert pasted(flag("label", value)) == ["--label", value]
    name, line = pasted(flag("leave-out", value, "other"))
    assert name == "--leave-out" and name[2:] in LIST_FLAGS and next(csv.reader([line])) == [value, "other"]


def test_a_remedy_of_init_works_as_it_is_printed(tmp_path, capsys):
    table = cohort()
    table["CRP, mg/l 'late'"] = table["died"] * 10 + table.index % 3
    table.to_csv(tmp_path / "my table.csv", index=False)
    code, _, err = call(capsys, "init", tmp_path / "my table.csv", "--yes")
    assert code == 2
    for remedy in re.findall(r"\((--(?:keep|leave-out) .*?)\)(?:;|$)", err.strip()):
        code, _, err = call(capsys, "init", tmp_path / "my table.csv", "--dry-run", *pasted(remedy))
        assert code == 0, err
    code, _, _ = call(capsys, "init", tmp_path / "my table.csv", "--yes", *pasted(remedy), "--leave-out", "stage")
    assert code == 0 and "stage" not in (tmp_path / "fairflare" / "dataset.json").read_text()
    assert call(capsys, "preflight", tmp_path / "my table.csv")[:2] == call(capsys, "preflight", tmp_path)[:2]
    (tmp_path / "other").mkdir()
    table.to_csv(tmp_path / "other" / "new.csv", index=False)
    code, _, err = call(capsys, "preflight", tmp_path / "other" / "new.csv")
    command = re.search(r"`(.*)`", err)[1]
    assert code == 2 and shlex.split(command) == ["fairflare", "init", str(tmp_path / "other" / "new.csv")]
