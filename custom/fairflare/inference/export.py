# SPDX-License-Identifier: Apache-2.0
"""``fairflare export-model``: a run's model as a file that other programs load."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.engine.state import save_json, save_text, write_atomically
from fairflare.inference.atomic_output import MARK
from fairflare.inference.bundle import card, write_bundle
from fairflare.inference.deployable_model import WholeModel, whole_model
from fairflare.inference.loaded_run import Opened
from fairflare.inference.predict import about

CLOSE = 1e-4
"""The largest difference of probabilities between an exported model and the run's own."""
STATE, SCRIPT, ONNX = "model.pt", "model.ts", "model.onnx"
CARD = "README.md"


def export_model(opened: Opened, form: str, folder: Path) -> list[str]:
    """Write the model to ``folder``, an empty one; returns remarks, a line each.

    Args:
        form: "bundle", "torchscript", "onnx" or "state-dict".
        folder: gets the model, a card, and ``fairflare.json``.

    Raises:
        UserError: the run's inputs cannot be part of a model, a package is missing, or the result is not the model.
    """
    torch.manual_seed(0)
    save_json(folder / MARK, {**about(opened), "format": form})
    if form == "state-dict":
        return [*opened.remarks, *_state_dict(opened, folder)]
    whole, images = whole_model(opened), opened.task.image_inputs()
    if form == "bundle" and images is not None and images.volumes:
        raise UserError("bundle: reads images and tables, no volumes; use --format torchscript, onnx or state-dict")
    if form == "bundle":
        said = write_bundle(opened, whole, folder)
    else:
        said = {"torchscript": _torchscript, "onnx": _onnx}[form](whole, folder)
        save_text(folder / CARD, card(opened, _USE[form], whole.inputs, whole.outputs, whole.remarks))
    return [*opened.remarks, *whole.remarks, *said]


def _state_dict(opened: Opened, folder: Path) -> list[str]:
    model = {key: value.detach().cpu().clone() for key, value in opened.network.state_dict().items()}
    write_atomically(folder / STATE, lambda file: torch.save(model, file))
    how = ["```python", 'network.load_state_dict(torch.load("model.pt", weights_only=True))', "```"]
    inputs = "as the network takes them: preprocessing, recalibration and thresholds are not in the file"
    save_text(folder / CARD, card(opened, how, inputs, "logits", ()))
    return ["the file holds the network's entries alone: no preprocessing, no recalibration"]


def _torchscript(whole: WholeModel, folder: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises another format, which is not this one
        try:
            traced = torch.jit.trace(whole.module, whole.example)
        except Exception as error:  # user's networks run here
            raise UserError(f"torchscript: the network cannot be traced ({_words(error)})") from None
        _compare("torchscript", whole, traced)
        torch.jit.save(traced, str(folder / SCRIPT))
    return []


def _onnx(whole: WholeModel, folder: Path) -> list[str]:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"onnx: needs {error.name}: pip install 'fairflare[onnx]'") from None
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                whole.module,
                (whole.example,),
                str(folder / ONNX),
                dynamo=True,
                external_data=False,
                input_names=["inputs"],
                output_names=["probabilities"],
                dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
                verbose=False,
            )
        except Exception as error:  # user's networks run here
            raise UserError(f"onnx: the network cannot be exported ({_words(error)})") from None
    session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])
    _compare("onnx", whole, lambda x: torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0]))
    return []


@torch.no_grad()
def _compare(form: str, whole: WholeModel, exported: Callable[[Tensor], Any]) -> None:
    """Raise UserError unless ``exported`` gives the module's probabilities, for batches of several sizes."""
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 5):
        rows = torch.randint(0, len(whole.example), (n,), generator=generator)
        noise = torch.rand(n, *whole.example.shape[1:], generator=generator)
        inputs = whole.example[rows] * (0.5 + noise / 2)
        difference = float((whole.module(inputs) - exported(inputs)).abs().max())
        if not difference <= CLOSE:
            raise UserError(f"{form}: its probabilities are off by {difference:.2g} in a batch of {n}: not written")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


_USE = {
    "torchscript": ["```python", 'probabilities = torch.jit.load("model.ts")(inputs)', "```"],
    "onnx": [
        "```python",
        'session = onnxruntime.InferenceSession("model.onnx")',
        'probabilities = session.run(None, {"inputs": inputs})[0]',
        "```",
    ],
}
