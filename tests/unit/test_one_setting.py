# SPDX-License-Identifier: Apache-2.0
"""The way of one setting from the command line to the first step: how often it is read, and what is built of it."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import fairflare
from fairflare.cli.main import cli
from fairflare.core import validation
from fairflare.core.settings import Given
from fairflare.probes.sharpness import Sharpness
from fairflare.trainers.gsam import GSAM

PACKAGE = Path(fairflare.__file__).parent
VALUE = 0.0731953
SHARED_BY = 2
"""Parts that ``rho_max`` is a setting of: FedISM+'s trainer and its probe."""
FILES, CALLS, PARSES = 10, 100, 1
"""Ceilings: files that are given the value as plain data, calls of them, and checks of it for each part."""


class FirstStep(BaseException):
    """The run has come to it."""


def holds(value, depth=0):
    """Whether plain data have the value: a text, a number, or containers of these, but no object that was built."""
    if isinstance(value, Given):
        return holds(value.value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return depth < 4 and any(holds(one, depth + 1) for one in value)
    return value == VALUE if isinstance(value, float) else isinstance(value, str) and value.endswith(str(VALUE))


def arguments(frame):
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return [frame.f_locals.get(name) for name in code.co_varnames[:count]]


@pytest.fixture(scope="module")
def way(tmp_path_factory):
    """Files that are given the value, checks of it, and objects that have it, until a part works with it."""
    files, parses, built = Counter(), Counter(), {}
    places = {}

    def watch(frame, event, _):
        code = frame.f_code
        if code not in places:
            path = Path(code.co_filename)
            places[code] = path.relative_to(PACKAGE).as_posix() if PACKAGE in path.parents else ""
        if not (where := places[code]):
            return
        if where.startswith(("trainers/", "probes/")) and code.co_name in ("train", "measure"):
            raise FirstStep
        given = arguments(frame)
        if code.co_name == "__post_init__" and getattr(given[0], "rho_max", None) == VALUE:
            built[id(given[0])] = given[0]
        if any(map(holds, given)):
            files[where] += 1
            parses[where] += code in (validation.exact.__code__, validation.parsed.__code__)

    folder = tmp_path_factory.mktemp("run")
    line = f"run fedism-plus --task heart --rounds 1 --workers 1 --set rho_max={VALUE} --out {folder / 'one'}"
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        with pytest.raises(FirstStep):
            cli.main(line.split(), standalone_mode=False)
    finally:
        sys.settrace(before)
    return files, parses.total(), Counter(type(one) for one in built.values())


def test_a_setting_passes_few_files(way):
    files, _, _ = way
    assert len(files) <= FILES and files.total() <= CALLS, dict(files)


def test_a_setting_is_read_once_for_each_part_that_has_it(way):
    assert way[1] <= PARSES * SHARED_BY


def test_each_part_of_a_setting_is_built_once(way):
    assert way[2] == {Sharpness: 1, GSAM: 1}
