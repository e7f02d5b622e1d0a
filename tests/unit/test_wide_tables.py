# SPDX-License-Identifier: Apache-2.0
"""A table with hundreds of columns and few patients: the default learns, and what has not is named."""

import json

import numpy as np
import pytest

from fairflare.cli.main import main
from fairflare.report.sanity_checks import verdict

SIZES, COLUMNS, TELLING = (240, 150, 92), 206, 8


def write_tables(root, strength, seed=0):
    """482 rows at three sites; columns move together, and eight of them tell the outcome."""
    rng = np.random.default_rng(seed)
    shared, weights = rng.normal(size=(COLUMNS, 15)) * 0.7, np.zeros(COLUMNS)
    weights[rng.permutation(COLUMNS)[:TELLING]] = rng.normal(size=TELLING)
    for k, n in enumerate(SIZES):
        x = rng.normal(size=(n, 15)) @ shared.T + rng.normal(size=(n, COLUMNS))
        z = x @ weights
        ill = rng.random(n) < 1 / (1 + np.exp(1 - 0.3 * k - strength * z / z.std()))
        head = ",".join([*(f"x{i}" for i in range(COLUMNS)), "label"])
        rows = [",".join([*(f"{value:.4f}" for value in row), str(int(one))]) for row, one in zip(x, ill)]
        (root / f"s{k}.csv").write_text("\n".join([head, *rows]))


def learned(root, out, *options):
    """Rows of the section, the sentence, and the Brier score of each site."""
    features = f"features={','.join(f'x{i}' for i in range(COLUMNS))}"
    given = ["--datalists", str(root), "--kind", "tabular", "--classes", "2", "--set", features, "--no-solo"]
    with pytest.raises(SystemExit) as end:
        main(["run", "fedavg", *given, "--workers", "1", "--out", str(out), *options])
    assert not end.value.code
    detail = json.loads((out / "report.json").read_text())["detail"]
    brier = [row["before"]["brier"] for row in detail["clinical"]["rows"]]
    return detail["learned"], verdict(detail), [one["value"] for one in brier]


@pytest.mark.slow
def test_a_wide_tables_risks_are_better_than_its_prevalence(tmp_path):
    write_tables(tmp_path, 2.0)
    found, said, brier = learned(tmp_path, tmp_path / "run")
    assert found["learned"] and not said
    assert all(row["loss"] < row["trivial_loss"] for row in found["rows"])
    assert max(brier) < 0.25 > np.mean(brier) + 0.03


@pytest.mark.slow
def test_a_network_that_has_learned_a_wide_table_by_heart_has_not_learned(tmp_path):
    write_tables(tmp_path, 2.0)
    own = ("model=mlp", "lr=0.003", "weight_decay=0.0005", "best_by=none")
    found, said, _ = learned(tmp_path, tmp_path / "run", *(part for one in own for part in ("--set", one)))
    assert found["learned"] is False and said.startswith("This model has not learned: log loss ")
    assert found["gain"]["high"] < 0 and f"{len(SIZES)} sites" in said


@pytest.mark.slow
def test_columns_that_tell_nothing_are_nothing_to_learn(tmp_path):
    write_tables(tmp_path, 0.0, seed=7)
    found, said, _ = learned(tmp_path, tmp_path / "run")
    assert found["learned"] is not True and found["gain"]["low"] < 0  # three sites are too few to tell more
