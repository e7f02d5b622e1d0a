# SPDX-License-Identifier: Apache-2.0
"""``fairflare prepare`` and a run on what it wrote."""

import json

import pytest

from fairflare.cli.main import main
from quality_tree import write_tree

ICH = dict(n_sites=4, corrupted=1, alpha=20.0, size=32, limit=15)


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Clean images only."""
    root = tmp_path_factory.mktemp("ich")
    write_tree(root / "ICH_20", (22, 34, 30, 36, 58), (4, 5, 4, 5, 8), ".png", False, ())
    return root


def test_two_commands_from_a_published_folder_to_the_papers_table(slices, tmp_path, capsys):
    values = [part for key, value in ICH.items() for part in ("--set", f"{key}={value}")]
    with pytest.raises(SystemExit) as stop:
        main(["prepare", "rsna-ich", str(slices), str(tmp_path / "d"), *values])
    assert stop.value.code == 0 and f"--datalists {tmp_path / 'd'}" in capsys.readouterr().out
    run = ["run", "fedavg", "--datalists", str(tmp_path / "d"), "--rounds", "1", "--set", "min_count=1"]
    with pytest.raises(SystemExit) as stop:
        main([*run, "--out", str(tmp_path / "run"), "--json"])
    report = json.loads(capsys.readouterr().out)["report"]
    assert stop.value.code == 0 and set(report["sites"]) == {f"site-{k}" for k in range(1, 5)}
    assert report["clean"] and report["corrupted"] and report["task"] == "classification:small"
    options = report["detail"]["task"]["options"]
    assert options["mean"] and options["size"] == 32


def test_only_images_from_disk_can_be_prepared(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["prepare", "support2", str(tmp_path), str(tmp_path / "d")])
    told = capsys.readouterr().err
    assert stop.value.code == 2 and "expected one of" in told and "rsna-ich" in told and told.count("\n") == 1
