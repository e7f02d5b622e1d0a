# SPDX-License-Identifier: Apache-2.0
"""``FederatedClassifier``, ``FederatedRegressor``, ``FederatedSurvival``: a federation as a scikit-learn estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fairflare.api import Federation
from fairflare.core.errors import UserError
from fairflare.data.readers.tables import as_cell
from fairflare.functional.survival import concordance
from fairflare.import_data.proposal import is_missing

if TYPE_CHECKING:
    import pandas

SITE, OUTCOME, TIME = "hospital of the row", "outcome of the row", "time of the row"


class Refused(UserError, ValueError):
    """A user's mistake, as scikit-learn expects it of an estimator."""


class _Federated(BaseEstimator):
    """What all have in common; every keyword is one of ``Federation``."""

    _kind = ""

    def __init__(
        self,
        method: str = "fedavg",
        *,
        rounds: int | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        settings: dict[str, Any] | None = None,
        min_count: int | None = None,
        random_state: int = 0,
    ) -> None:
        """
        Args:
            method: id of the federated method, see ``fairflare list``.
            rounds: communication rounds, >= 1; None: by the data.
            epochs: local epochs per round, >= 1.
            lr: local learning rate, > 0.
            settings: by any name that ``--set`` takes.
            min_count: the fewest patients whose number leaves a site, >= 1.
            random_state: seed of the splits, the initial model and local work.
        """
        self.method = method
        self.rounds = rounds
        self.epochs = epochs
        self.lr = lr
        self.settings = settings
        self.min_count = min_count
        self.random_state = random_state

    def _run(self, frame: pandas.DataFrame, outcome: Any, sites: Any, /, **how: Any) -> None:
        names = np.full(len(frame), "all", dtype=object) if sites is None else np.asarray(sites, dtype=object).ravel()
        for called, values in (("sites", names), ("y", outcome)):
            if len(values) != len(frame):
                raise Refused(f"{called}: expected {len(frame)} values, one for each row of X, got {len(values)}")
        if missing := sum(not as_cell(one) for one in names):
            raise Refused(f"sites: expected the hospital of each row of X, {missing} have none")
        given = self.get_params()
        made = Federation(given.pop("method"), seed=given.pop("random_state"), **given, **how.pop("federation", {}))
        columns = [name for name in frame.columns if name != TIME]
        frame = frame.assign(**{SITE: [f"site {as_cell(one)}" for one in names], OUTCOME: list(outcome)})
        how = {"outcome": OUTCOME} | how
        try:
            self.federation_ = made.fit(frame, site=SITE, patient="none", keep=columns, progress=False, **how)
        except UserError as error:
            raise Refused(str(error)) from None

    def _frame(self, X: Any, *, reset: bool = False) -> pandas.DataFrame:  # noqa: N803
        """A DataFrame of anybody's, pandas' and with names in text."""
        import pandas

        found = X.to_pandas() if hasattr(X, "to_pandas") else X
        if isinstance(found, pandas.DataFrame):
            if twice := found.columns[found.columns.duplicated()].tolist():
                raise Refused(f"X: expected columns with names of their own, got {twice[0]!r} twice")
            validate_data(self, found, reset=reset, skip_check_array=True)
            return found.rename(columns=str).reset_index(drop=True)
        checked = validate_data(
            self, found, reset=reset, dtype="numeric", ensure_all_finite="allow-nan", ensure_min_samples=1 + reset
        )
        if np.isinf(checked.astype(float)).any():
            raise ValueError("X contains infinity")
        return pandas.DataFrame(checked, columns=[f"x{k}" for k in range(checked.shape[1])])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _outcome(y: Any) -> np.ndarray:
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    found = column_or_1d(y.to_numpy() if hasattr(y, "to_numpy") else y, warn=True)
    if missing := sum(not as_cell(one) for one in found):
        raise Refused(f"y contains NaN: expected the outcome of each row of X, {missing} have none")
    return found


def _respelled(name: str) -> bool:
    """Whether a table's cell could not keep the name of a class."""
    number = name.replace(".", "", 1).isdecimal()
    return "," in name or is_missing(name) or (number and as_cell(float(name)) != name)


class FederatedClassifier(ClassifierMixin, _Federated):
    """A federation that predicts classes, with scikit-learn's conventions.

    ``fit`` divides the rows of each site into training, validation and test rows, as ``Federation.fit`` does.

    Example:
        >>> from fairflare import FederatedClassifier                                       # doctest: +SKIP
        >>> model = FederatedClassifier("fedism-plus", rounds=10)                           # doctest: +SKIP
        >>> model.fit(X, y, sites=df["hospital"], event="died").predict_proba(X_new)        # doctest: +SKIP

    Attributes:
        classes_: (C,) sorted, in the order of ``predict_proba``'s columns.
        event_: of two classes the one whose risk the run reports.
        federation_: the finished ``Federation``: its report, benefit, figures.
    """

    def fit(self, X: Any, y: Any, *, sites: Any = None, event: Any = None) -> FederatedClassifier:  # noqa: N803
        """Run the federation.

        Args:
            X: (N, F) array of numbers, or a DataFrame (pandas, polars, pyarrow) with numbers and categories.
            y: (N,) classes.
            sites: (N,) the hospital of each row; None: all are of one.
            event: of two classes the one whose risk is reported; by default what the names say, else the last.

        Raises:
            UserError: the data cannot be read as a table of patients, or a keyword is wrong.
        """
        frame, y = self._frame(X, reset=True), _outcome(y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise Refused(f"y: expected two classes or more, got {len(self.classes_)} class")
        names = [as_cell(one) for one in self.classes_.tolist()]
        if len({one.lower() for one in names}) < len(names) or any(map(_respelled, names)):
            names = [f"class {k}" for k in range(len(names))]
        order = list(range(len(names)))
        if event is not None:
            if len(order) != 2 or event not in self.classes_:
                raise Refused(f"event: expected one of two classes {self.classes_.tolist()}, got {event!r}")
            order.sort(key=lambda k: self.classes_[k] == event)
        elif len(order) == 2:
            from fairflare.import_data.labels import event_last

            order.sort(key=lambda k: event_last(names)[0].index(names[k]))
        self.event_ = self.classes_[order[-1]] if len(order) == 2 else None
        self._names = names
        self._run(
            frame,
            [names[k] for k in codes],
            sites,
            federation={"kind": "tabular", "classes": [names[k] for k in order]},
        )
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """(N, C) float64: the probability of each of ``classes_``."""
        check_is_fitted(self)
        found = self.federation_.predict_proba(self._frame(X))
        of_run = [str(one) for one in self.federation_.report["detail"]["task"]["classes"]]
        return found[:, [of_run.index(name) for name in self._names]]

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """(N,) of ``classes_``, the likeliest."""
        risks = self.predict_proba(X)
        return self.classes_[risks.argmax(axis=1)]


class FederatedRegressor(RegressorMixin, _Federated):
    """A federation that predicts amounts, with scikit-learn's conventions.

    Attributes:
        federation_: the finished ``Federation``.
    """

    def fit(self, X: Any, y: Any, *, sites: Any = None) -> FederatedRegressor:  # noqa: N803
        """Run the federation.

        Args:
            X: as of ``FederatedClassifier.fit``.
            y: (N,) finite numbers.
            sites: (N,) the hospital of each row; None: all are of one.
        """
        frame, y = self._frame(X, reset=True), _outcome(y)
        if y.dtype.kind in "mM":
            raise Refused(f"y: expected numbers, e.g. of days, got {y.dtype}")
        y = y.astype(float)
        if not np.isfinite(y).all():
            raise ValueError("y contains NaN or infinity")
        self._run(frame, y, sites, federation={"kind": "regression"})
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """(N,) the expected amount."""
        check_is_fitted(self)
        found = self.federation_.predict(self._frame(X))
        named = [name for name in found.columns if str(name).startswith("predicted_")]
        if len(named) != 1:
            raise UserError(f"predict: expected one amount, got {len(named)}")
        return found[named[0]].to_numpy(dtype=float)


class FederatedSurvival(_Federated):
    """A federation that predicts the risk of an event over time; y as scikit-survival has it.

    Attributes:
        horizons_: (K,) times of ``predict_survival``'s columns.
        federation_: the finished ``Federation``.
    """

    def fit(self, X: Any, y: Any, *, sites: Any = None, horizons: Any = None) -> FederatedSurvival:  # noqa: N803
        """Run the federation.

        Args:
            X: as of ``FederatedClassifier.fit``.
            y: (N,) structured array, or a DataFrame, with ``time`` (> 0) and ``event`` (true where it happened).
            sites: (N,) the hospital of each row; None: all are of one.
            horizons: times > 0 until which survival is asked for; by default the median time of an event.

        Raises:
            UserError: y has no such columns, a time is no number above 0, or nobody has an event.
        """
        frame, (times, events) = self._frame(X, reset=True), _times(y)
        if not events.any():
            raise Refused(f"y: expected an event of at least one patient, got none among {len(events)}")
        self.horizons_ = np.unique(np.median(times[events]) if horizons is None else np.asarray(horizons, dtype=float))
        how = {
            "time": TIME,
            "event": OUTCOME,
            "outcome": "",
            "horizons": self.horizons_,
        }
        self._run(frame.assign(**{TIME: times}), events.astype(int), sites, federation={"kind": "survival"}, **how)
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """(N,) the risk, larger where the event is expected earlier.

        A Cox model's log risk; else the cumulative hazard until the last of ``horizons_``, >= 0.
        """
        found = self._predicted(X)
        if "log_risk" in found:
            return found["log_risk"].to_numpy(dtype=float)
        return -np.log(self._survival(found)[:, -1].clip(np.finfo(float).tiny))

    def predict_survival(self, X: Any) -> np.ndarray:  # noqa: N803
        """(N, K) probability of no event until each of ``horizons_``."""
        return self._survival(self._predicted(X))[:, -len(self.horizons_) :]  # of one the run has tenths of it before

    def _survival(self, found: pandas.DataFrame) -> np.ndarray:
        return found.loc[:, found.columns.str.startswith("survival_")].to_numpy(dtype=float)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Harrell's C-index in [0, 1] (JAMA 247, 1982); nan where no two patients can be compared."""
        times, events = _times(y)
        return float(concordance(times, events, self.predict(X), np.ones((1, len(times))))[0])

    def _predicted(self, X: Any) -> pandas.DataFrame:  # noqa: N803
        check_is_fitted(self)
        return self.federation_.predict(self._frame(X))


def _times(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Two (N,): times and whether there was an event."""
    names = list(y.columns if hasattr(y, "columns") else getattr(y, "dtype", np.dtype(int)).names or ())
    if not {"time", "event"} <= set(names):
        raise Refused(
            f"y: expected a structured array or a DataFrame with time and event, got {names or type(y).__name__}"
        )
    if (kind := str(y["time"].dtype)).startswith(("timedelta", "datetime", "duration", "timestamp")):
        raise Refused(f"y: expected times as numbers, e.g. of days, got {kind}")
    times, events = np.asarray(y["time"], dtype=float), np.asarray([as_cell(one) for one in y["event"]])
    if not (np.isfinite(times) & (times > 0)).all():
        raise Refused("y: expected times above 0, got one that is not")
    if not np.isin(events, ("0", "1")).all():
        raise Refused("y: expected events of true and false, or 1 and 0, got another value")
    return times, events == "1"
