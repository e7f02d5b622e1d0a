# SPDX-License-Identifier: Apache-2.0
"""The package's metrics of anybody's predictions, by site and by group of patients, with intervals, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.validation import expected, in_order, shown
from fairflare.data.readers.tables import as_cell
from fairflare.engine.evaluation import LEVEL
from fairflare.import_data.labels import event_last
from fairflare.report.fairness import gap, worst
from fairflare.tasks.kind import interval_of, value_of
from fairflare.tasks.kinds.classes import CLASSES, RISKS, ClassCases

if TYPE_CHECKING:
    import pandas

OVERALL, SITE = "overall", "site"
COLUMNS = ("by", "group", "metric", "n", "value", "low", "high")


class _Probabilities(ClassCases):
    """Cases of which the probabilities are known: as they are, without a way through logits."""

    @cached_property
    def probabilities(self) -> Tensor:
        return self.logits


def metric_frame(
    y_true: Any,
    y_prob: Any,
    *,
    site: Any = None,
    groups: Any = None,
    patients: Any = None,
    metrics: Sequence[str] = (),
    classes: Sequence[Any] | None = None,
    event: Any = None,
    level: float = LEVEL,
) -> pandas.DataFrame:
    """How well predictions fit outcomes, of all, by site and by group: no federation is needed, nothing is held back.

    Example:
        >>> from fairflare import metric_frame                                                        # doctest: +SKIP
        >>> metric_frame(df.died, risk, site=df.hospital, groups=df[["sex"]], metrics=["auc"])        # doctest: +SKIP

    Args:
        y_true: (N,) classes.
        y_prob: (N,) probabilities in [0, 1] of ``event``, or (N, C) with rows that sum to 1, as ``predict_proba`` gives
            them; a DataFrame's columns may be the classes. The class with the largest one counts as the answer, the
            first of equals.
        site: (N,) the site of each case; None: no rows by site.
        groups: (N,) groups, a mapping name -> (N,), or a DataFrame: rows by each of its columns. Cases whose group is
            missing are in none of that column.
        patients: (N,) whose each case is; intervals are of patients. None: each case is another patient's.
        metrics: names of metrics of classification; by default those that this package reports.
        classes: in the order of ``y_prob``'s columns, of two the event as the second; by default those of ``y_true``,
            sorted, unless a federation may have them in another order.
        event: of two classes the one whose probabilities (N,) are; by default the second of ``classes``, or that which
            the names say, such as 1, True, "yes", "ja" or "died".
        level: of the intervals, in (0, 1).

    Returns:
        A row per metric and view: ``by`` ("overall", "site" or a grouping), ``group``, ``metric``, ``n``, ``value``
        (NaN where the cases do not define it), and the ends ``low`` and ``high`` of its interval over the cases (NaN:
        it has none; docs/usage.md says which are used). ``attrs["gaps"]``: (by, metric) -> largest less smallest value;
        ``attrs["worst"]``: (by, metric) -> the worst group.

    Raises:
        UserError: lengths differ, a number is no probability, a class or metric is not known, or it is not clear of
            which class a probability is.
    """
    import pandas

    if hasattr(y_prob, "columns"):
        named = list(y_prob.columns)
        classes = named if classes is None else list(classes)
        turned = {*named} == {*classes} and named != classes
        expected("classes", not turned, f"the order of y_prob's columns, {named}", classes)
    truths, names = _classes(np.asarray(y_true).ravel(), classes, event, np.ndim(y_prob) > 1)
    cases = _Probabilities(_probabilities(y_prob, len(truths), len(names)), torch.from_numpy(truths), names)
    kind = RISKS if len(names) == 2 else CLASSES
    asked = [kind.metric(name) for name in metrics or kind.names(names)]
    for one in asked:
        known = one.kind == kind.name and one.fits(len(names))
        expected("metrics", known, f"metrics of {kind.name}", one.name)
    whose = None if patients is None else np.unique(np.asarray(patients).astype(str), return_inverse=True)[1]
    expected("patients", whose is None or len(whose) == len(truths), f"{len(truths)} values", str(np.shape(patients)))
    rows: list[list[Any]] = []
    for by, labels in _views(site, groups, len(truths)).items():
        for group in in_order({text for text in labels if text}):
            inside = torch.from_numpy(labels == group)
            owners = None if whose is None else whose[labels == group]
            own = _Probabilities(cases.outputs[inside], cases.targets[inside], names, patients=owners)
            for one in asked:
                ends = interval_of(one, own, level)
                rows.append([by, group, one.name, len(own.targets), value_of(one, own), *(ends or (None, None))])
    made = pandas.DataFrame(rows, columns=list(COLUMNS)).astype({"value": float, "low": float, "high": float})
    parts = {key: dict(zip(part["group"], part["value"])) for key, part in made.groupby(["by", "metric"], sort=False)}
    made.attrs["gaps"] = {key: gap(found) for key, found in parts.items()}
    made.attrs["worst"] = {key: worst(found, kind.metric(key[1]).higher_is_better)[0] for key, found in parts.items()}
    return made


def _classes(
    y: np.ndarray, classes: Sequence[Any] | None, event: Any, columns: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Outcomes as int64 (N,), and the classes' names; ``columns``: each class has its own of probabilities."""
    known = np.unique(y).tolist() if classes is None else list(classes)
    expected("classes", len(known) > 1, "at least two classes", [str(one) for one in known])
    places = {as_cell(one): one for one in known}
    order, told = event_last(tuple(in_order(places)))
    if event is not None:
        expected("event", len(known) == 2 and event in known, f"one of two classes {known}", event)
        order, told = (*(one for one in order if places[one] != event), as_cell(event)), True
    if not columns and classes is None and not told and len(known) == 2:
        first, second = known
        either = f"event={first!r} or event={second!r}"
        raise UserError(f"event: expected the class whose probabilities y_prob are: {either}")
    if not columns and (classes is None or event is not None):
        known = [places[one] for one in order]
    if columns and classes is None and known != [places[one] for one in order]:
        raise UserError(f"classes: expected the order of y_prob's columns, as classes_ has it, such as classes={known}")
    place = {one: k for k, one in enumerate(known)}
    strange = next((one for one in y.tolist() if one not in place), None)
    expected("y_true", strange is None, f"classes among {', '.join(map(str, known[:6]))}", str(strange))
    return np.array([place[one] for one in y.tolist()], dtype=np.int64), tuple(str(one) for one in known)


def _probabilities(y_prob: Any, n: int, n_classes: int) -> Tensor:
    """float64 (N, C)."""
    found = np.array(y_prob, dtype=np.float64)
    found = np.stack((1 - found, found), axis=1) if found.ndim == 1 and n_classes == 2 else found
    expected("y_prob", found.shape == (n, n_classes), f"shape {(n, n_classes)}", str(np.shape(y_prob)))
    fits = np.isfinite(found) & (found >= 0) & (found <= 1)
    if not fits.all() or (off := np.abs(found.sum(axis=1) - 1)).max(initial=0.0) > 1e-6:
        bad = found[~fits][0] if not fits.all() else found[off.argmax()]
        raise UserError(f"y_prob: expected probabilities in [0, 1] that sum to 1, got {shown(str(bad))}")
    return torch.from_numpy(found)


def _views(site: Any, groups: Any, n: int) -> dict[str, np.ndarray]:
    """Name of the view -> (N,) the group's name of each case, "" where it is in none."""
    import pandas

    named = {} if groups is None else {"group": groups} if not hasattr(groups, "keys") else dict(groups.items())
    if isinstance(groups, pandas.Series):
        named = {str(groups.name or "group"): groups}
    found = {OVERALL: np.full(n, OVERALL, dtype=object)}
    for name, values in {**({} if site is None else {SITE: site}), **named}.items():
        cells = pandas.Series(np.asarray(values).ravel(), dtype=object)
        expected(
            str(name), len(cells) == n and str(name) not in found, f"{n} values under a name of its own", len(cells)
        )
        found[str(name)] = cells.map(lambda cell: "" if pandas.isna(cell) else str(cell)).to_numpy()
    return found
