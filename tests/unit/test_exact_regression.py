# SPDX-License-Identifier: Apache-2.0
"""Runs of exact regression on real patients against statsmodels' fit of the pooled ones, in the clear and masked."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, optimize

from cases import later
from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.functional.likelihood import aliased, bernoulli, newton_step, own_intercept, profiled
from fairflare.report.coefficients import heterogeneity
from fairflare.report.write import write_report

sm = later("statsmodels.api")
meta_analysis = later("statsmodels.stats.meta_analysis")
ROUNDS = 8
STEP = 0.1
"""In standard errors."""


def run(folder, task, **values):
    config = make_config("glm", task, rounds=ROUNDS, values=values)
    return config, run_local(config, folder)


def patients(config):
    """Per site: features (N, p) and outcomes (N,) of its training patients, as its trainer reads them."""
    task = tasks.load(config.task, config.preset, **config.options)
    read = [list(task.site_data(site).fixed("train", 4096)) for site in task.sites()]
    return [
        (torch.cat([b.inputs for b in one]).double().numpy(), torch.cat([b.targets for b in one]).double().numpy())
        for one in read
    ]


def pooled(sites, dropped, own):
    """statsmodels' fit with the features that are not dropped; intercepts stand first."""
    n = [len(y) for _, y in sites]
    lead = np.repeat(np.eye(len(n)), n, axis=0) if own else np.ones((sum(n), 1))
    x, y = (np.concatenate(each) for each in zip(*sites))
    fit = sm.GLM(y, np.c_[lead, x[:, ~dropped]], family=sm.families.Binomial()).fit(tol=1e-14, maxiter=100)
    return fit.params[lead.shape[1] :], fit.bse[lead.shape[1] :], fit.llf


def compared(folder, task, own, tolerance, **values):
    config, model = run(folder, task, intercept="site" if own else "shared", **values)
    sites = patients(config)
    n, p = sum(len(y) for _, y in sites), len(model["weight"])
    free = p if own else p + 1
    information = model["information"][:free, :free]
    dropped = aliased(information, first=None if own else p).numpy()
    coefficients, errors, value = pooled(sites, dropped[:p], own)
    kept = information.numpy()[np.ix_(~dropped, ~dropped)] * n
    found = np.sqrt(np.diag(np.linalg.inv(kept)))[: len(errors)]
    assert np.abs(model["weight"].numpy()[~dropped[:p]] - coefficients).max() < tolerance
    assert np.abs(found - errors).max() < tolerance
    assert float(model["value"]) * n == pytest.approx(value, abs=tolerance * n)
    return model, dropped


CASES = [("ist", False), ("ist", True), ("heart", False)]


@pytest.mark.parametrize("task, own", CASES)
def test_equals_the_pooled_fit(tmp_path, task, own):
    compared(tmp_path, task, own, 1e-8)


@pytest.mark.parametrize("own", [False, True])
def test_equals_the_pooled_fit_under_secure_sums(tmp_path, own):
    compared(tmp_path, "ist", own, 1e-6, secure_sum="masks")


@pytest.mark.parametrize("own, secure", [(False, "none"), (True, "none"), (True, "masks")])
def test_a_feature_that_follows_from_others_is_left_out(tmp_path, monkeypatch, own, secure):
    shared = Path(__file__).parents[3] / "shared" / "data"
    folder = next(
        (f for f in (os.environ.get("FAIRFLARE_DATA"), shared) if f and Path(f, "covid_brazil.csv").is_file()), None
    )
    if folder is None:
        pytest.skip("needs covid_brazil.csv in the folder that FAIRFLARE_DATA names")
    monkeypatch.setenv("FAIRFLARE_DATA", str(folder))
    model, dropped = compared(tmp_path, "covid-brazil", own, 1e-8 if secure == "none" else 1e-6, secure_sum=secure)
    assert dropped.sum() == 1 and model["weight"][int(dropped.argmax())] == 0


def test_random_intercepts_equal_the_pooled_maximum(tmp_path):
    config, model = run(tmp_path, "ist", intercept="random")
    sites = patients(config)

    def minus_log_likelihood(at):
        weight, bias, log_sd = at[:-2], at[-2], at[-1]

        def one(x, y):
            eta = x @ weight + bias

            def log_density(b):
                return np.sum(y * (eta + b) - np.logaddexp(0, eta + b)) - (b / np.exp(log_sd)) ** 2 / 2 - log_sd

            top = optimize.minimize_scalar(lambda b: -log_density(b), bounds=(-8, 8), method="bounded")
            area, _ = integrate.quad(lambda b: np.exp(log_density(b) + top.fun), -10, 10, points=[top.x], epsabs=1e-12)
            return np.log(area) - top.fun - np.log(2 * np.pi) / 2

        return -sum(one(x, y) for x, y in sites)

    at = torch.cat([model[name] for name in ("weight", "bias", "log_sd")]).numpy()
    n, top = sum(len(y) for _, y in sites), -minus_log_likelihood(at)
    assert top / n == pytest.approx(float(model["value"]), abs=1e-9) and np.exp(at[-1]) > 0.1
    information = model["information"].numpy() * n
    for k in (0, 7, 20, 35, 36):  # the maximum and its curvature along single parameters, by the quadrature of others
        error, along = np.sqrt(1 / information[k, k]), np.eye(len(at))[k]
        up, down = (-minus_log_likelihood(at + sign * STEP * error * along) for sign in (1, -1))
        assert up < top and down < top
        assert abs(up - down) / (2 * STEP) < 1e-2  # standard errors from the maximum
        assert (up + down - 2 * top) / STEP**2 == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("secure", ["none", "masks"])
def test_a_site_of_few_patients_sends_no_sums(tmp_path, secure):
    with pytest.raises(RunFailed, match="few_examples"):
        run(tmp_path, "ist:hospitals", secure_sum=secure)


REFUSED = [
    ({"rule": "fedheal"}, "rule fedheal: expected a rule that weighs sites by numbers of their own"),
    ({"rule": "median"}, "rule median: expected a rule that weighs sites by numbers of their own"),
    ({"rule": "fedce", "terms": "error"}, "rule fedce: expected a rule that weighs sites by numbers of their own"),
    ({"rule": "afl"}, "rule afl gives sites models of their own"),
    ({"rule": "afl", "average": "final"}, "rule afl: expected a rule that weighs sites by numbers of their own"),
    ({"rule": "fedufo"}, "rule fedufo: expected a trainer that heeds its orders"),
    ({"rule": "fedufo", "level": "client", "apply": "local"}, "rule fedufo: expected a trainer that heeds its orders"),
    ({"server_optimizer": "adam"}, "sends sums and not a step"),
    ({"clip_updates": "2"}, "clip_updates: expected none"),
    ({"cap_weights": "0.4"}, "cap_weights: expected none"),
    ({"model": "mlp"}, "it needs model=regression"),
]


@pytest.mark.parametrize("values, words", REFUSED, ids=str)
def test_what_does_not_go_with_sums_is_refused_in_one_line(tmp_path, values, words):
    with pytest.raises(UserError, match=words) as error:
        run(tmp_path, "heart", **values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rule", ["qffl", "fedism"])
def test_a_fairness_rule_weighs_the_sums(tmp_path, rule):
    config = make_config("glm", "heart", rounds=12, values={"rule": rule})
    folders = tmp_path / "weighed", tmp_path / "plain"
    for folder in folders:
        folder.mkdir()
    model, plain = run_local(config, folders[0]), run_local(make_config("glm", "heart", rounds=ROUNDS), folders[1])
    assert torch.isfinite(model["weight"]).all() and float(model["weight"].abs().max()) < 5
    assert float((model["weight"] - plain["weight"]).abs().max()) > 1e-3


MINIMAX = [{"rule": "afl", "average": "none"}, {"rule": "fedufo", "level": "client", "apply": "split"}]


@pytest.mark.parametrize("values", MINIMAX, ids=str)
def test_weights_that_climb_with_the_losses_lead_to_equal_ones(tmp_path, values):
    """The largest mean loss of a hospital is the least there can be where all are alike and the weighted score is 0."""
    config = make_config("glm", "heart", rounds=30, values=values)
    model = run_local(config, tmp_path)
    logits = [(x @ model["weight"].numpy() + float(model["bias"]), y) for x, y in patients(config)]
    losses = [np.mean(np.logaddexp(0, z) - y * z) for z, y in logits]
    assert max(losses) < 0.53 and max(losses) - min(losses) < 0.02  # 0.80 and 0.41 of the pooled fit
    assert float(model["score"].abs().max()) < 0.01


def test_the_report_names_coefficients_errors_and_how_far_sites_differ(tmp_path):
    config, model = run(tmp_path, "ist")
    section = write_report(tmp_path)["detail"]["coefficients"]
    rows = {row["name"]: row for row in section["rows"]}
    sites = patients(config)
    x, y = (np.concatenate(each) for each in zip(*sites))
    clusters = np.repeat(np.arange(len(sites)), [len(one) for _, one in sites])
    wanted = sm.GLM(y, np.c_[np.ones(len(y)), x], family=sm.families.Binomial())
    plain = wanted.fit(tol=1e-14)
    robust = wanted.fit(tol=1e-14, cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": False})
    k = len(sites)
    found = np.array([[row["estimate"], row["error"], row["robust_error"]] for row in section["rows"]]).T
    assert np.allclose(found, [plain.params, plain.bse, robust.bse * np.sqrt(k / (k - 1))], rtol=1e-6, atol=1e-9)
    assert [row["p"] for row in section["rows"]] == pytest.approx(plain.pvalues.tolist(), abs=1e-9)
    assert "AGE" in rows and "RCONSC = D" in rows and section["log_likelihood"] == pytest.approx(plain.llf)

    own = [sm.GLM(b, np.c_[np.ones(len(b)), a[:, :1]], family=sm.families.Binomial()).fit() for a, b in sites]
    estimate, error = (np.array([getattr(one, name)[1] for one in own]) for name in ("params", "bse"))
    w = 1 / error**2
    pooled_effect = meta_analysis.combine_effects(estimate, error**2, method_re="dl")
    made = heterogeneity(np.array([np.full(k, 1.0), w, w * estimate, w * estimate**2, w**2]).sum(1))
    assert made["q"] == pytest.approx(pooled_effect.q) and made["tau"] ** 2 == pytest.approx(pooled_effect.tau2)
    assert made["i2"] == pytest.approx(max(pooled_effect.i2, 0))
    assert "<h2>Coefficients</h2>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_what_has_no_estimate_is_named(tmp_path, ridge):
    """It has no error either; with a ridge everything has both, of the information with the penalty."""
    model = run_local(make_config("glm", "heart:full", rounds=20, values={"ridge": ridge}), tmp_path)
    rows = write_report(tmp_path)["detail"]["coefficients"]["rows"]
    left_out = [row["name"] for row in rows if "left out" in row["note"]]
    loose = {row["name"] for row in rows if "still moves" in row["note"]}
    errors = np.array([row["error"] or np.nan for row in rows])
    assert len(left_out) == int((model["weight"] == 0).sum()) == (0 if ridge else 7)
    assert {row["name"] for row in rows if row["error"] is None} == {*left_out, *loose}
    if ridge:
        information = np.roll(model["information"].numpy()[:36, :36], 1, axis=(0, 1)) + np.diag([0] + [ridge] * 35)
        assert np.allclose(errors, np.sqrt(np.diag(np.linalg.inv(information)) / 553), rtol=1e-6)
    else:
        assert {"restecg = 0.0", "restecg = 1.0", "exang = 1.0", "(intercept)"} <= loose and np.nanmax(errors) < 3


def test_an_intercept_for_each_of_466_hospitals():
    """The sums alone, without a run, which refuses small hospitals."""
    task = tasks.load("ist", "hospitals")
    config = make_config("glm", "ist:hospitals")
    sites = [one for one in patients(config) if len(set(one[1])) == 2]
    assert len(task.sites()) == 466
    beta = torch.zeros(sites[0][0].shape[1], dtype=torch.float64)
    for _ in range(ROUNDS):
        parts = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in sites]
        found = [profiled(bernoulli, x, y, beta, own_intercept(bernoulli, x @ beta, y)) for x, y in parts]
        score, information = sum(one.score for one in found), sum(one.information for one in found)
        beta = beta + newton_step(score, information, aliased(information))
    coefficients, errors, _ = pooled(sites, np.zeros(len(beta), dtype=bool), own=True)
    assert np.abs(beta.numpy() - coefficients).max() < 1e-8
    assert np.abs(torch.linalg.inv(information).diagonal().sqrt().numpy() - errors).max() < 1e-8


def tables(folder, outcome, extra="", gamma=0.0):
    """A table of each of three hospitals with an outcome that follows from age and score; gamma: spread of rates."""
    folder.mkdir()
    everyone = []
    for k, site in enumerate(("a", "b", "c")):
        random = np.random.default_rng(k)
        n = 80 + 20 * k
        age, score = random.normal(60, 10, n), random.normal(0, 1, n)
        years = random.uniform(0.5, 3, n)
        line = 0.3 + 0.4 * (age - 60) / 10 - 0.2 * score + 0.2 * k
        y = line + random.normal(0, 1, n)
        if outcome == "count":
            y = random.poisson(
                np.exp(line) * (years if extra else 1) * (random.gamma(1 / gamma, gamma, n) if gamma else 1)
            )
        rows = pd.DataFrame({"age": age, "score": score, "years": years, "outcome": y, "split": "train"})
        rows = pd.concat([rows, *(rows[:20].assign(split=name) for name in ("val", "test"))])
        rows.to_csv(folder / f"{site}.csv", index=False)
        everyone.append(rows[rows.split == "train"])
    return everyone


@pytest.mark.parametrize("intercept", ["shared", "site"])
@pytest.mark.parametrize("outcome, exposure", [("amount", ""), ("count", ""), ("count", "years")])
def test_amounts_and_counts_equal_the_pooled_fit(tmp_path, outcome, exposure, intercept):
    rows = tables(tmp_path / "data", outcome, exposure)
    options = {"label": "outcome", "features": "age,score", "site_names": "a,b,c", "amount": outcome}
    options |= {"datalists": str(tmp_path / "data"), "exposure": exposure, "intercept": intercept}
    options |= {"scaling": json.dumps({"fill": [60, 0], "mean": [60, 0], "std": [10, 1]})}
    (tmp_path / "run").mkdir()
    config, model = run(tmp_path / "run", "regression", **{k: v for k, v in options.items() if v})
    x = (pd.concat(rows)[["age", "score"]].to_numpy() - [60, 0]) / [10, 1]
    y, n = pd.concat(rows).outcome.to_numpy(), sum(map(len, rows))
    if outcome == "amount":
        mean, spread = map(float, config.options["outcome_scale"].split(","))
        y = (y - mean) / spread
    lead = np.repeat(np.eye(3), [len(one) for one in rows], axis=0) if intercept == "site" else np.ones((n, 1))
    offset = np.log(pd.concat(rows).years.to_numpy()) if exposure else None
    family = sm.families.Poisson() if outcome == "count" else sm.families.Gaussian()
    fit = sm.GLM(y, np.c_[lead, x], family=family, offset=offset).fit(tol=1e-14, maxiter=100)
    section = write_report(tmp_path / "run")["detail"]["coefficients"]
    found = {row["name"]: row for row in section["rows"]}
    assert np.abs(model["weight"].numpy() - fit.params[-2:]).max() < 1e-5  # tables are read as float32
    assert [found[name]["error"] for name in ("age", "score")] == pytest.approx(fit.bse[-2:].tolist(), rel=1e-4)
    assert section["ratio"] == ("rate" if outcome == "count" else "")
    likelihood = fit.llf if outcome == "count" else -n / 2 * (np.log(2 * np.pi * (fit.resid_response**2).mean()) + 1)
    assert section["log_likelihood"] == pytest.approx(likelihood, rel=1e-5)
    assert section["rows"][-1]["fits"] == 3


@pytest.mark.parametrize("intercept", ["shared", "site"])
def test_overdispersed_counts_equal_the_pooled_negative_binomial_fit(tmp_path, intercept):
    """Coefficients, their errors, dispersion and log-likelihood, with an exposure."""
    rows = tables(tmp_path / "data", "count", "years", gamma=0.7)
    options = {"label": "outcome", "features": "age,score", "site_names": "a,b,c", "amount": "count"}
    options |= {"datalists": str(tmp_path / "data"), "exposure": "years", "intercept": intercept}
    options |= {"scaling": json.dumps({"fill": [60, 0], "mean": [60, 0], "std": [10, 1]})}
    (tmp_path / "run").mkdir()
    config = make_config("glm", "regression", rounds=14, values={**options, "trainer": "negative-binomial"})
    model = run_local(config, tmp_path / "run")
    sites = patients(config)
    x, y = np.concatenate([x for x, _ in sites]), np.concatenate([y for _, y in sites])
    lead = np.repeat(np.eye(3), list(map(len, rows)), axis=0) if intercept == "site" else np.ones((len(y), 1))
    pooled_model = sm.NegativeBinomial(y[:, 0], np.c_[lead, x], exposure=y[:, 1])
    start = np.r_[np.zeros(lead.shape[1] + 2), 0.5]
    fit = pooled_model.fit(start_params=start, method="newton", tol=1e-13, maxiter=200, disp=False)
    section = write_report(tmp_path / "run")["detail"]["coefficients"]
    found = {row["name"]: row for row in section["rows"]}
    assert np.abs(model["weight"].numpy() - fit.params[-3:-1]).max() < 1e-6
    assert np.abs(np.array([found[name]["error"] for name in ("age", "score")]) - fit.bse[-3:-1]).max() < 1e-6
    assert section["dispersion"] == pytest.approx(fit.params[-1], abs=1e-6)
    assert section["log_likelihood"] == pytest.approx(fit.llf, abs=1e-6)
    assert section["ratio"] == "rate" and "with the dispersion" in (tmp_path / "run" / "report.html").read_text()


def test_the_negative_binomial_needs_counts(tmp_path):
    with pytest.raises(UserError, match="it needs counts"):
        run(tmp_path, "heart", trainer="negative-binomial")
