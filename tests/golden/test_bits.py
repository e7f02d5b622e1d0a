# SPDX-License-Identifier: Apache-2.0
"""Every method makes the very model that it made before, at equal settings, where a machine computes alike.

``bits.json`` holds hashes of final models made before the package was rearranged.
"""

import json

import bits
import pytest

KEPT = json.loads(bits.FILE.read_text())
HERE = bits.arithmetic()
CASES = [pytest.param(case, marks=[pytest.mark.slow] * case.endswith("digits")) for case in KEPT["models"]]


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_one_it_was(case, tmp_path, capsys):
    if KEPT["arithmetic"] != HERE:
        pytest.skip("this machine's torch rounds otherwise than the one that wrote the hashes")
    form, task = case.split(" on ")
    assert bits.make(form, task, tmp_path / "run") == KEPT["models"][case]
