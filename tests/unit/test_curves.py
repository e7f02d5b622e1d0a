# SPDX-License-Identifier: Apache-2.0
"""Survival curves of a site: which steps leave it, that they are Kaplan and Meier's, and what is refused."""

import numpy as np
import pytest
import torch

from cases import each, later
from fairflare.engine.after.base import Cases
from fairflare.engine.checks import Refused
from fairflare.engine.curves import Curves, CurvesAtSite
from fairflare.tasks.kinds.survival import Cox, Hazards

lifelines = later("lifelines")
ENDS = tuple(float(k) for k in range(1, 13))
GROUPS = ("f", "m")
VIEW = Curves(None, 0.5, GROUPS, (0, 1), ends=ENDS)


def drawn(seed, n=200, women=0.5, unknown=0.0):
    rng = np.random.default_rng(seed)
    targets = np.stack((rng.exponential(8, n).round(2), rng.random(n) < 0.6), axis=1)
    members = np.where(rng.random(n) < unknown, -1, rng.random(n) >= women).astype(int)
    return Cases(torch.randn(n, 12), torch.from_numpy(targets), torch.from_numpy(members))


def told(cases, least=10, view=VIEW, kind=None):
    return CurvesAtSite(view, least, kind=kind or Hazards(ends=ENDS)).of_model(cases)


def steps_of(found, where=""):
    return [k for k in range(len(ENDS)) if f"left{k}{where}" in found]


@each("seed", range(4))
def test_released_steps_are_kaplan_and_meiers_and_pass_the_check(seed):
    cases = drawn(seed)
    found = told(cases)
    assert VIEW.checked(found, 200, 10) == pytest.approx(found)
    times, events = cases.targets.numpy().T
    for where, rows in (("", slice(None)), ("/f", cases.members.numpy() == 0), ("/m", cases.members.numpy() == 1)):
        steps = steps_of(found, where)
        assert len(steps) > 2
        fitted = lifelines.KaplanMeierFitter().fit(times[rows], events[rows])
        expected = fitted.survival_function_at_times([ENDS[k] for k in steps]).to_numpy()
        assert [found[f"observed{k}{where}"] for k in steps] == pytest.approx(expected, abs=1e-5)
        assert [found[f"left{k}{where}"] for k in steps] == [float((times[rows] > ENDS[k]).sum()) for k in steps]


@each(
    "given",
    [
        {"seed": 1, "women": 0.05},
        {"seed": 2, "women": 0.2, "unknown": 0.04},
        {"seed": 3, "n": 60, "women": 0.3},
        {"seed": 4, "n": 25, "women": 0.5},
        {"seed": 5, "unknown": 0.3},
    ],
)
def test_no_difference_of_released_numbers_is_of_few_patients(given):
    """Neither of two steps, nor of everyone and the groups at one time, nor of what remains of both."""
    found, least = told(drawn(**given)), 10
    groups = [name for name in GROUPS if f"n/{name}" in found]
    common = [set(steps_of(found, f"/{name}")) for name in groups]
    assert all(one <= set(steps_of(found)) for one in common)
    for where in ("", *(f"/{name}" for name in groups)):
        left = [found[f"n{where}"], *(found[f"left{k}{where}"] for k in steps_of(found, where))]
        assert all(a - b >= least and b >= least for a, b in zip(left, left[1:], strict=False))
    rest = [found["n"] - sum(found[f"n/{name}"] for name in groups)]
    for k in sorted(set.intersection(*common)) if common else ():
        rest.append(found[f"left{k}"] - sum(found[f"left{k}/{name}"] for name in groups))
    assert all(one == 0 or one >= least for one in rest)
    assert all(a == b == 0 or a - b >= least for a, b in zip(rest, rest[1:], strict=False))


def test_nothing_leaves_of_few_without_a_minimum_or_under_secure_sums():
    cases = drawn(0)
    assert told(cases, None) == {} and told(drawn(0, n=9)) == {}
    assert told(cases, view=Curves(None, 0.5, GROUPS, (0, 1), True, ENDS)) == {}
    diverged = Cases(torch.full((50, 12), float("nan")), cases.targets[:50], cases.members[:50])
    assert told(diverged) == {}
    assert set(told(drawn(0, n=15))) == {"n"}  # a step would leave fewer than ten on one side of it


def test_a_log_risk_predicts_no_share():
    found = told(drawn(0), kind=Cox(ends=ENDS))
    assert steps_of(found) and not any(name.startswith("expected") for name in found)


@each(
    "change",
    [
        {"left0": 195.0},
        {"left1": 4.0},
        {"left1": 60.5},
        {"observed1": 0.99},
        {"observed1": 1.5},
        {"observed1": None},
        {"expected5": 0.5},
        {"n": 7.0},
        {"n/f": 150.0},
        {"median": 3.0},
    ],
)
def test_steps_that_no_patients_have_are_refused(change):
    sent = {"n": 200.0, "left0": 150.0, "observed0": 0.8, "left1": 100.0, "observed1": 0.6, "n/f": 90.0, "n/m": 90.0}
    assert VIEW.checked(sent, 200, 10) == sent
    changed = {name: value for name, value in (sent | change).items() if value is not None}
    with pytest.raises(Refused):
        VIEW.checked(changed, 200, 10)
