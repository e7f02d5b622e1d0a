# SPDX-License-Identifier: Apache-2.0
"""The final model as FLARE's evaluation workflows look for it."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.model_desc import ModelDescriptor
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor

from fairflare.core.errors import RunFailed
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.files import CHECKPOINT, MODEL, read_model
from fairflare.flare.paths import federation_id, server_folder
from fairflare.flare.server_state import refuse_foreign

NAME = "fairflare"


class FairPersistor(PTFileModelPersistor):
    """Reads the model that the controller left; it never writes one.

    FLARE's locator of PyTorch models accepts subclasses of ``PTFileModelPersistor`` only.
    """

    def __init__(self, federation: str = "", lineage: str = "") -> None:
        """``lineage``: of the configuration; a federation that began with another one is not read."""
        super().__init__(allow_numpy_conversion=False)
        self.federation = federation
        self.lineage = lineage

    def handle_event(self, event: str, fl_ctx: FLContext) -> None:
        """The base class would look for a model of its own and save it when others announce a best one."""

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        """The final model, or that of the last round; RunFailed for another job's federation."""
        folder = self._folder(fl_ctx)
        ended = (folder / MODEL).is_file()
        model = read_model(folder / MODEL) if ended else dict(load_checkpoint(folder / CHECKPOINT).model)
        return make_model_learnable(model, {})

    def save_model(self, ml: ModelLearnable, fl_ctx: FLContext) -> None:
        raise RunFailed("the model of a run is written by its controller alone")

    def get_model_inventory(self, fl_ctx: FLContext) -> dict[str, ModelDescriptor]:
        """One model, once a round has been finished; RunFailed for another job's federation."""
        folder = self._folder(fl_ctx)
        if not (folder / MODEL).is_file():
            return {}
        return {NAME: ModelDescriptor(name=NAME, location=str(folder / MODEL), model_format="state_dict", props={})}

    def get_model(self, model_file: str, fl_ctx: FLContext) -> ModelLearnable:
        return self.load_model(fl_ctx)

    def _folder(self, fl_ctx: FLContext) -> Path:
        if self.federation:
            refuse_foreign(self.federation, self.lineage, fl_ctx)
        return server_folder(federation_id(self.federation, fl_ctx), fl_ctx)
