# SPDX-License-Identifier: Apache-2.0
"""Cox's model stratified by hospital, from sums of the hospitals alone: lifelines' fit of the pooled patients."""

import numpy as np
import pandas as pd
import pytest
import torch

from cases import each, later
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.site import Site
from fairflare.functional import survival as maths

lifelines = later("lifelines")
ROUNDS = 8
EXACT = {"precision": 1e-14, "r_precision": 1e-14}


def hospitals(seed, sizes=(60, 90, 40), p=3, ties=True):
    """Patients of hospitals whose baseline hazards differ: (x, times, events) of each."""
    rng = np.random.default_rng(seed)
    found = []
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, p)) + 0.3 * k
        times = rng.exponential(6 * (k + 1), n) / np.exp(x @ np.linspace(0.8, -0.5, p))
        times = np.floor(times) if ties else times
        found.append((x, times, (rng.random(n) < 0.6).astype(float)))
    return found


def pooled(found):
    """lifelines' fit with a stratum for each hospital."""
    parts = []
    for k, (x, times, events) in enumerate(found):
        part = pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
        parts.append(part.assign(time=times, event=events, hospital=k))
    table = pd.concat(parts, ignore_index=True)
    return lifelines.CoxPHFitter().fit(table, "time", "event", strata="hospital", fit_options=EXACT)


def summed(found, beta):
    sums = [maths.partial_likelihood(*map(torch.as_tensor, part), torch.as_tensor(beta)) for part in found]
    return [torch.stack(parts).sum(0) for parts in zip(*sums, strict=True)]


@each("seed", range(4))
def test_newtons_steps_on_sums_end_at_the_pooled_fit(seed):
    found = hospitals(seed, ties=seed != 3)
    beta = torch.zeros(3, dtype=torch.float64)
    for _ in range(8):
        value, score, information = summed(found, beta)
        beta = beta + torch.linalg.solve(information, score)
    fitted = pooled(found)
    assert beta.numpy() == pytest.approx(fitted.params_.to_numpy(), abs=1e-8)
    assert float(value) == pytest.approx(fitted.log_likelihood_, abs=1e-8)
    errors = torch.linalg.inv(information).diagonal().sqrt().numpy()
    assert errors == pytest.approx(fitted.standard_errors_.to_numpy(), abs=1e-8)


def test_the_sums_are_the_likelihoods_derivatives():
    (x, times, events), *_ = hospitals(0)
    given = [torch.as_tensor(part) for part in (x, times, events)]
    beta = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    value, score, information = maths.partial_likelihood(*given, beta)
    for j in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[j] = 1e-5
        (above, up, _), (below, down, _) = (maths.partial_likelihood(*given, beta + sign * step) for sign in (1, -1))
        assert float(above - below) / 2e-5 == pytest.approx(float(score[j]), rel=1e-6, abs=1e-6)
        assert ((down - up) / 2e-5).numpy() == pytest.approx(information[j].numpy(), rel=1e-6, abs=1e-6)


def test_a_hospital_without_an_event_adds_nothing():
    (x, times, _), *_ = hospitals(0)
    value, score, information = maths.partial_likelihood(
        torch.as_tensor(x), torch.as_tensor(times), torch.zeros(len(x)).double(), torch.ones(3).double()
    )
    assert float(value) == 0 and not score.any() and not information.any()


def test_far_coefficients_stay_finite():
    (x, times, events), *_ = hospitals(0)
    found = maths.partial_likelihood(*map(torch.as_tensor, (x, times, events)), torch.full((3,), 80.0).double())
    assert all(torch.isfinite(part).all() for part in found)


def test_breslows_hazard_is_lifelines():
    (x, times, events), *_ = hospitals(2)
    table = pd.DataFrame(x, columns=list("abc")).assign(time=times, event=events)
    fitted = lifelines.CoxPHFitter().fit(table, "time", "event", fit_options=EXACT)
    risks = (x - x.mean(axis=0)) @ fitted.params_.to_numpy()  # lifelines' baseline is of the mean patient
    ends = np.array([0.5, 2.0, 5.0, 50.0])
    known = fitted.baseline_cumulative_hazard_["baseline cumulative hazard"]
    expected = [float(known[known.index <= end].iloc[-1]) for end in ends]
    assert maths.baseline(times, events, risks, ends) == pytest.approx(expected, rel=1e-8)


def run(folder, **values):
    """Exact regression on the times of a stroke trial: 17 countries, days with ties; the model, and who trained."""
    folder.mkdir(parents=True)
    given = {"output": "cox", **values}
    config = make_config("glm", "ist-survival", rounds=ROUNDS, values=given)
    return config, run_local(config, folder)


@pytest.fixture(scope="module")
def countries():
    task = tasks.load("ist-survival", output="cox")
    splits = [task.site_data(site).splits["train"] for site in task.sites()]
    return [(s.inputs.double().numpy(), *s.targets.double().numpy().T) for s in splits]


@each("secure", [("none", 1e-8), ("masks", 1e-6)])
def test_a_run_is_the_pooled_fit(secure, countries, tmp_path):
    kind, close = secure
    _, model = run(tmp_path / kind, secure_sum=kind)
    fitted, n = pooled(countries), sum(len(times) for _, times, _ in countries)
    assert model["weight"].numpy() == pytest.approx(fitted.params_.to_numpy(), abs=close)
    assert float(model["value"]) * n == pytest.approx(fitted.log_likelihood_, abs=close * n)
    p = len(model["weight"])
    errors = torch.linalg.inv(model["information"][:p, :p] * n).diagonal().sqrt().numpy()
    assert errors == pytest.approx(fitted.standard_errors_.to_numpy(), abs=close)


def test_no_message_of_a_run_holds_a_time(countries, tmp_path, monkeypatch):
    """Every answer of every site is looked through: all that has the size of its patients, and every number."""
    told = []
    handle = Site.handle

    def noted(self, instruction):
        answer = handle(self, instruction)
        told.append((self.name, answer))
        return answer

    monkeypatch.setattr(Site, "handle", noted)
    run(tmp_path / "run", solo=False)
    task = tasks.load("ist-survival", output="cox")
    sizes = {site: len(one[1]) for site, one in zip(task.sites(), countries, strict=True)}
    days = {float(t) for _, times, _ in countries for t in np.unique(times)}
    trained = 0
    for site, answer in told:
        for tensor in (*(answer.update or {}).values(), *(answer.tensors or {}).values()):
            assert sizes[site] not in tensor.shape
            trained += 1
            assert not (days - {0.0, 1.0}) & set(tensor.flatten().tolist())
        for name, value in (answer.clinical or {}).items():  # of agreed times alone: counts and shares
            assert name.startswith(("n", "left", "observed")) and (value == round(value) or 0 < value < 1), name
    assert trained


def test_support2s_patients_have_the_times_of_their_deaths(tmp_path):
    """Every patient is in one split of one class; a run's exact fit is the pooled one; a stay is a count of days."""
    task, stays = tasks.load("support2-survival", output="cox"), tasks.load("support2-stay")
    splits = [task.site_data(site).splits for site in task.sites()]
    times, died = torch.cat([split.targets for own in splits for split in own.values()]).T
    assert len(times) == 9105 and int(died.sum()) == 6201 and (float(times.min()), float(times.max())) == (3, 2029)
    days = [split.targets for site in stays.sites() for split in stays.site_data(site).splits.values()]
    assert sum(map(len, days)) == 9105 and min(float(d.min()) for d in days) == 3
    config = make_config("glm", "support2-survival", rounds=ROUNDS, values={"output": "cox"})
    model = run_local(config, tmp_path)
    kept = model["weight"].flatten().nonzero().flatten()  # what follows from others, or is the same within each class
    assert len(kept) == 38
    trained = [own["train"] for own in splits]
    found = [(part.inputs[:, kept].double().numpy(), *part.targets.double().numpy().T) for part in trained]
    assert model["weight"].flatten()[kept].numpy() == pytest.approx(pooled(found).params_.to_numpy(), abs=1e-6)


def test_a_feature_that_is_the_same_for_all_patients_of_a_hospital_says_nothing():
    rng = np.random.default_rng(4)
    x = torch.from_numpy(np.column_stack([rng.normal(size=60), np.full(60, 0.1)]))
    times, events = torch.from_numpy(rng.exponential(size=60)), torch.from_numpy(rng.integers(0, 2, 60))
    value, score, information = maths.partial_likelihood(x, times, events, torch.tensor([0.3, -2.0]).double())
    assert float(score[1]) == 0 and not information[1].any()
    alone = maths.partial_likelihood(x[:, :1], times, events, torch.tensor([0.3]).double())
    assert float(value) == pytest.approx(float(alone[0])) and float(information[0, 0]) == pytest.approx(float(alone[2]))
