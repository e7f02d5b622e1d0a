# SPDX-License-Identifier: Apache-2.0
"""The allow-list as a FLARE filter: the last thing that looks at a result before it leaves a site."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.dxo import DXO, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fairflare.core.errors import EgressRefused
from fairflare.data.site_config import SiteConfig, find_site_config, stricter
from fairflare.engine.setup.at_site import leaves
from fairflare.engine.setup.site_parts import site_parts
from fairflare.flare import wire
from fairflare.flare.paths import job_config, vouch_for_code
from fairflare.flare.wire import ANSWERED, ERROR_HEADER, VALIDATE, VERSION, answer_from_model, by_split
from fairflare.privacy.egress import Egress

META = wire.META | {"fairflare", MetaKey.INITIAL_METRICS}
"""What an answer's meta may hold; FLARE adds what it needs on its own way."""
OF_FILTERS = frozenset({MetaKey.FILTER_HISTORY, "svt_privacy_budget", "svt_privacy_accountant"})
"""What FLARE's own filters, a site's ``privacy.json``, note in the meta before this one: it stays behind."""
CONFIG = "fairflare_config"
"""Property of a job's context at a site: its executor's configuration, the one that the site's app has."""
MASK = "fairflare_mask"
"""Property of a task's context: from an answer to the one that may leave, in a run with secure sums."""
SIGN = "fairflare_sign"
"""From an answer as it leaves to its signature, at a site with a certificate."""
PUBLIC_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_ :.]{0,79}")
"""An error's name: nothing that could be a path or carry a message."""


class EgressFilter(DXOFilter):
    """Lets an answer pass whole or not at all.

    FLARE's own DXO filters let anything pass that they cannot read; this one refuses it.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        """``config``: a ``RunConfig`` as JSON, which fixes what may leave; in a job that of its ``FairExecutor``."""
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)
        self.config = config
        self._egress: Egress | None = None

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The checked parts of the result, put together anew, or an error whose text names the part at fault."""
        code = shareable.get_return_code()
        if code not in (None, ReturnCode.OK):
            return _error_alone(str(code), shareable.get_header(ERROR_HEADER, ""))
        try:
            dxo = from_shareable(shareable)
            self.process_dxo(dxo, shareable, fl_ctx)
            dxo = self._masked(dxo, shareable, fl_ctx)
            if sign := fl_ctx.get_prop(SIGN):
                as_it_leaves = FLModelUtils.from_shareable(self._rebuilt(dxo, shareable))
                dxo.meta["signed"] = sign(answer_from_model(as_it_leaves, site=""))
            return self._rebuilt(dxo, shareable)
        except EgressRefused as refusal:
            return self._refused(str(refusal), fl_ctx)
        except Exception as error:  # whatever cannot be checked does not leave
            return self._refused(f"unreadable: {type(error).__name__}", fl_ctx)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Raise EgressRefused unless everything in ``dxo`` is on the list."""
        extra = [key for key in dxo.meta if key not in META | OF_FILTERS]
        if extra:
            raise EgressRefused("meta: a name that is not on the list")
        tags = [dxo.meta.get(key) for key in ("fairflare", "round")]
        if any(type(tag) is not int for tag in tags) or tags[0] != VERSION:
            raise EgressRefused("meta: version or round")
        task = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        model = FLModelUtils.from_shareable(shareable)
        if model.params is not None and model.params_type != ParamsType.DIFF:
            raise EgressRefused("weights that are not differences")
        self._check(task, model, fl_ctx)

    def _check(self, task: str, model: FLModel, fl_ctx: FLContext) -> None:
        if self._egress is None:
            vouch_for_code(fl_ctx)
            config = job_config(self.config or fl_ctx.get_prop(CONFIG, {}), fl_ctx)
            own = _own(fl_ctx)
            least = stricter(own.min_count, config.min_count) if own else config.min_count
            self._egress = leaves(config, site_parts(config), least, own)
        metrics = {} if model.metrics == ANSWERED else model.metrics or {}
        found = dataclasses.replace(
            answer_from_model(model, site=""),
            update_kind="diff",  # or no weights, see ``process_dxo``
            metrics=by_split(metrics) if task == VALIDATE else metrics,
        )
        self._egress.check("evaluate" if task == VALIDATE else task, found)
        if task == self._egress.task_with_update and fl_ctx.get_engine() is not None:
            for name, value in metrics.items():  # receivers at the site itself, in its own folder: nothing is sent
                step = {"global_step": model.meta["round"]}
                dxo = create_analytic_dxo(f"score/{name}", float(value), AnalyticsDataType.SCALAR, **step)
                send_analytic_dxo(self, dxo, fl_ctx)

    def _masked(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """With secure sums an update leaves masked or not at all."""
        assert self._egress is not None  # _check has made it
        if not self._egress.secure or str(fl_ctx.get_prop(FLContextKey.TASK_NAME)) != self._egress.task_with_update:
            return dxo
        mask = fl_ctx.get_prop(MASK)
        if mask is None:
            raise EgressRefused("an update that nobody masked")
        final = mask(answer_from_model(FLModelUtils.from_shareable(shareable), site=""))
        if final.error:
            raise EgressRefused(final.error)
        self._egress.check_final(final)
        return DXO(dxo.data_kind, final.update, dxo.meta)

    def _rebuilt(self, dxo: DXO, shareable: Shareable) -> Shareable:
        """A result that holds the checked data and FLARE's own bookkeeping, and nothing that came along beside them."""
        clean = DXO(dxo.data_kind, dxo.data, {k: v for k, v in dxo.meta.items() if k in META}).to_shareable()
        for header in (AppConstants.CURRENT_ROUND, AppConstants.NUM_ROUNDS):
            value = shareable.get_header(header)
            if type(value) is int:
                clean.set_header(header, value)
        return clean

    def _refused(self, reason: str, fl_ctx: FLContext) -> Shareable:
        self.log_error(fl_ctx, f"egress refused: {reason}")
        return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR, {ERROR_HEADER: f"egress: {reason}"})


def _own(fl_ctx: FLContext) -> SiteConfig | None:
    """The configuration of the site that an answer leaves; None where it has none."""
    engine = fl_ctx.get_engine()
    local = Path(engine.get_workspace().get_site_config_dir()) if engine is not None else None
    return find_site_config(local, fl_ctx.get_identity_name() or "")


def _error_alone(code: str, text: Any) -> Shareable:
    """An error reply with its code and its short name, and nothing else of what it came with."""
    known = code if PUBLIC_TEXT.fullmatch(code) else ReturnCode.EXECUTION_EXCEPTION
    named = text if isinstance(text, str) and PUBLIC_TEXT.fullmatch(text) else ""
    return make_reply(known, {ERROR_HEADER: named} if named else None)
