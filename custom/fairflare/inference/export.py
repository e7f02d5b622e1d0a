# SPDX-License-Identifier: Apache-2.0
"""``fairflare export-model``: a run's model as a file that other programs load, or as a MONAI bundle.

A bundle has configurations, weights, and the few files of this package that it needs, copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fairflare
from fairflare.core.errors import UserError
from fairflare.core.manifest import versions
from fairflare.core.validation import expected
from fairflare.data.readers.pictures import Reader
from fairflare.data.readers.stored import in_words
from fairflare.data.readers.volumes import VolumeReader
from fairflare.engine.after.recalibrate import FAR, GAP, Recalibrate
from fairflare.engine.files import CONFIG, is_file, read_json, save_json, save_text, write_atomically
from fairflare.engine.setup.tuning import whole as whole_network
from fairflare.functional.recalibration import BEYOND
from fairflare.inference import modules
from fairflare.inference.atomic_output import MARK
from fairflare.inference.loaded_run import Opened
from fairflare.inference.mix import MIXED
from fairflare.inference.modules import Line, Pixels, Rows, Temperature, Whole
from fairflare.inference.predict import about
from fairflare.networks.volumes import Windowed
from fairflare.report import REPORT
from fairflare.tasks.own.bundle import BundleTask
from fairflare.trainers.base import Trainer

MODULES = "scripts.modules"


@dataclass(frozen=True)
class WholeModel:
    """What is exported.

    Attributes:
        module: inputs as a file has them -> probabilities, in evaluation mode, on the CPU.
        example: inputs of two cases.
        before, after: the first and the last part as a bundle names them.
        inputs, outputs: what the module takes and gives, in words.
        remarks: what is not in it.
    """

    module: Whole
    example: Tensor
    before: dict[str, Any]
    after: dict[str, Any]
    inputs: str
    outputs: str
    remarks: tuple[str, ...]


def whole_model(opened: Opened) -> WholeModel:
    """The run's model with preprocessing and recalibration; UserError where it cannot be one that takes files."""
    if type(opened.parts.trainer).shared_batches is not Trainer.shared_batches:
        raise UserError(f"{opened.config.trainer}: prepares inputs by each site's statistics; use --format state-dict")
    if isinstance(opened.network, Windowed):
        text = "a window slides over volumes of any size, which is no part of an exported graph"
        raise UserError(f"{opened.config.task}: {text}; use --format state-dict")
    network = opened.network.cpu().eval()
    before, spec, example, words, said = _before(opened)
    after, last, outputs, more = _after(opened)
    module = Whole(before, network, after).eval()
    return WholeModel(module, example, spec, last, words, outputs, (*said, *more))


def _made(kind: type[nn.Module], **given: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A module, and how a bundle's configuration names it."""
    home = MODULES if kind.__module__ == modules.__name__ else "torch.nn"
    return kind(**given), {"_target_": f"{home}.{kind.__name__}", **given}


def _before(opened: Opened) -> tuple[nn.Module, dict[str, Any], Tensor, str, list[str]]:
    table, images = opened.task.table_inputs(), opened.task.image_inputs()
    if images is not None:
        shape = images.reader.channels, *images.reader.shape
        arguments: dict[str, Any] = {"mean": list(images.mean), "std": list(images.std)}
        words = f"float32 (N, {', '.join(map(str, shape))}), values 0 to 255"
        if isinstance(images.reader, VolumeReader):
            arguments["axes"] = 3
            words += f", voxels of {' x '.join(f'{one:g}' for one in images.reader.spacing)} mm, axes RAS"
        example = torch.arange(2 * math.prod(shape)).remainder(251).float().view(2, *shape)
        return *_made(Pixels, **arguments), example, words, [in_words(images.reader.window)]
    if table is None:
        raise UserError(f"task {opened.config.task}: its inputs are made by code; use --format state-dict")
    n, m = len(table.numbers), len(table.plain)
    example = torch.linspace(-1, 1, 2 * (n + m)).view(2, n + m)
    if opened.scaling is None:
        words = f"float32 (N, {n + m}): {n} numbers, standardised and without gaps, then {m} features as they are"
        said = "numbers are not scaled: each site scales by its own training rows; --site NAME puts that one's in"
        return *_made(nn.Identity), example, words, [said]
    scaling = opened.scaling.to_json()
    words = f"float32 (N, {n + m}): {n} numbers, NaN where missing, then {m} features as they are"
    whose = [f"gaps and scale are those of {opened.site}'s training rows"] if table.fixed is None else []
    if (own := opened.conversions.get(opened.site)) and own.conversion:
        whose.append(f"numbers are in the units of the federation, not of {opened.site} (scale, shift)")
    return *_made(Rows, **scaling), example, words, whose


def _after(opened: Opened) -> tuple[nn.Module, dict[str, Any], str, list[str]]:
    task, adjustment = opened.task, opened.adjustment
    if not task.kind.has_classes and not task.kind.has_masks:
        name, given, _, words = opened.kind.exported(task.classes)
        return *_made(getattr(modules, name, None) or getattr(nn, name or "Identity"), **given), words, []
    if task.kind.has_masks:
        said = []
        if adjustment is not None and adjustment.flags and -1 in adjustment.fits:
            said = [f"masks of {opened.site} are cut at {threshold_of(opened):.4f}; the model gives probabilities"]
        return *_made(nn.Sigmoid), "probability of each structure at each pixel", said
    words = f"probabilities (N, {len(task.classes)}) of {', '.join(task.classes[:20])}"
    plain = *_made(nn.Softmax, dim=1), words
    if adjustment is None:
        return *plain, []
    if not isinstance(adjustment.step, Recalibrate):
        return *plain, [f"the thresholds of {opened.site} are not in the model: {dict(adjustment.fits.get(-1, {}))}"]
    if adjustment.by_group:
        return *plain, ["recalibration by groups of patients is not in the model: its inputs do not name groups"]
    fit = dict(adjustment.fits[-1])
    said = [f"recalibrated for {opened.site}"]
    if "temperature" in fit:
        return *_made(Temperature, temperature=fit["temperature"], gap=GAP, beyond=BEYOND), words, said
    return *_made(Line, intercept=fit["intercept"], slope=fit["slope"], far=FAR, beyond=BEYOND), words, said


def threshold_of(opened: Opened) -> float:
    adjustment = opened.adjustment
    if adjustment is None or not adjustment.flags or "threshold" not in adjustment.fits.get(-1, {}):
        return 0.5
    return 1.0 - float(adjustment.fits[-1]["threshold"])


WARNING = "**Not a medical device.** A research model. Nobody has shown that its predictions are safe to act on."
LIMITS = """\
- Results hold for patients and devices like those of the sites above; others may get much worse ones.
- Its probabilities need not be calibrated elsewhere, nor its threshold right: both depend on prevalence.
- Groups of patients that a site has few of were hardly tested."""


def card(opened: Opened, how: Sequence[str], inputs: str, outputs: str, remarks: Sequence[str]) -> str:
    """Markdown: task, data, method, results as reported, inputs and outputs, limits."""
    about = opened.about
    report = read_json(opened.folder / REPORT) if is_file(opened.folder / REPORT) else {}
    run = {} if opened.whose == MIXED else read_json(opened.folder / CONFIG)
    method = f"{run.get('title')} ({run.get('paper')})" if run else "; ".join(opened.remarks)
    whose = "shared by all sites" if opened.whose == "shared" else f"{opened.site}'s own ({opened.whose})"
    model = {
        "Classes or structures": ", ".join(map(_text, about.get("classes", ()))),
        "Method": _text(method),
        "Trained": f"{opened.finished} rounds over {len(opened.trained)} sites",
        "Which": f"{whose}; SHA-256 of the entries {opened.model_sha256}",
        "Inputs": inputs,
        "Outputs": outputs,
        "Made with": ", ".join(f"{name} {number}" for name, number in versions().items()),
    }
    parts = [
        f"# {_text(about.get('title'))}",
        WARNING,
        "## Model",
        "\n".join(f"- {name}: {value}" for name, value in model.items()),
        "## Use",
        "\n".join(how),
        *(["\n".join(f"- {line}" for line in remarks)] if remarks else []),
        "## Data",
        f"Real: {_text(about.get('real'))}.\nSimulated: {_text(about.get('simulated'))}.",
        "## Results",
        _results(opened, report),
        "## Limits",
        LIMITS + ("" if opened.site else "\n- No site's recalibration, threshold or own model is in it."),
    ]
    return "\n\n".join(parts) + "\n"


def _results(opened: Opened, report: Mapping[str, Any]) -> str:
    """The reported metrics of every site on its own test split; nothing is computed anew."""
    sites = report.get("sites") or {}
    rows = []
    for name, site in sites.items():
        found = site.get("personal_metrics") if opened.whose == "personal" else site.get("metrics")
        rows += [(name, site.get("n_test"), found)] if isinstance(found, dict) and found else []
    if not rows:
        return "The run reported none."
    names = list(dict.fromkeys(metric for *_, found in rows for metric in found))
    lines = ["As the run reported them, on each site's own test split, before recalibration:", ""]
    lines += [f"| site | test cases | {' | '.join(names)} |", "|" + "---|" * (len(names) + 2)]
    for site, n, found in rows:
        cells = " | ".join(f"{found[metric]:.3f}" if metric in found else "" for metric in names)
        lines.append(f"| {_text(site)} | {_text(n)} | {cells} |")
    if benefit := report.get("benefit"):
        lines.append(f"\nBenefit of joining, as reported: {_text(benefit)[:500]}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    """One line without markup that could hide anything."""
    return " ".join(str("" if value is None else value).split()).replace("<", "&lt;").replace("|", "/")


COPIED = (
    "core/errors.py",
    "core/extras.py",
    "core/validation.py",
    "networks/builtin.py",
    "networks/images.py",
    "data/readers/cases.py",
    "data/readers/datalist.py",
    "data/readers/dicom.py",
    "data/readers/formats.py",
    "data/readers/geometry.py",
    "data/readers/limits.py",
    "data/readers/nifti.py",
    "data/readers/pictures.py",
    "data/readers/stored.py",
    "data/readers/table_features.py",
    "data/readers/tables.py",
    "inference/apply.py",
    "inference/modules.py",
)
"""Files that a bundle carries as ``scripts/NAME.py``; they import one another, numpy, torch and MONAI, and pandas
for Excel and Parquet alone."""
REFERENCE = re.compile("[@%]#")
"""What MONAI replaces within a text."""
IMPORT = re.compile(r"from fairflare\.(?:\w+\.)*(\w+) import")
FOLDER = "from fairflare.data.readers import"
LICENSE = (
    "The files below scripts/ are part of FairFLARE, Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
)


def write_bundle(opened: Opened, whole: WholeModel, folder: Path) -> list[str]:
    """Write the bundle to ``folder``; returns what it needs beside torch and MONAI, a line each."""
    images = opened.task.image_inputs()
    if images is not None and type(images.reader) is not Reader:
        raise UserError(f"bundle: task {opened.config.task} reads its files in a way of its own; use another format")
    for name in ("configs", "models", "scripts", "docs"):
        (folder / name).mkdir()
    _save_weights(opened.network, folder / "models" / STATE)
    network, needed = _network(opened)
    save_json(folder / "configs" / "inference.json", _inference(opened, whole, network))
    save_json(folder / "configs" / "metadata.json", _metadata(opened, list(whole.example.shape[1:])))
    save_text(folder / "scripts" / "__init__.py", "# SPDX-License-Identifier: Apache-2.0\n")
    for name in COPIED:
        save_text(folder / "scripts" / Path(name).name, copied(name))
    save_text(folder / "LICENSE-scripts.txt", LICENSE)
    example = "images/" if images is not None else "table.csv"
    how = [
        "In this folder; MONAI's command line needs fire, readers of images nibabel, Pillow, pydicom and pynrrd:",
        "",
        "```",
        "pip install torch monai fire nibabel pillow pydicom pynrrd",
        f"python -m monai.bundle run --config_file configs/inference.json --inputs {example} --output_dir out",
        "```",
    ]
    inputs = f"{'image files' if images is not None else 'a CSV file'}; the network's module takes {whole.inputs}"
    remarks = (*whole.remarks, *needed)
    save_text(folder / "docs" / "README.md", card(opened, how, inputs, whole.outputs, remarks))
    return needed


def copied(name: str) -> str:
    """A file of this package as a bundle has it: importing its neighbours in ``scripts``."""
    text = (Path(fairflare.__file__).parent / name).read_text(encoding="utf-8")
    return IMPORT.sub(r"from scripts.\1 import", text.replace(FOLDER, "from scripts import"))


def _network(opened: Opened) -> tuple[dict[str, Any], list[str]]:
    made = getattr(opened.network, "made_of", None)
    if not isinstance(made, dict):
        raise UserError("bundle: nobody has said what the run's network is made of; use another format")
    if "class_path" in made:
        dotted, args = made["class_path"], made["args"]
        own = [] if dotted.startswith("monai.") else [f"the network needs your module {dotted.partition('.')[0]}"]
        _check_plain(args)
        return {"_target_": dotted, **args}, own
    return {"_target_": "scripts.builtin.rebuilt", "name": made["name"], "sizes": made["sizes"], **made["options"]}, []


def _inference(opened: Opened, whole: WholeModel, network: dict[str, Any]) -> dict[str, Any]:
    images, table = opened.task.image_inputs(), opened.task.table_inputs()
    content: dict[str, Any] = {
        "imports": ["$import scripts.apply as apply"],
        "bundle_root": ".",
        "inputs": "images/" if images is not None else "table.csv",
        "output_dir": "out",
        "network_def": network,
        "before": whole.before,
        "after": whole.after,
        "model": "$apply.loaded(@network_def, @bundle_root + '/models/model.pt', @before, @after)",
        "classes": list(opened.task.classes),
        "batch_size": 16,
    }
    if images is not None and isinstance(reader := images.reader, Reader):
        given = {key: getattr(reader, key) for key in ("size", "channels", "window")}
        content["preprocessing"] = {"_target_": "scripts.apply.Images", **given}
    elif table is not None:
        features = {key: [dataclasses.asdict(one) for one in getattr(table, key)] for key in ("numbers", "plain")}
        content["preprocessing"] = {"_target_": "scripts.apply.Table", **features, "gaps": list(table.gaps)}
    if images is not None and images.reader.values is not None:
        content["values"] = {name: list(group) for name, group in images.reader.values.items()}
        content["background"] = list(images.reader.background)
        content["threshold"] = threshold_of(opened)
        last = "$apply.segment(@model, @preprocessing, @inputs, @output_dir, @values, @background, @threshold)"
    elif not opened.task.kind.has_classes and (names := opened.kind.exported(opened.task.classes)[2]):
        content["columns"] = names
        last = "$apply.tell(@model, @preprocessing, @inputs, @output_dir, @columns, @batch_size)"
    else:
        last = "$apply.classify(@model, @preprocessing, @inputs, @output_dir, @classes, @batch_size)"
    own = {"imports", "model"}
    _check_plain({key: value for key, value in content.items() if key not in own}, targets=True)
    return {**content, "run": [last]}


def _check_plain(content: Any, *, targets: bool = False) -> None:
    """Raise UserError where MONAI would take a text of the run for something else than text.

    It evaluates texts that begin with $, follows those that begin with @ or %, and calls what a key "_target_" names: a
    class called "$..." in a run from elsewhere, or a folder of that name, would be code that runs with the bundle.
    ``targets``: whether the mappings in it may name what they are made by, as this module writes it.
    """
    if isinstance(content, dict):
        for key, value in content.items():
            inner = targets and isinstance(value, dict)
            if key != "_target_" or not targets:
                expected("bundle", not str(key).startswith("_"), "no name that begins with _", key)
            _check_plain(key)
            _check_plain(value, targets=inner)
    elif isinstance(content, (list, tuple)):
        for value in content:
            _check_plain(value)
    elif isinstance(content, str):
        fits = not content.startswith(("$", "@", "%")) and not REFERENCE.search(content)
        expected("bundle", fits, "names and values that do not begin with $, @ or %; use another format", content)


def _metadata(opened: Opened, shape: list[int]) -> dict[str, Any]:
    known, about = versions(), opened.about
    images, kind = opened.task.image_inputs(), opened.task.kind
    image = {
        "type": "image" if images is not None else "tabular",
        "format": "magnitude" if images is not None else "numbers",
        "num_channels": shape[0],
        "spatial_shape": shape[1:],
        "dtype": "float32",
        "value_range": [0, 255] if images is not None else [],
        "is_patch_data": False,
        "channel_def": {"0": "image" if images is not None else "features"},
    }
    plain = not kind.has_masks and not kind.has_classes
    names = (opened.kind.exported(opened.task.classes)[2] if plain else []) or list(opened.task.classes)
    pred = {
        "type": "numbers" if plain else "probabilities",
        "format": kind.name,
        "num_channels": len(names) or opened.task.kind.head(opened.task.classes)[0],
        "spatial_shape": shape[1:] if kind.has_masks else [],
        "dtype": "float32",
        "value_range": [] if plain else [0, 1],
        "is_patch_data": False,
        "channel_def": {str(k): name for k, name in enumerate(names)},
    }
    content = {
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported from {opened.folder.name}, model {opened.model_sha256}"},
        "monai_version": known["monai"],
        "pytorch_version": known["torch"],
        "numpy_version": known["numpy"],
        "required_packages_version": {"nibabel": ">=5", "pillow": ">=10", "pydicom": ">=3.0.1", "pynrrd": ">=1.1"},
        "name": str(about.get("title")),
        "task": f"{opened.config.task} ({kind.name})",
        "description": f"{opened.config.method}, {opened.finished} rounds over {len(opened.trained)} sites",
        "authors": "whoever ran the federation",
        "copyright": "the weights': theirs; scripts/: the FairFLARE authors",
        "data_source": str(about.get("real")),
        "intended_use": "research; not a medical device",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": pred}},
    }
    _check_plain(content)
    return content


CLOSE = 1e-4
"""The largest difference of probabilities between an exported model and the run's own."""
STATE, SCRIPT, ONNX = "model.pt", "model.ts", "model.onnx"
CARD = "README.md"


def export_model(opened: Opened, form: str, folder: Path) -> list[str]:
    """Write the model, a card and ``fairflare.json`` to ``folder``, an empty one; returns remarks, a line each.

    ``form``: "bundle", "torchscript", "onnx" or "state-dict". UserError where the run's inputs cannot be part of a
    model, a package is missing, or the result is not the model.
    """
    torch.manual_seed(0)
    if opened.config.tune != "all":
        whole_network(opened.network)
    save_json(folder / MARK, {**about(opened), "format": form})
    if form == "state-dict":
        _save_weights(opened.network, folder / STATE)
        how = ["```python", 'network.load_state_dict(torch.load("model.pt", weights_only=True))', "```"]
        inputs = "as the network takes them: preprocessing, recalibration and thresholds are not in the file"
        save_text(folder / CARD, card(opened, how, inputs, "logits", ()))
        return [*opened.remarks, "the file holds the network's entries alone: no preprocessing, no recalibration"]
    if form == "bundle" and isinstance(opened.task, BundleTask):
        from fairflare.inference import bundle_again

        for name in ("configs", "models", "docs"):
            (folder / name).mkdir()
        inside = opened.network.network if isinstance(opened.network, Windowed) else opened.network
        _save_weights(inside, folder / "models" / STATE)
        for name, content in bundle_again.configurations(opened).items():
            save_json(folder / "configs" / name, content)
        about_it = _metadata(opened, list(opened.task.input_shape)) | {
            "network_data_format": bundle_again.data_format(opened.task)
        }
        save_json(folder / "configs" / "metadata.json", about_it)
        text = "files as the bundle's transforms take them"
        save_text(folder / "docs" / "README.md", card(opened, bundle_again.HOW, text, "logits; masks or a table", ()))
        return [*opened.remarks, *(["thresholds and recalibration are not in it"] if opened.adjustment else [])]
    whole, images = whole_model(opened), opened.task.image_inputs()
    if form == "bundle" and images is not None and images.volumes:
        raise UserError("bundle: reads images and tables, no volumes; use --format torchscript, onnx or state-dict")
    if form == "bundle":
        said = write_bundle(opened, whole, folder)
    else:
        said = {"torchscript": _torchscript, "onnx": _onnx}[form](whole, folder)
        save_text(folder / CARD, card(opened, _USE[form], whole.inputs, whole.outputs, whole.remarks))
    return [*opened.remarks, *whole.remarks, *said]


def _save_weights(network: nn.Module, path: Path) -> None:
    model = {key: value.detach().cpu().clone() for key, value in network.state_dict().items()}
    write_atomically(path, lambda file: torch.save(model, file))


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
