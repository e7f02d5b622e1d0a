# SPDX-License-Identifier: Apache-2.0
"""A MONAI bundle of a run's model: configurations, weights, and the few files of this package that it needs, copied."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fairflare
from fairflare.core.errors import UserError
from fairflare.core.validation import expected
from fairflare.core.versions import versions
from fairflare.data.readers.pictures import Reader
from fairflare.engine.files import CONFIG, is_file, read_json
from fairflare.engine.state import save_json, save_text, write_atomically
from fairflare.inference.deployable_model import WholeModel, threshold_of
from fairflare.inference.loaded_run import Opened
from fairflare.inference.mix import MIXED
from fairflare.report import REPORT

WARNING = "**Not a medical device.** A research model. Nobody has shown that its predictions are safe to act on."


def card(opened: Opened, how: Sequence[str], inputs: str, outputs: str, remarks: Sequence[str]) -> str:
    """Markdown: task, data, method, results as reported, inputs and outputs, limits."""
    about = opened.about
    report = read_json(opened.folder / REPORT) if is_file(opened.folder / REPORT) else {}
    whose = "shared by all sites" if opened.whose == "shared" else f"{opened.site}'s own ({opened.whose})"
    model = {
        "Classes or structures": ", ".join(map(_text, about.get("classes", ()))),
        "Method": _text(_method(opened)),
        "Trained": f"{opened.finished} rounds over {len(about['sites'])} sites",
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
        _limits(opened),
    ]
    return "\n\n".join(parts) + "\n"


def _method(opened: Opened) -> str:
    if opened.whose == MIXED:
        return "; ".join(opened.remarks)
    described = read_json(opened.folder / CONFIG)
    return f"{described.get('title')} ({described.get('paper')})"


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


def _limits(opened: Opened) -> str:
    lines = [
        "Results hold for patients and devices like those of the sites above; others may get much worse ones.",
        "Its probabilities need not be calibrated elsewhere, nor its threshold right: both depend on prevalence.",
        "Groups of patients that a site has few of were hardly tested.",
    ]
    if not opened.site:
        lines.append("No site's recalibration, threshold or own model is in it.")
    return "\n".join(f"- {line}" for line in lines)


def _text(value: Any) -> str:
    """One line without markup that could hide anything."""
    return " ".join(str("" if value is None else value).split()).replace("<", "&lt;").replace("|", "/")


COPIED = (
    "core/errors.py",
    "core/validation.py",
    "networks/builtin.py",
    "data/readers/datalist.py",
    "data/readers/dicom.py",
    "data/readers/geometry.py",
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
    model = {key: value.detach().cpu().clone() for key, value in opened.network.state_dict().items()}
    write_atomically(folder / "models" / "model.pt", lambda file: torch.save(model, file))
    network, needed = _network(opened)
    save_json(folder / "configs" / "inference.json", _inference(opened, whole, network))
    save_json(folder / "configs" / "metadata.json", _metadata(opened, whole))
    save_text(folder / "scripts" / "__init__.py", "# SPDX-License-Identifier: Apache-2.0\n")
    for name in COPIED:
        save_text(folder / "scripts" / Path(name).name, copied(name))
    save_text(folder / "LICENSE-scripts.txt", LICENSE)
    example = "images/" if images is not None else "table.csv"
    how = [
        "In this folder; MONAI's command line needs fire, readers of images nibabel, Pillow and pydicom:",
        "",
        "```",
        "pip install torch monai fire nibabel pillow pydicom",
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

    Args:
        content: of a configuration, but for what this module has written itself.
        targets: whether the mappings in it may name what they are made by, as this module writes it.
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


def _metadata(opened: Opened, whole: WholeModel) -> dict[str, Any]:
    """In MONAI's form, as far as it is about images."""
    known, about = versions(), opened.about
    images, kind = opened.task.image_inputs(), opened.task.kind
    shape = list(whole.example.shape[1:])
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
        "required_packages_version": {"nibabel": ">=5", "pillow": ">=10", "pydicom": ">=3.0.1"},
        "name": str(about.get("title")),
        "task": f"{opened.config.task} ({kind.name})",
        "description": f"{opened.config.method}, {opened.finished} rounds over {len(about['sites'])} sites",
        "authors": "whoever ran the federation",
        "copyright": "the weights': theirs; scripts/: the FairFLARE authors",
        "data_source": str(about.get("real")),
        "intended_use": "research; not a medical device",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": pred}},
    }
    _check_plain(content)
    return content
