# SPDX-License-Identifier: Apache-2.0
"""The contract that every method obeys; what is particular to fedprox is in unit/test_personal.py."""

from pathlib import Path

import pytest

from fairflare.core.registry import get_method
from fairflare.testing import check_trainer
from fairflare.testing.laws import CHECKS
from plugin_files import FOLDER


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(plugin, check):
    check(get_method("fedprox"))


def test_contract_of_its_trainer(plugin):
    check_trainer("fedprox")


def test_it_is_one_short_file():
    assert len(Path(FOLDER, "fedprox.py").read_text().splitlines()) <= 80
