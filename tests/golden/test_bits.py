# SPDX-License-Identifier: Apache-2.0
"""Every method makes the very model that it made before, at equal settings, where a machine computes alike.

``bits.json`` holds hashes of final models, by machine: those of version 0.1, before the package was rearranged.
"""

import bits
import pytest

from cases import each

KEPT = bits.kept_here()
CASES = [f"{form} on {task}" for task in bits.TASKS for form in bits.FORMS]
OF_IMAGES = {f"{form} on digits" for form in ("fedavg", "fedism-plus", "fedlwr-cka", "fedce-sum")}


@each("case", CASES, short=[case for case in CASES if "digits" not in case or case in OF_IMAGES])
def test_the_model_is_the_one_it_was(case, tmp_path, capsys):
    if case not in KEPT:
        pytest.skip("no machine that rounds as this one wrote a hash of it")
    form, task = case.split(" on ")
    assert bits.make(form, task, tmp_path / "run") == KEPT[case]


def test_every_machine_has_every_hash():
    machines = bits.json.loads(bits.FILE.read_text())
    assert machines and all(set(one["models"]) == set(CASES) for one in machines)
