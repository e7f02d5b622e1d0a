# SPDX-License-Identifier: Apache-2.0
"""Grids of settings on the command line."""

import json

import pytest

from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.studies.labels import comparison_name, folder_name, on_grid


def test_a_grid_is_every_combination_for_methods_that_have_the_keys():
    labels = on_grid(("fedavg", "fedufo:level=client"), ("radius=0,0.5", "beta=0,1"))
    assert labels == [
        "fedavg",
        "fedufo:level=client,radius=0,beta=0",
        "fedufo:level=client,radius=0,beta=1",
        "fedufo:level=client,radius=0.5,beta=0",
        "fedufo:level=client,radius=0.5,beta=1",
    ]


def test_no_grid_changes_nothing():
    assert on_grid(("fedavg", "fedism-plus:state=L"), ()) == ["fedavg", "fedism-plus:state=L"]


@pytest.mark.parametrize("key", ["train.lr", "lr", "clip_updates", "run.solo", "after", "after.penalty", "trainer"])
def test_a_grid_takes_the_names_that_every_method_has(key):
    assert on_grid(("fedavg", "fedufo"), (f"{key}=1",)) == [f"fedavg:{key}=1", f"fedufo:{key}=1"]


@pytest.mark.parametrize("grid, message", [("radios=1,2", "no METHOD has the key 'radios'"), ("radius", "KEY=VALUE")])
def test_a_grid_that_fits_nothing_is_refused(grid, message):
    with pytest.raises(UserError, match=message):
        on_grid(("fedavg", "fedufo"), (grid,))


def test_a_sweep_shows_disparity_beside_accuracy(tmp_path, capsys):
    command = ["compare", "fedavg", "fedufo", "--task", "support2", "--rounds", "2", "--set", "group_by=label+sex"]
    with pytest.raises(SystemExit) as end:
        main([*command, "--grid", "radius=0,0.5", "--out", str(tmp_path / "c"), "--json"])
    assert end.value.code == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    assert len(methods) == 3 and all(m["group_disparity"]["mean"] > 0 for m in methods)
    assert "Disparity over groups" in (tmp_path / "c" / "compare.html").read_text()


def test_a_comparison_with_other_choices_has_another_folder():
    plain = comparison_name("support2", {"rounds": None, "values": {}, "fixed_data": False, "env": "local"})
    grouped = comparison_name("support2", {"values": {"group_by": "label+sex"}})
    assert plain == "compare-support2" and grouped.startswith("compare-support2-") and grouped != plain
    assert comparison_name("ich-phantom:small", {"env": "sim"}).startswith("compare-ich-phantom-small-")


def test_folders_have_names_that_a_file_system_takes():
    assert folder_name("fedism-plus:state=L,q=1") == "fedism-plus-state=L-q=1"
    for label in ("a" * 500, "\N{CJK UNIFIED IDEOGRAPH-75C5}" * 100, "\N{CYRILLIC SMALL LETTER A}" * 100):
        name = folder_name(label)
        assert label.startswith(name[:-9]) and len(name.encode()) <= 210
        assert name != folder_name(label + "b")
