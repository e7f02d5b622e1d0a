# SPDX-License-Identifier: Apache-2.0
"""Many cases in one test: a law over all methods, a contract over all files, a refusal over all that is refused.

``each`` takes the place of ``pytest.mark.parametrize`` where cases need no set-up of their own. Every case is tried
whatever becomes of the others; one that fails is reported as a subtest of pytest, by its name. ``pytest --only TEXT``
tries the cases whose name contains TEXT. With ``short`` only those are tried, unless ``--only`` names others
or ``pytest --long`` asks for all.
"""

import contextlib
import functools
import inspect
from importlib.util import find_spec

import pytest

PLAIN = (str, int, float, bool, type(None), list, tuple, dict, bytes)
PARAM = type(pytest.param())
FORGET = {"capsys": "readouterr", "capfd": "readouterr", "caplog": "clear", "recwarn": "clear"}


def each(names, cases, ids=None, short=None):
    """Call the test once per case, with ``names`` from it; its folder, patches and output are the case's own."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = list(cases)
    few = None if short is None else {k for k, case in enumerate(cases) if case in short}
    table = [(*_case(names, case, k, ids), few is None or k in few) for k, case in enumerate(cases)]
    names_of = [name for name, *_ in table]
    table = [(f"{n}#{k}" if names_of.count(n) > 1 else n, *more) for k, (n, *more) in enumerate(table)]
    assert table, f"{names}: no cases"
    assert few != set(), f"{names}: none of the cases is a short one"

    def decorate(test):
        inner, below = getattr(test, "cases", (test, [(None, {}, True)]))
        product = [
            ("-".join(filter(None, (low, high))), {**first, **second}, both and also)
            for high, second, also in table
            for low, first, both in below
        ]
        marks = [*getattr(test, "pytestmark", ()), *([] if few is None else [pytest.mark.long.mark])]
        return _loop(inner, product, marks)

    return decorate


def later(name):
    """The module ``name``, imported when a test uses it: every worker imports every file, and one of them runs it.

    A test that uses it skips where it is not installed.
    """

    class Later:
        def __getattr__(self, attribute):
            return getattr(pytest.importorskip(name), attribute)

    return Later()


def needs(name):
    """A mark: skip where the module ``name`` is not installed, which no other file's tests shall import for it."""
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


def _loop(test, table, marks):
    """The one test of all cases, as pytest sees it."""
    given = inspect.signature(test)
    own = [p for name, p in given.parameters.items() if name not in table[0][1]]
    added = [name for name in ("subtests", "request") if name not in given.parameters]

    def all_cases(*args, **fixtures):
        __tracebackhide__ = True
        subtests, config = fixtures["subtests"], fixtures["request"].config
        fixtures = {name: value for name, value in fixtures.items() if name not in added}
        chosen, skipped = _chosen(table, config), []
        for name, values in chosen:
            try:
                with _own(fixtures) as ready:
                    test(*args, **ready, **values)
            except pytest.skip.Exception as reason:
                skipped.append(str(reason))
            except BaseException as error:
                with subtests.test(name):
                    raise
                if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout"):
                    return  # the time of the whole test is over; it has failed
        if len(skipped) == len(chosen):
            pytest.skip(skipped[0] if skipped else "no case of this name")

    functools.update_wrapper(all_cases, test, updated=())
    del all_cases.__wrapped__
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in added]
    all_cases.__signature__ = given.replace(parameters=[*own, *more])
    all_cases.pytestmark, all_cases.cases = marks, (test, table)
    return all_cases


def _case(names, case, index, ids):
    """A case's name and its values by name, as ``parametrize`` reads them."""
    name = ids[index] if isinstance(ids, (list, tuple)) else None
    if isinstance(case, PARAM):
        assert not case.marks, "marks are of a test, not of a case"
        name, case = case.id, case.values
    elif len(names) == 1:
        case = (case,)
    values = dict(zip(names, case, strict=True))
    if name is None:
        named = {key: ids(value) for key, value in values.items()} if callable(ids) else {}
        name = "-".join(str(named.get(key) or _said(key, value, index)) for key, value in values.items())
    return str(name), values


def _said(key, value, index):
    if isinstance(value, PLAIN) and len(text := str(value)) <= 200:
        return text
    return getattr(value, "__name__", f"{key}{index}")


def _chosen(table, config):
    only, long = config.getoption("--only"), config.getoption("--long")
    return [(name, values) for name, values, short in table if (only or long or short) and only in name]


@contextlib.contextmanager
def _own(fixtures):
    """The test's fixtures for one case: a new folder, patches that end with it, nothing said before."""
    ready = dict(fixtures)
    for name in FORGET.keys() & ready:
        getattr(ready[name], FORGET[name])()
    if base := ready.get("tmp_path"):
        ready["tmp_path"] = base / str(len(list(base.iterdir())))
        ready["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        ready |= {"monkeypatch": patch} if "monkeypatch" in ready else {}
        yield ready
