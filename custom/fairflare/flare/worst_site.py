# SPDX-License-Identifier: Apache-2.0
"""The worst site and the spread over sites as metrics of any FLARE recipe whose sites report metrics."""

from __future__ import annotations

import copy
import math
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.recipe.spec import Recipe
from nvflare.widgets.widget import Widget

from fairflare.core.errors import UserError
from fairflare.engine.checks import is_number
from fairflare.flare.aggregator import SITE_WEIGHTS
from fairflare.flare.compat import METRICS_AGGREGATION_INFO, METRICS_SELECTION_INFO, job_of, server_app
from fairflare.flare.tracking import over_sites, tell_receivers

ID = "worst_site"
PREFIXES = ("mean_", "worst_", "gap_", "std_")


class WorstSite(Widget):
    """A server component that adds to every round's aggregated metrics, for each metric that all its sites report,

    ``mean_<name>``, ``worst_<name>``, ``gap_<name>`` (largest minus smallest) and ``std_<name>`` (ddof 0) over the
    sites, all with equal weight. FLARE's ``MetricsArtifactWriter`` writes them, if it comes after this component, and
    TensorBoard's receiver gets them as the server's ``sites/<name>``. Only sites that were aggregated count. What the
    sites are sent stays as it was: with two of them, a mean and a gap would tell each the other's value.
    ``add_worst_site`` puts the component into a recipe.
    """

    def __init__(self, key_metric: str = "", mode: str = "max") -> None:
        """
        Args:
            key_metric: one of those names, by which the best model is chosen and which the summary of the job names;
                empty: neither. Metrics are those of the received model, so the first round, of the initial one, is
                left out, as FLARE's own selector does.
            mode: "max" or "min".

        Raises:
            UserError: another name, or another mode.
        """
        super().__init__()
        if key_metric and not key_metric.startswith(PREFIXES):
            raise UserError(f"key_metric: expected one that begins with {' or '.join(PREFIXES)}, got {key_metric}")
        if mode not in ("max", "min"):
            raise UserError(f"mode: expected max or min, got {mode}")
        self.key_metric, self.mode = key_metric, mode
        self._told: dict[str, dict[str, float]] = {}
        self._best = math.inf

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Collect what sites report; add to the aggregate before FLARE's writer reads it."""
        if event_type == AppEventType.ROUND_STARTED:
            self._told = {}
        elif event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            self._hear(fl_ctx)
        elif event_type == AppEventType.AFTER_AGGREGATION:
            result = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT)
            if isinstance(result, FLModel):
                self._add(result, fl_ctx)

    def _hear(self, fl_ctx: FLContext) -> None:
        result, peer = fl_ctx.get_prop(AppConstants.TRAINING_RESULT), fl_ctx.get_peer_context()
        if result is None or peer is None or fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED) is False:
            return
        metrics = FLModelUtils.from_shareable(result).metrics or {}
        found = {str(name): float(v) for name, v in metrics.items() if is_number(v) and math.isfinite(v)}
        self._told[peer.get_identity_name()] = found

    def _add(self, result: FLModel, fl_ctx: FLContext) -> None:
        about = dict((result.meta or {}).get(METRICS_AGGREGATION_INFO) or {})
        weighted = [one["name"] for one in about.get("site_weights") or ()]
        counted = set(fl_ctx.get_prop(SITE_WEIGHTS) or weighted or self._told)
        found = over_sites([metrics for site, metrics in sorted(self._told.items()) if site in counted])
        if not found:
            return
        engine, round = fl_ctx.get_engine(), fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        for name, number in found.items():
            tell_receivers(engine, SERVER_SITE_NAME, f"sites/{name}", number, round)
        key: dict[str, Any] = {"name": self.key_metric, "mode": self.mode, "mode_source": "WorstSite.mode"}
        if self.key_metric in found:
            about["key_metric"] = key
        told = copy.copy(result)  # the one that the controller goes on with is sent to the sites, metrics and all
        told.metrics = {**(result.metrics or {}), **found}
        told.meta = {**(result.meta or {}), METRICS_AGGREGATION_INFO: about}
        fl_ctx.set_prop(AppConstants.AGGREGATION_RESULT, told, private=True, sticky=False)
        if self.key_metric not in found:
            return
        value = found[self.key_metric]
        cost = -value if self.mode == "max" else value
        if round and cost < self._best:
            self._best = cost
            chosen = {"source": "WorstSite", "key_metric": key, "best_round": round, "best_metrics": found}
            fl_ctx.set_prop(METRICS_SELECTION_INFO, chosen, private=True, sticky=False)
            fl_ctx.set_prop(AppConstants.VALIDATION_RESULT, value, private=True, sticky=False)
            self.fire_event(AppEventType.GLOBAL_BEST_MODEL_AVAILABLE, fl_ctx)


def add_worst_site(recipe: Recipe) -> None:
    """Put ``WorstSite`` into a recipe, as FLARE's ``add_experiment_tracking`` puts a receiver.

    If the recipe's ``key_metric`` is one of its names ("worst_accuracy"), it takes the place of FLARE's selector, which
    knows only what single sites report.

    Raises:
        UserError: the recipe has one already.
    """
    key = str(getattr(recipe, "key_metric", None) or "")
    key, mode = (key, getattr(recipe, "key_metric_mode", None) or "max") if key.startswith(PREFIXES) else ("", "max")
    job = job_of(recipe)
    components = server_app(job).components
    if ID in components:
        raise UserError(f"add_worst_site: {recipe.name} has a {ID} already")
    if key:
        components.pop("model_selector", None)
    others = dict(components)
    components.clear()
    job.to_server(WorstSite(key, mode), id=ID)
    components.update(others)  # events reach components in this order, and FLARE's writer is among the others
