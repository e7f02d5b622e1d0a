# SPDX-License-Identifier: Apache-2.0
"""The allow-list as a FLARE filter: the last thing that looks at a result before it leaves a site."""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import DXO, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fairflare.assembly import allowed, build_parts
from fairflare.config import RunConfig
from fairflare.flare.wire import ANSWERED, ERROR_HEADER
from fairflare.privacy.egress import Egress, EgressRefused, nonfinite_entry

META = frozenset({"fairflare", "round", "n_examples", "scalars", "seconds", MetaKey.INITIAL_METRICS})
"""What an answer's meta may hold; FLARE adds what it needs on its own way."""


class EgressFilter(DXOFilter):
    """Lets an answer pass whole or not at all.

    FLARE's own DXO filters let anything pass that they cannot read; this one refuses it.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        """
        Args:
            config: a ``RunConfig`` as JSON, which fixes what may leave.
        """
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)
        self.config = config
        self._egress: Egress | None = None

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The result itself, or an error in its place whose text names the part at fault."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        try:
            self.process_dxo(from_shareable(shareable), shareable, fl_ctx)
        except EgressRefused as refusal:
            return self._refused(str(refusal), fl_ctx)
        except Exception as error:  # whatever cannot be checked does not leave
            return self._refused(f"unreadable: {type(error).__name__}", fl_ctx)
        return shareable

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Raise EgressRefused unless everything in ``dxo`` is on the list."""
        extra = [key for key in dxo.meta if key not in META]
        if extra:
            raise EgressRefused("meta: a name that is not on the list")
        task = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        model = FLModelUtils.from_shareable(shareable)
        if model.params is not None and model.params_type != ParamsType.DIFF:
            raise EgressRefused("weights that are not differences")
        self._check(task, model)

    def _check(self, task: str, model: FLModel) -> None:
        if self._egress is None:
            self._egress = allowed(build_parts(RunConfig.from_json(self.config), at_site=True))
        metrics = model.metrics or {}
        self._egress.check(
            task,
            update=model.params,
            n_examples=model.meta.get("n_examples"),
            scalars=model.meta.get("scalars", {}),
            metrics={} if metrics == ANSWERED else metrics,
            seconds=model.meta.get("seconds", {}),
        )
        broken = nonfinite_entry(model.params or {})
        if broken is not None:
            raise EgressRefused(f"weights {broken}: not finite")

    def _refused(self, reason: str, fl_ctx: FLContext) -> Shareable:
        self.log_error(fl_ctx, f"egress refused: {reason}")
        return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR, {ERROR_HEADER: f"egress: {reason}"})
