# SPDX-License-Identifier: Apache-2.0
"""FLARE's experiment tracking at the server: a job's receivers (TensorBoard, MLflow, W&B) hear of every round.

Sites send no events: FLARE's go past every filter. What receivers get here are the numbers of answers that the egress
of a site let pass and the gate accepted, as if the site had sent them: a job with tracking learns no more than one
without, and with secure sums nothing of what the sums hide.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey, ReservedKey
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.widgets.convert_to_fed_event import FED_EVENT_PREFIX

from fairflare.core.metric import Metric, named
from fairflare.flare.compat import METRICS_AGGREGATION_INFO


class Tracking:
    """An observer of the round loop: ``score/<metric>``, ``probe/<name>``, ``weight/aggregation`` of accepted sites."""

    def __init__(self, engine: Any, method: str, headline: Metric) -> None:
        """``headline``: the task's metric, of which the worst site's is the key metric of FLARE's records."""
        self._engine, self._method = engine, method
        self._key = {"name": f"worst_{headline.name}", "mode": "max" if headline.higher_is_better else "min"}

    def saw(self, entry: Mapping[str, Any]) -> None:
        """Tell the receivers of one round; other entries are not for plots."""
        if entry["event"] != "round":
            return
        for site, reply in entry["accepted"].items():
            numbers = {f"score/{name}": value for name, value in reply["metrics"].items()}
            numbers |= {f"probe/{name}": value for name, value in reply["scalars"].items()}
            if site in entry["weights"]:
                numbers["weight/aggregation"] = entry["weights"][site]
            for name, value in numbers.items():
                tell_receivers(self._engine, site, name, value, entry["round"])
        self._record(entry)

    def _record(self, entry: Mapping[str, Any]) -> None:
        """One line of FLARE's ``round_metrics.jsonl``, which comes with ``nvflare job download``."""
        sites = [
            {"name": site, "metrics": dict(reply["metrics"]), "weight": entry["weights"].get(site)}
            for site, reply in entry["accepted"].items()
        ]
        about = {
            "metric_source": "fairflare",
            "aggregation": {"method": self._method},
            "key_metric": self._key,
            "sites": sites,
            # FLARE would write down what sites sent before the gate has looked at it.
            "use_contribution_sites": False,
        }
        told = over_sites([reply["metrics"] for reply in entry["accepted"].values()])
        meta = {METRICS_AGGREGATION_INFO: about}
        result = FLModel(metrics=told, current_round=entry["round"], meta=meta)
        with self._engine.new_context() as context:
            context.set_prop(AppConstants.AGGREGATION_RESULT, result, private=True, sticky=False)
            context.set_prop(FLContextKey.EVENT_SCOPE, EventScope.LOCAL, private=True, sticky=False)
            self._engine.fire_event(AppEventType.AFTER_AGGREGATION, context)


def tell_receivers(engine: Any, site: str, name: str, value: float, step: int) -> None:
    """One number for the receivers at the server, as if ``site`` had sent it."""
    data = create_analytic_dxo(name, float(value), AnalyticsDataType.SCALAR, global_step=step).to_shareable()
    data.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    # An event that goes "out" would be sent on to all sites.
    data.set_header(FedEventHeader.DIRECTION, "in")
    with engine.new_context() as context:
        context.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
        context.set_prop(FLContextKey.EVENT_SCOPE, EventScope.FEDERATION, private=True, sticky=False)
        engine.fire_event(FED_EVENT_PREFIX + ANALYTIC_EVENT_TYPE, context)


def over_sites(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of every metric that all sites report: mean over the sites, worst site, largest minus smallest, ddof-0 deviation.

    The worst is the smallest where more is better, and the largest of losses and errors.
    """
    names = sorted(set.intersection(*(set(one) for one in metrics))) if metrics else []
    found = {}
    for name in names:
        values = [one[name] for one in metrics]
        found[f"mean_{name}"] = statistics.fmean(values)
        found[f"worst_{name}"] = (min if named(name).higher_is_better else max)(values)
        found[f"gap_{name}"], found[f"std_{name}"] = max(values) - min(values), statistics.pstdev(values)
    return found
