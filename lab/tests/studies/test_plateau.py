# SPDX-License-Identifier: Apache-2.0
"""The plateau bench: its page follows from its files, its verdicts from its rule, and its placebos are placebos."""

import dataclasses
import importlib
import json
import sys

import numpy as np
import pytest
from printed_commands import ROOT
from scipy import stats

from fairflare.core.errors import UserError
from fairflare.engine.setup import tasks
from plugin_files import loaded

FOLDER = ROOT / "lab" / "plateau"
sys.path[:0] = [str(FOLDER), str(ROOT / "docs" / "results")]
import kept  # noqa: E402
import plateau_page as page  # noqa: E402
import plateau_regimes as regimes  # noqa: E402

DONE = [regime for regime in regimes.REGIMES if page.endpoint(regime)]
KEYS = [regime.key for regime in DONE]
JUDGED = [regime for regime in DONE if not regime.baselines]
OWN = [regime for regime in regimes.REGIMES if regime.baselines]


@pytest.fixture(scope="module")
def run():
    """The command's module; what it registers is known to these tests alone."""
    known = dict(tasks.ADDED)
    with loaded():
        yield importlib.import_module("plateau_run")
    tasks.ADDED.clear()
    tasks.ADDED.update(known)
    for name in ("plateau_run", "plateau_parts"):
        sys.modules.pop(name)


def test_page_and_cards_follow_from_the_files_which_are_small(tmp_path):
    assert page.PAGE.read_text(encoding="utf-8") == page.written()
    page.write_shown(tmp_path / page.SHOWN.name, page.shown())
    assert page.SHOWN.read_bytes() == (tmp_path / page.SHOWN.name).read_bytes()
    for name in page.CARDS:
        card = page.card_of(name).read_text(encoding="utf-8")
        assert card == page.with_bench(card, name), f"{name}: python lab/plateau/plateau_page.py writes it"
    files = [path for path in page.RESULTS.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert json.loads((page.RESULTS / "about.json").read_text(encoding="utf-8"))["versions"]["fairflare"]


@pytest.mark.parametrize("regime", DONE, ids=KEYS)
def test_every_arm_has_the_same_seeds_and_the_configuration_that_is_declared(regime, run):
    rows = page.rows_of(regime)
    seeds = {arm: {int(row["seed"]) for row in rows if row["arm"] == arm} for arm in regime.arms}
    assert len(set(map(frozenset, seeds.values()))) == 1
    assert seeds[regime.method] <= set(regimes.SEEDS)
    first = min(seeds[regime.method])
    said = {row["arm"]: row["config"] for row in rows if int(row["seed"]) == first}
    for arm in list(regime.arms)[:7]:
        assert said[arm] == run.configured(regime, regime.arms[arm], first).sha256()[:12], arm


@pytest.mark.parametrize("regime", JUDGED, ids=[regime.key for regime in JUDGED])
def test_intervals_and_verdicts_on_the_page_are_those_of_scipy_and_of_the_rule(regime):
    """Read from the page's own words and worked out from the values by other code."""
    text = f"\n{kept.shown(page.RESULTS)}".split(f"\n## {regime.title}\n")[1].split("\n## ")[0]
    values = page.endpoint(regime)
    n, scale = len(values[regime.method]), page.factor(regime)
    assert f"{n} of {len(regimes.SEEDS)} seeds" in text
    ends, p = {}, {}
    for arm in regime.comparisons:
        differences = values[regime.method] - values[arm]
        words = regime.arms[arm].words if arm in regime.arms else page.EXTRA[arm]
        row = next(line for line in text.splitlines() if line.startswith(f"| {words} |"))
        assert f"{scale * differences.mean():+.{page.PLACES[scale]}f}" in row
        if n < 2:
            continue
        spread = stats.sem(differences)
        low, high = stats.t.interval(0.95, n - 1, differences.mean(), spread) if spread else [differences.mean()] * 2
        ends[arm] = low, high
        assert f"[{scale * low:+.{page.PLACES[scale]}f}, {scale * high:+.{page.PLACES[scale]}f}]" in row
        signs = np.array([[1 - 2 * (k >> bit & 1) for bit in range(n)] for k in range(2**n)])
        p[arm] = (np.abs(signs @ differences) >= abs(differences.sum()) * (1 - 1e-12)).mean()
    gap = values[regime.ceiling] - values["examples" if regime.key == regimes.CONTRIBUTION else "fedavg"]
    said = text.split(f"**{regime.arms[regime.method].words}: ")[1].split(".**")[0]
    if n < 2:
        assert said == page.UNDECIDED
        return
    least = stats.t.interval(0.95, n - 1, gap.mean(), stats.sem(gap))[0]
    ordered = sorted(p.values())
    decided = all(value * (len(ordered) - k) <= 0.05 for k, value in enumerate(ordered))
    if least <= 0:
        expected = page.NO_ROOM
    elif decided and all(low > 0 for low, _ in ends.values()):
        expected = page.CONFIRMED
    else:
        expected = page.CONTRADICTED if any(high < regime.matters for _, high in ends.values()) else page.UNDECIDED
    assert said == expected
    lines = page.PAGE.read_text(encoding="utf-8").splitlines()
    overview = next(line for line in lines if line.startswith(f"| {regime.title} |"))
    assert f"| {expected} |" in overview


@pytest.mark.parametrize("regime", OWN, ids=[regime.key for regime in OWN])
def test_baselines_on_the_page_are_held_against_fedavg_and_training_alone(regime):
    """Of what has run: differences and intervals by other code."""
    text = f"\n{kept.shown(page.RESULTS)}".split(f"\n## {regime.title}\n")[1].split("\n## ")[0]
    values = page.endpoint(regime)
    if not values:
        assert "**Not run**" in text
        return
    assert f"{len(values['solo'])} of {len(regimes.SEEDS)} seeds; {2 * len(regime.baselines)} comparisons" in text
    assert len(regime.baselines) == len(set(regime.baselines)) and set(regime.baselines) < set(regime.arms)
    for arm in regime.baselines:
        row = next(line for line in text.splitlines() if line.startswith(f"| {regime.arms[arm].words} |"))
        for than in ("fedavg", "solo"):
            differences = values[arm] - values[than]
            assert f"{100 * differences.mean():+.1f}" in row
            if len(differences) > 1:
                low, high = stats.t.interval(0.95, len(differences) - 1, differences.mean(), stats.sem(differences))
                assert f"[{100 * low:+.1f}, {100 * high:+.1f}]" in row


def test_a_rule_decides_nothing_without_room_or_with_few_seeds():
    regime = regimes.QUALITY
    gain, noise = np.array([0.05, 0.06, 0.04, 0.05, 0.07, 0.05, 0.06, 0.05]), np.linspace(0, 0.01, 8)
    values = {"fedavg": noise, "passes": noise, "placebo": noise, "method": gain, "ceiling": gain + 0.02}
    assert page.verdict(regime, values) == page.CONFIRMED
    assert page.verdict(regime, {arm: of[:6] for arm, of in values.items()}) == page.UNDECIDED
    assert page.verdict(regime, {**values, "placebo": gain + noise}) == page.CONTRADICTED
    assert page.verdict(regime, {**values, "ceiling": noise[::-1]}) == page.NO_ROOM


def test_kendall_and_shapley_of_a_game_with_a_known_value(tmp_path, monkeypatch, run):
    """Each site adds its own worth: estimates in that order have tau 1, reversed ones -1."""
    adds = dict(zip(regimes.SITES, (0.1, 0.02, 0.05, 0.08, 0.03, 0.01)))
    regime = next(one for one in regimes.REGIMES if one.key == regimes.CONTRIBUTION)
    values = []
    for arm in regime.arms:
        team = [site for site in regimes.SITES if arm.startswith("coalition-") and site[-1] in arm.split("-")[1]]
        score = 0.1 + sum(adds[site] for site in team)
        values += [[regime.key, 0, arm, "", "", "", name, score, 0] for name in regime.endpoint]
    heads = ["regime", "seed", "arm", "config", "cpu_seconds", "chosen_weight", "set", "score", "loss"]
    run.write(tmp_path / "values.csv", heads, values)
    said = [
        [regime.key, 0, arm, site, sign * one]
        for arm, sign in (("method", 1), ("cgsv", -1))
        for site, one in adds.items()
    ]
    run.write(tmp_path / "contribution.csv", ["regime", "seed", "arm", "site", "estimate"], said)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    found = page.taus(regime)
    assert [found[arm][0] for arm in ("method", "cgsv", "loo", "ceiling", "placebo")] == pytest.approx([1, -1, 1, 1, 0])


@pytest.mark.parametrize("key", ["quality", "looks", "subgroups", "contribution", "layers-early"])
def test_a_regime_can_be_run_and_read(key, tmp_path, run):
    """Two rounds of the method's placebo or, in contribution, of a coalition, through the command's own code."""
    regime = next(one for one in regimes.REGIMES if one.key == key)
    arm = "coalition-25" if key == regimes.CONTRIBUTION else "placebo"
    run.make(dataclasses.replace(regime, rounds=2), arm, 0, tmp_path)
    found = json.loads((tmp_path / key / f"{arm}-seed0.json").read_text(encoding="utf-8"))
    assert set(found["scores"]) >= {"validation", *(name for name in regime.endpoint)}
    assert all(len(of[regime.metric]) == 2 for of in found["scores"].values())
    weights = found["weights"]
    assert sum(weights.values()) == pytest.approx(1)
    if key == regimes.CONTRIBUTION:
        assert sorted(weights) == ["site-2", "site-5"]


def test_scans_are_read_from_the_named_folder_and_no_split_is_mixed(tmp_path, monkeypatch, run):
    """Images of the value of their split, 10, 20 or 30: sites train on the first, tests hold the last."""
    sizes = {"train": (10, 1300), "val": (20, 1010), "test": (30, 1010)}
    images = {f"{name}_images": np.full((n, 28, 28), grey, np.uint8) for name, (grey, n) in sizes.items()}
    labels = {f"{name}_labels": np.arange(n)[:, None] % 6 for name, (_, n) in sizes.items()}
    np.savez(tmp_path / "mednist28.npz", **images, **labels)
    task = run.plateau_parts.Scans()
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    with pytest.raises(UserError, match="FAIRFLARE_DATA"):
        task.built()
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    sites, sets = task.built()
    grey = {kind: np.unique(np.round(255 * sets[kind][0])).tolist() for kind in ("clean", "blur")}
    assert grey["clean"] == [30] and max(grey["blur"]) <= 30 and len(np.unique(sets["noise"][0])) > 1000
    for site, kind in task.sites().items():
        x, y, _ = sites[site]["train"]
        assert x.shape == (60, 784) and abs(np.bincount(y) - 10).max() <= 1
        assert len(np.unique(x)) > 1000 if kind == "noise" else np.round(255 * x).max() <= 10
    assert len(sets["validation"][1]) == 1000 and np.round(255 * sets["validation"][0][:800]).max() == 20


def test_what_fedheal_tells_of_its_updates_leaves_them_as_they_are(tmp_path, run):
    """FPHL with tau 0 is FedAvg, and the rule that tells is FedHEAL."""
    regime = dataclasses.replace(regimes.LOOKS_SGD, rounds=3, values={**regimes.LOOKS_SGD.values, "epochs": 1})
    plain = {"plain": regimes.Arm("fedavg", ""), "untold": regimes.Arm("fedheal:parts=both", "")}
    regime = dataclasses.replace(regime, arms={**regime.arms, **plain})
    found = {}
    for arm in ("fedavg", "plain", "method", "untold"):
        run.make(regime, arm, 0, tmp_path)
        found[arm] = json.loads((tmp_path / regime.key / f"{arm}-seed0.json").read_text(encoding="utf-8"))["scores"]
    for told, untold in (("fedavg", "plain"), ("method", "untold")):
        cosines = found[told].pop("updates")["cosine"]
        assert len(cosines) == 3 and all(-1 <= one <= 1 for one in cosines)
        assert found[told] == found[untold] and any(key.startswith("own site") for key in found[told])
