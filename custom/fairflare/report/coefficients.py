# SPDX-License-Identifier: Apache-2.0
"""The section of an exact regression: coefficients with their errors, and how far hospitals differ in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from fairflare.report import svg
from fairflare.report.section import Section
from fairflare.report.values import Estimate, plural

Json = dict[str, Any]
LEVEL = 0.95
MOVES = 1e-4
"""Change of a coefficient in the last round, in standard errors, from which it has not settled."""
LEAST = 1e-8
"""Information of a patient on a spread that is estimated; masks round at 1e-9."""
INTERCEPT = "(intercept)"


def coefficient_section(model: Mapping[str, Any], config: Mapping[str, Any], sites: Sequence[Json]) -> Json | None:
    """Of a run of exact regression: its table; None of any other.

    Args:
        model: state dict of the run's model, see ``networks.builtin.Regression``.
        sites: rows of ``rows.site_rows``; only ``n_examples`` is read.

    Returns:
        intercept ("baseline": each site has its own hazard), family, ratio ("odds", "rate" or "hazard"; "" of amounts),
        ridge, patients, sites, log_likelihood, between_sd (None unless intercepts are random), dispersion (None unless
        estimated) and rows: name, note ("" or why there is no estimate), estimate, error, low, high, p (Wald), odds,
        odds_low, odds_high, robust_error (sandwich clustered by site, with K / (K - 1)), and of sites' own fits: fits,
        q, q_p, i2, tau, next_low, next_high (prediction interval of another site's coefficient, t with fits - 2
        degrees).
    """
    names = (config.get("about") or {}).get("features")
    if not names or "information" not in model:
        return None
    settings = config.get("settings") or {}
    own_settings = settings.get("trainer") or {}
    intercept, weighting = own_settings.get("intercept"), (settings.get("rule") or {}).get("weighting", "")
    family = (config.get("about") or {}).get("family") or "bernoulli"
    if family == "cox":
        intercept = "baseline"
    counts = [row["n_examples"] for row in sites if row["n_examples"]]
    n, p = sum(counts), len(names)
    arrays = {key: np.asarray(model[key], dtype=np.float64) for key in ("weight", "bias", "last", "information")}
    at = np.append(arrays["weight"], arrays["bias"])
    free = p if intercept in ("site", "baseline") else p + 1
    moved = np.abs(at - arrays["last"][: p + 1])[:free]
    spread = intercept == "random" or bool(arrays["information"][-1, -1] > LEAST)  # or a dispersion of counts
    errors, robust, kept, loose = _errors(model, n, free, len(counts), own_settings.get("ridge") or 0, spread=spread)
    value = float(model["value"][0]) * n
    if family == "gaussian":  # the value is half of the residual sum of squares
        scale = -2 * value / max(n - int(kept.sum()) - (len(counts) if intercept == "site" else 0), 1)
        errors, value = errors * math.sqrt(scale), -n / 2 * (math.log(2 * math.pi * -2 * value / n) + 1)
    if weighting != "examples":  # the information is that of a weighted likelihood, which has no such errors
        errors, robust = np.full(free, np.nan), np.full(free, np.nan)
    own = np.asarray(model["own"], dtype=np.float64) * n if weighting == "examples" else np.zeros((5, p))
    rows = []
    for k in [*([p] if free > p else []), *range(p)]:
        row = _row(at[k], errors[k], robust[k])
        row |= {"name": INTERCEPT if k == p else names[k], "note": ""}
        if not kept[k]:
            row |= {"note": "follows from others: left out"} | dict.fromkeys(ESTIMATE)
        elif loose[k] or moved[k] > MOVES * (errors[k] if errors[k] > 0 else 1):
            row |= {"note": "still moves: a feature may tell the outcome without exception; set a ridge, or train on"}
        rows.append(row | (heterogeneity(own[:, k]) if k < p else NO_FITS))
    random = intercept == "random"
    return {
        "intercept": intercept,
        "family": family,
        "ratio": RATIOS[family],
        "ridge": own_settings.get("ridge"),
        "patients": n,
        "sites": len(counts),
        "level": LEVEL,
        "log_likelihood": value,
        "between_sd": math.exp(float(model["log_sd"][0])) if random else None,
        "dispersion": math.exp(float(model["log_sd"][0])) if spread and not random else None,
        "rows": rows,
    }


RATIOS = {"bernoulli": "odds", "poisson": "rate", "cox": "hazard", "gaussian": ""}
ESTIMATE = ("estimate", "error", "low", "high", "p", "odds", "odds_low", "odds_high", "robust_error")
NO_FITS = dict.fromkeys(("fits", "q", "q_p", "i2", "tau", "next_low", "next_high"))


def _errors(
    model: Mapping[str, Any], n: int, free: int, sites: int, ridge: float, *, spread: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Standard errors (free,), those of the sandwich by site, which parameters are in the model, and which are loose.

    A loose one has no error, see ``likelihood.inverted``.
    """
    from fairflare.functional.likelihood import aliased, inverted

    information = model["information"].double().clone()
    information.diagonal()[:-2] += ridge
    kept = ~aliased(information[:free, :free], first=free - 1 if free == len(information) - 1 else None).numpy()
    kept |= np.append(model["weight"], model["bias"])[:free] != 0  # moved before its information was used up
    used = np.concatenate([kept, np.zeros(len(information) - 1 - free, dtype=bool), [spread]])
    where = np.flatnonzero(used)
    inverse, flat = (each.numpy() for each in inverted(information[where][:, where]))
    inverse = inverse / n
    between = model["between"].double().numpy()[np.ix_(where, where)] * n
    sandwich = inverse @ between @ inverse * sites / max(sites - 1, 1)
    found = np.full((2, len(used)), np.nan)
    found[0, where], found[1, where] = (np.sqrt(np.diag(each).clip(0)) for each in (inverse, sandwich))
    found[:, where[flat]] = np.nan
    return found[0, :free], found[1, :free], kept, np.isin(np.arange(free), where[flat])


def _row(estimate: float, error: float, robust: float) -> Json:
    row: Json = {"estimate": float(estimate), "odds": _exp(estimate), **dict.fromkeys(ESTIMATE[1:5] + ESTIMATE[6:])}
    if not math.isfinite(error) or error <= 0:
        return row
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * error
    low, high = float(estimate - reach), float(estimate + reach)
    p = 2 * NormalDist().cdf(-abs(estimate) / error)
    ends = {"low": low, "high": high, "odds_low": _exp(low), "odds_high": _exp(high)}
    return row | ends | {"error": float(error), "p": p, "robust_error": float(robust)}


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))


def heterogeneity(sums: np.ndarray) -> Json:
    """How far sites' own estimates of one coefficient differ, from sums over the sites that have one.

    Cochran's Q and I^2 (Higgins and Thompson, Stat. Med. 21, 2002), tau by DerSimonian and Laird (Control. Clin. Trials
    7, 1986), and the prediction interval of another site's coefficient (Higgins et al., J. R. Stat. Soc. A 172, 2009).

    Args:
        sums: (5,) of 1, w, w b, w b^2 and w^2, where w is one over the variance of b.
    """
    from scipy.special import chdtrc, stdtrit  # those of scipy.stats, which is slow to import

    fits, w, wb, wbb, ww = map(float, sums)
    k = round(fits)
    if k < 3 or w <= 0:
        return NO_FITS | {"fits": k}
    mean, degrees = wb / w, k - 1
    q = max(wbb - wb * mean, 0.0)
    spread = max(q - degrees, 0.0) / (w - ww / w) if w > ww / w else 0.0
    variance = 1 / w + spread * ww / w**2  # of the mean with these weights, where sites differ by ``spread``
    reach = float(stdtrit(k - 2, (1 + LEVEL) / 2)) * math.sqrt(spread + variance)
    found = {"fits": k, "q": q, "q_p": float(chdtrc(degrees, q)), "i2": max(0.0, 1 - degrees / q) if q > 0 else 0.0}
    return {**found, "tau": math.sqrt(spread), "next_low": mean - reach, "next_high": mean + reach}


@svg.inline("coefficients")
def forest(figure: svg.Figure, section: Json) -> str | None:
    """Estimates with their intervals, below each the prediction interval of another site's in grey."""
    rows = [row for row in section["rows"] if row["error"] is not None and not row["note"]]
    if not rows or len(rows) > svg.MANY:
        return None
    ends = [(row["next_low"], row["next_high"]) for row in rows]
    other = [None if None in one else Estimate(sum(one) / 2, *one) for one in ends]
    series = [svg.Series("estimate", [Estimate.of(row, "estimate") for row in rows])]
    series += [svg.Series("another hospital, prediction", other, svg.GREY, "s")] if any(other) else []
    what = f"log {section['ratio']} ratio" if section["ratio"] else "difference in spreads of the outcome"
    names, zero = [row["name"] for row in rows], (0, "", svg.DARK)
    axes = svg.dots(figure, names, series, f"{what} (95 % interval)", at=[zero])
    reach = 1.4 * max(abs(row[end]) for row in rows for end in ("low", "high"))
    axes.set_xlim(-reach, reach)  # predictions from a few small sites would press everything else together
    return f"Coefficients of {plural(section['patients'], 'patient')} at {plural(section['sites'], 'site')}"


SECTION = Section(
    "coefficients",
    "Coefficients",
    ("coefficients", "rows"),
    figure=lambda run: [forest(run["coefficients"])] if run.get("coefficients") else [],
)
