# SPDX-License-Identifier: Apache-2.0
"""What a site's referee counts, keeps and refuses, without a run."""

import json
import stat

import pytest
import torch

from fairflare.core.errors import EgressRefused, UserError
from fairflare.engine.memory import AnsweredFile
from fairflare.functional.survival import partial_likelihood, patient_weights
from fairflare.privacy.referee import (
    ENTRIES,
    ROUNDS_PER_ENTRY,
    Forgetful,
    Referee,
    barred,
    effective,
    fewest_apart,
    norm,
    sketch,
)

SIX = [f"site-{k}" for k in range(6)]


def referee(history=None, model=0.0, **values):
    made = Referee(run="run", subject="subject", history=history or Forgetful(), **values)
    made.received(f"hash {model}", {"weight": torch.full((100,), model)}, {"weight": torch.ones(100)})
    return made


def test_effective_patients():
    assert effective(torch.ones(50)) == pytest.approx(50)
    assert effective(torch.tensor([1e300, -1e300, 0.0], dtype=torch.float64)) == pytest.approx(2)
    assert effective(torch.tensor([1.0, *[1e-9] * 999])) == pytest.approx(1, abs=1e-5)
    assert effective(torch.tensor([1.0, float("nan")])) == effective(torch.zeros(3)) == effective(torch.zeros(0)) == 0


@pytest.mark.parametrize("size", [10, 1_000, 100_003])
def test_a_sketch_keeps_distances(size):
    generator = torch.Generator().manual_seed(size)
    one, other = ({"a": torch.randn(size, generator=generator), "b": torch.zeros(3)} for _ in range(2))
    apart = norm({key: one[key] - other[key] for key in one})
    found = sum((a - b) ** 2 for a, b in zip(sketch(one, "s"), sketch(other, "s"))) ** 0.5
    assert found == pytest.approx(apart, rel=0.5) and sketch(one, "s") == sketch(one, "s") != sketch(one, "t")


def test_a_sites_signs_are_its_own_and_the_same_over_jobs():
    one, again, other = Forgetful(), Forgetful(), Forgetful()
    referee(one, 1.0).admit("update", 1, SIX)
    again.add(one.read()[0])
    for history in (again, other):
        referee(history, 1.0).admit("update", 1, SIX)
    marks = [history.read()[-1]["mark"] for history in (one, again, other)]
    assert marks[0] == marks[1] != marks[2]


def test_groups_that_sums_tell_apart():
    assert fewest_apart([SIX]) == 6 and fewest_apart([SIX, SIX[:5]]) == 1 and fewest_apart([SIX, SIX[:3]]) == 3
    assert fewest_apart([SIX, SIX[:3], SIX[1:4]]) == 1


def test_a_model_is_answered_with_one_set_or_with_groups_of_three():
    history = Forgetful()
    referee(history).admit("update", 1, SIX)
    referee(history).admit("update", 2, SIX)
    referee(history).admit("update", 2, SIX[:3])
    for model in (0.0, 1e-3):
        with pytest.raises(EgressRefused, match="^set_changed"):
            referee(history, model).admit("update", 3, SIX[:5])
    referee(history, 1.0).admit("update", 3, SIX[:5])
    referee(history).admit("numbers", 3, SIX[:5])  # the first sum of its kind
    for kind in ("update", "decision"):  # of the same patients
        with pytest.raises(EgressRefused, match="^set_changed"):
            referee(history, 9.0, exact=True).admit(kind, 4, SIX[:4])


def test_other_data_have_a_history_of_their_own():
    history = Forgetful()
    referee(history).admit("update", 1, SIX)
    other = referee(history)
    other.subject = "another outcome"
    other.admit("update", 1, SIX[:5])


def test_entries_are_counted_and_come_back_with_time():
    sets = [SIX if k % 2 == 0 else SIX[:5] for k in range(2 * ENTRIES)]
    assert barred(sets[:-2], 1) == set() and barred(sets, 1) == {SIX[5]} and barred(sets, ROUNDS_PER_ENTRY) == set()
    history = Forgetful()
    for k, sites in enumerate(sets):
        referee(history, float(k)).admit("update", 1 + k % 9, sites)
    with pytest.raises(EgressRefused, match="^set_entries"):
        referee(history, 99.0).admit("update", 9, SIX)
    referee(history, 99.0, draws=True).admit("update", 9, SIX)


def test_a_site_that_refused_leaves_the_run():
    """Else refusals alone would tell where a patient is."""
    one = referee()
    one.check_support({"information": torch.ones(10), "score": torch.ones(3), "expected": torch.zeros(3)})
    with pytest.raises(EgressRefused, match="^few_effective"):
        one.check_support({"information": torch.ones(9)})
    with pytest.raises(EgressRefused, match="^few_effective"):
        one.check_support({"information": torch.ones(100)})


def test_the_file_outlives_jobs_and_kills(tmp_path):
    path = tmp_path / "state" / "hospital.answered.jsonl"
    for number in range(3):
        referee(AnsweredFile(path), float(number)).admit("update", number + 1, SIX)
    path.write_bytes(path.read_bytes() + b'{"run": "ru')  # killed while it wrote
    referee(AnsweredFile(path), 3.0).admit("update", 4, SIX[:5])
    found = AnsweredFile(path).read()
    assert [(one["round"], one["sites"]) for one in found if "of" in one] == [
        (1, SIX),
        (2, SIX),
        (3, SIX),
        (4, SIX[:5]),
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sum("sites" in json.loads(line) for line in path.read_text().splitlines()) == 2
    with pytest.raises(EgressRefused, match="^set_changed"):
        referee(AnsweredFile(path)).admit("update", 5, SIX[:5])
    path.write_text("no history\n")
    with pytest.raises(UserError, match="expected a site's history"):
        AnsweredFile(path).read()


def test_weights_in_coxs_score_are_those_of_its_derivative():
    generator = torch.Generator().manual_seed(0)
    design, beta = torch.randn(60, 3, generator=generator, dtype=torch.float64), torch.tensor([0.5, -1.0, 0.2]).double()
    times = torch.rand(60, generator=generator, dtype=torch.float64)  # without ties
    events = (torch.rand(60, generator=generator) < 0.5).double()
    residuals, others = patient_weights(torch.stack((times, events), 1), design @ beta)
    _, score, _ = partial_likelihood(design, times, events, beta)
    assert (design.T @ residuals).numpy() == pytest.approx(score.numpy(), abs=1e-9)
    assert float(residuals.sum()) == pytest.approx(0, abs=1e-9) and bool((others >= 0).all())
    steep, _ = patient_weights(torch.stack((times, events), 1), 1e4 * design[:, 0])
    assert effective(steep) < 2  # also where it is no number
