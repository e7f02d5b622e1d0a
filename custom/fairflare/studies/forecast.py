# SPDX-License-Identifier: Apache-2.0
"""What a hospital outside would gain by joining: asked by the federation, answered at the hospital, told by both.

The federation's question holds the exact regression of all its hospitals (``functional.slopes``) and how far forecasts
were right when each hospital was taken for one outside. The hospital's answer holds means over all its patients. What
is told is calibrated: the regression of realised on forecast benefit over the federation's hospitals, with its
prediction interval.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.seeds import derive
from fairflare.core.validation import expected
from fairflare.data.site_config import SiteConfig
from fairflare.engine.files import CONFIG, is_there, read_json, save_json
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import build_parts, without_folders
from fairflare.functional import slopes
from fairflare.functional.calibration import fitted
from fairflare.functional.decision import UNCLEAR, Array, Owners, own_risks, verdict
from fairflare.functional.exchange import LEAST_SITES, rounded
from fairflare.inference.mix import event_index
from fairflare.studies.candidates import INTERCEPT
from fairflare.studies.folders import JOIN
from fairflare.studies.labels import folder_name, split_method
from fairflare.tasks.external import labelled
from fairflare.tasks.folds import LEAST_OF_EACH, everyone, numbered, untestable

QUESTION, ENDING = "forecast.json", ".forecast.json"
METHOD = "glm"
DEALS = 5
"""Times that each hospital is halved: one half forecasts, the other says what came of it."""
MEASURED = (
    "on 111 hospitals of the International Stroke Trial the slope of realised on forecast benefit was .30 (0.14), and "
    "intervals before calibration held 55 %"
)
KEYS = {"benefit", "low", "high"}
Json = dict[str, Any]
Patients = tuple[Array, Array]
"""(n, P) features with a constant in front, and (n,) outcomes."""


def together(hospitals: Sequence[Patients]) -> tuple[Array, Array]:
    """(P,) coefficients of the ridge regression of all hospitals' (x, y), and its (P, P) Hessian."""
    at = np.zeros(hospitals[0][0].shape[1])
    for _ in range(slopes.STEPS):
        parts = [slopes.derivatives(x, y, at) for x, y in hospitals]
        at, hessian, done = slopes.stepped(at, *(np.sum(each, axis=0) for each in zip(*parts, strict=True)))
        if done:
            break
    return at, hessian


def pull_weights(evidence: Array) -> Array:
    """(M,) how often hospitals have each pull: EM, whose steps are sums of ``slopes.shares`` over hospitals; (S, M)."""
    weights = np.full(evidence.shape[1], 1 / evidence.shape[1])
    for _ in range(slopes.EM_STEPS):
        weights = slopes.em_step(slopes.shares(evidence, weights).sum(axis=0), len(evidence))
    return weights


class Together(NamedTuple):
    """What hospitals say together: see ``together`` and ``pull_weights``; and what the others say of each hospital."""

    centre: Array
    total: Array
    weights: Array
    others: list[slopes.Others]

    @classmethod
    def of(cls, hospitals: Sequence[Patients]) -> Together:
        """From (x, y) of at least two hospitals, see ``slopes.fitted``."""
        centre, total = together(hospitals)
        others = [slopes.Others.of_all(centre, total, len(hospitals), x, y) for x, y in hospitals]
        fits = [slopes.fitted(x, y, them) for (x, y), them in zip(hospitals, others, strict=True)]
        return cls(centre, total, pull_weights(np.stack([fit.evidence for fit in fits])), others)


class Calibration(NamedTuple):
    """The line of realised (y) on forecast (x) benefits of hospitals, and what its prediction interval needs."""

    sites: int
    intercept: float
    slope: float
    error: float
    """Of the slope, the standard error."""
    residual: float
    """Standard deviation about the line, of sites - 2 degrees of freedom."""
    centre: float
    spread: float
    """Mean and sum of squared deviations of the forecasts."""
    held: float
    """Share of realised benefits within the intervals before calibration."""

    @classmethod
    def of(cls, realised: Array, told: Array) -> Calibration:
        """Of (S,) realised benefits and (S, 3) forecasts with the ends of their intervals."""
        from scipy.stats import linregress

        x, sites = told[:, 0], len(realised)
        line = linregress(x, realised)
        residual = math.sqrt(float(((realised - line.intercept - line.slope * x) ** 2).sum()) / (sites - 2))
        held = float(((told[:, 1] <= realised) & (realised <= told[:, 2])).mean())
        about = (line.intercept, line.slope, line.stderr, residual, x.mean(), ((x - x.mean()) ** 2).sum(), held)
        return cls(sites, *map(float, about))

    def expect(self, forecast: float) -> tuple[float, float, float, float]:
        """Expected benefit of a hospital with this forecast, its 95 % prediction interval, and P(benefit < 0)."""
        from scipy.stats import t

        mean, of = self.intercept + self.slope * forecast, t(self.sites - 2)
        leverage = 1 + 1 / self.sites + (forecast - self.centre) ** 2 / max(self.spread, 1e-12)
        sd = max(self.residual * math.sqrt(leverage), 1e-9)
        half = float(of.ppf(0.975)) * sd
        return mean, mean - half, mean + half, float(of.cdf(-mean / sd))


def forecasts(
    known: Patients, others: slopes.Others, weights: Array, rest: Patients | None = None, whose: Owners | None = None
) -> Json:
    """Candidate -> benefit, low and high before calibration from ``known`` patients of a hospital; with the ``rest`` of
    them also the benefit realised there. ``weights`` are ``pull_weights``; ``whose``: (n,) the known rows are."""
    x, y = known
    new = np.concatenate([x, rest[0]]) if rest else x
    own, logits = own_risks(x[:, 1:], y, new[:, 1:], whose)[0], new @ others.centre
    of, found = slopes.Slopes.of(slopes.fitted(x, y, others), weights), {}
    for name, by in ((METHOD, 0.0), (METHOD + INTERCEPT, fitted(logits[: len(y)], y).intercept)):
        risks = slopes.sigmoid(logits + by)
        part = slopes.Regressed.of_models(of, x, own[: len(y)], risks[: len(y)]).widened()
        gain = slopes.gain(part.of, part.q)
        found[name] = {"benefit": gain.mean, **dict(zip(("low", "high"), gain.interval(), strict=True))}
        if rest:
            inside, outcome = risks[len(y) :], rest[1]
            found[name]["realised"] = float(((own[len(y) :] - outcome) ** 2 - (inside - outcome) ** 2).mean())
    return found


def calibrated(
    hospitals: Mapping[str, Patients],
    federation: Together,
    deals: int = DEALS,
    owners: Mapping[str, Owners | None] = MappingProxyType({}),
) -> dict[str, Calibration]:
    """Candidate -> its calibration, each hospital taken for one outside; {} where too few have patients enough.

    ``owners``: whose each row of a hospital is; halves are of patients.
    """
    rows: dict[str, list[Array]] = {METHOD: [], METHOD + INTERCEPT: []}
    for (name, (x, y)), them in zip(hospitals.items(), federation.others, strict=True):
        rng, each = np.random.default_rng(derive(0, "forecast", name)), []
        owner = numbered(y.astype(np.int64), whose := owners.get(name))
        for _ in range(deals):
            half = (rng.permutation(owner.max() + 1) < (owner.max() + 1) // 2)[owner]
            if min(len(np.unique(owner[half & (y == k)])) for k in (0, 1)) >= LEAST_OF_EACH:
                inside = None if whose is None else owner[half]
                each.append(forecasts((x[half], y[half]), them, federation.weights, (x[~half], y[~half]), inside))
        for candidate in rows if each else ():
            keys = ("realised", "benefit", "low", "high")
            rows[candidate].append(np.mean([[one[candidate][key] for key in keys] for one in each], axis=0))
    if len(rows[METHOD]) < LEAST_SITES:
        return {}
    return {name: Calibration.of(np.stack(found)[:, 0], np.stack(found)[:, 1:]) for name, found in rows.items()}


def ask(folder: Path) -> Json:
    """The question of the join in ``folder``, which is written to ``forecast.json`` there.

    Raises UserError: no finished join on this machine, exact regression is none of its methods, or too few hospitals.
    """
    expected(f"{folder}", is_there(folder / JOIN), "the folder of a finished join", "another one")
    found = read_json(folder / JOIN)
    methods = list(found.get("methods") or ())
    first = [label for label in methods if split_method(str(label))[0] == METHOD]
    if not first:
        wanted = f"a forecast is known for exact regression alone: expected {METHOD} among the join's methods"
        raise UserError(f"{folder}: {wanted}, got {', '.join(map(str, methods))}")
    place = folder / f"{folder_name(first[0])}-fold0of{found.get('folds')}-deal0" / CONFIG
    if not is_there(place):
        raise UserError(f"{folder}: expected a join of patients on this machine, got one as a job, which stay at sites")
    described = read_json(place)
    config = dataclasses.replace(RunConfig.from_json(described), fold="")
    parts = build_parts(config, at_site=True)
    everybody = {c: everyone(parts.task.site_data(site)) for c, site in site_of_client(config, parts.task).items()}
    testable = {
        client: data for client, data in everybody.items() if not untestable(data.labels.numpy(), data.patients)
    }
    hospitals = {client: patients(data, event_index(parts)) for client, data in testable.items()}
    if (n := len(hospitals)) < LEAST_SITES:
        raise UserError(f"{folder}: expected at least {LEAST_SITES} hospitals with patients enough, got {n}")
    federation = Together.of(list(hospitals.values()))
    owners = {client: data.patients for client, data in testable.items()}
    made = calibrated(hospitals, federation, owners=owners)
    run = {**described, "fold": "", "options": without_folders(described["options"])}
    question = {"run": run, "sites": len(hospitals)}
    question |= {key: getattr(federation, key).tolist() for key in ("centre", "total", "weights")}
    question["calibration"] = {name: one._asdict() for name, one in made.items()}
    save_json(folder / QUESTION, question)
    return question


def answer(question: Json, table: Path) -> tuple[Json, Path]:
    """What a hospital with this table answers, and the file beside it that says so.

    Raises UserError: the table lacks what the federation's models take, or has too few patients.
    """
    parts = build_parts(RunConfig.from_json(question["run"]), at_site=True)
    try:
        data = labelled(parts.task, "outside", SiteConfig(data_root=str(table.parent), datalist=table.name))
    except (DataError, ValueError) as error:
        raise UserError(f"{table.name}: {error}") from None
    whole = everyone(data)
    if why := untestable(whole.labels.numpy(), whole.patients):
        raise UserError(f"{table.name}: {why}")
    known = patients(whole, event_index(parts))
    width, pulls = known[0].shape[1], len(slopes.PULLS)
    cov = np.linalg.inv(_numbers(question, "total", (width, width))).astype(np.float64)
    others = slopes.Others(_numbers(question, "centre", (width,)), cov, question["sites"])
    each = forecasts(known, others, _numbers(question, "weights", (pulls,)), whose=whole.patients)
    told = {name: {key: float(rounded(np.array(one[key]))) for key in sorted(KEYS)} for name, one in each.items()}
    found = {"n": int(numbered(whole.labels.numpy(), whole.patients).max()) + 1, "candidates": told}
    target = table.with_name(table.stem + ENDING)
    save_json(target, found)
    return found, target


def _numbers(question: Json, key: str, shape: tuple[int, ...]) -> Array:
    try:
        found = np.array(question[key], dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    proper = found.shape == shape and bool(np.isfinite(found).all())
    expected(f"{QUESTION}: {key}", proper, f"numbers of shape {shape}", "others")
    return found


def patients(data: Any, event: int) -> Patients:
    """Of a split of a table, whose features are standardised."""
    x = np.asarray(data.inputs, dtype=np.float64)
    expected("task", x.ndim == 2, "a table", f"inputs of {x.ndim} dimensions")
    return np.hstack([np.ones((len(x), 1)), x]), (data.labels.numpy() == event).astype(np.float64)


def read(path: Path, kind: str) -> Json:
    """A question ("run") or an answer ("n"); raises UserError where it is none."""
    found = read_json(path)
    keys = {"run": {"run", "sites", "centre", "total", "weights", "calibration"}, "n": {"n", "candidates"}}[kind]
    expected(path.name, set(found) == keys, f"keys {', '.join(sorted(keys))}", ", ".join(map(str, found)))
    rows = found["candidates" if kind == "n" else "calibration"]
    wanted = KEYS if kind == "n" else set(Calibration._fields)
    proper = isinstance(rows, dict) and rows.keys() <= {METHOD, METHOD + INTERCEPT}
    proper = proper and all(isinstance(row, dict) and set(row) == wanted for row in rows.values())
    numbers = [value for row in rows.values() for value in row.values()] if proper else []
    proper = proper and all(type(value) in (int, float) and math.isfinite(value) for value in numbers)
    proper = proper and (kind == "n" or (type(found["sites"]) is int and found["sites"] >= LEAST_SITES))
    expected(path.name, proper, "what join-forecast writes", "something else")
    return found


def tell(question: Mapping[str, Any], found: Mapping[str, Any]) -> Json:
    """Candidate -> forecast, expected benefit with its interval, p_harm, verdict and a sentence."""
    told: Json = {}
    for name, row in found["candidates"].items():
        if name not in question["calibration"]:
            words = f"{UNCLEAR}: fewer than {LEAST_SITES} hospitals say whether such forecasts come true"
            told[name] = {"forecast": row["benefit"], "verdict": UNCLEAR, "sentence": words}
            continue
        one = Calibration(**question["calibration"][name])
        mean, low, high, p_harm = one.expect(row["benefit"])
        said = verdict(p_harm, low, high)
        words = f"{said}: expected benefit {mean:+.4f} [{low:+.4f}, {high:+.4f}], forecast {row['benefit']:+.4f}"
        about = {"forecast": row["benefit"], "benefit": mean, "low": low, "high": high, "p_harm": p_harm}
        told[name] = {**about, "verdict": said, "sentence": words}
    return told


def right(question: Mapping[str, Any]) -> list[str]:
    """How far the federation's forecasts of its own hospitals came true, a line for each candidate."""
    lines = [
        f"{name}: slope of realised on forecast benefit {one['slope']:.2f} ({one['error']:.2f}) over {one['sites']} "
        f"hospitals; intervals before calibration held {one['held']:.0%}"
        for name, one in question["calibration"].items()
    ]
    return [*lines, f"elsewhere: {MEASURED}"]
