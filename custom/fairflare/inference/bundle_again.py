# SPDX-License-Identifier: Apache-2.0
"""A run that began as a MONAI bundle (``--bundle``) as a bundle again: the same parts by MONAI's names, new weights.

``configs/train.json`` has what the run was made of and scores a list of labelled files, ``configs/inference.json``
answers for new ones; both by MONAI's own runner, which needs pytorch-ignite. ``--bundle`` reads the result back.
"""

from __future__ import annotations

from typing import Any

from fairflare.inference.loaded_run import Opened
from fairflare.tasks.bundle_parts import read, steps
from fairflare.tasks.kinds.masks import structure_values
from fairflare.tasks.own.bundle import BundleTask

KEYS = ["pred", "label"]
PAIR = "$monai.handlers.from_engine(['pred', 'label'])"
DEVICE = "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')"
LOADED = {
    "_target_": "CheckpointLoader",
    "load_path": "$@bundle_root + '/models/model.pt'",
    "load_dict": {"model": "@network"},
}
HOW = [
    "In this folder, after `pip install monai fire pytorch-ignite nibabel pillow`:",
    "",
    "```",
    "python -m monai.bundle run --config_file configs/inference.json --inputs images/ --output_dir out",
    "python -m monai.bundle run evaluate --config_file configs/train.json --datalist LIST.json --dataset_dir DIR",
    "```",
]


def configurations(opened: Opened) -> dict[str, dict[str, Any]]:
    """Name of a file in ``configs`` -> its content."""
    task, training = opened.task, opened.config.training
    assert isinstance(task, BundleTask)
    made = read("model", task.model, dict)
    model = {"_target_": made["class_path"], **made.get("args", {})}
    sgd = training.optimizer == "sgd"
    optimizer = {
        "_target_": "torch.optim.SGD" if sgd else "torch.optim.Adam",
        "params": "$@network.parameters()",
        **{"lr": training.lr, "weight_decay": training.weight_decay},
        **({"momentum": training.momentum} if sgd else {"betas": [0.9, training.adam_beta2]}),
    }
    inferer = read("inferer", task.inferer, dict)
    base = {
        "imports": ["$import glob", "$import monai", "$import torch"],
        "bundle_root": ".",
        "device": DEVICE,
        "network_def": model,
        "network": "$@network_def.to(@device)",
    }
    score, discrete = _scoring(task)
    validate = {
        "preprocessing": _preprocessing(task.transforms, task.keys),
        "dataset": _dataset(
            "$monai.data.load_decathlon_datalist(@datalist, @masks, @split, @dataset_dir)", "validate#"
        ),
        "dataloader": {"_target_": "DataLoader", "dataset": "@validate#dataset", "batch_size": 1},
        "inferer": inferer,
        **({"postprocessing": _composed(discrete)} if discrete else {}),
        **({"key_metric": score} if score else {}),
        "handlers": [LOADED, {"_target_": "StatsHandler", "iteration_log": False}],
        "evaluator": _evaluator("validate#", discrete) | ({"key_val_metric": "@validate#key_metric"} if score else {}),
    }
    train = base | {
        **{"datalist": "datalist.json", "dataset_dir": ".", "split": "testing", "masks": task.masks},
        "loss": read("loss", task.loss, dict),
        "optimizer": optimizer,
        "train": {
            "preprocessing": _preprocessing(task.train_transforms, task.keys),
            "dataloader": {"_target_": "DataLoader", "dataset": "", "batch_size": training.batch_size, "shuffle": True},
            "inferer": {"_target_": "SimpleInferer"},
        },
        "validate": validate,
        "evaluate": ["$@validate#evaluator.run()"],
    }
    written, handlers = _written(task)
    inference = base | {
        **{"inputs": "images/", "output_dir": "out", "classes": list(task.classes)},
        "preprocessing": _preprocessing(task.transforms, ("image",), missing=task.masks),
        "dataset": _dataset("$[{'image': one} for one in sorted(glob.glob(@inputs + '/*'))]"),
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1},
        "inferer": inferer,
        "postprocessing": _composed(written),
        "handlers": [LOADED, *handlers],
        "evaluator": _evaluator("", written),
        "run": ["$@evaluator.run()"],
    }
    return {"train.json": train, "inference.json": inference}


def data_format(task: BundleTask) -> dict[str, Any]:
    """What ``metadata.json`` says of the network's inputs and outputs."""
    channels, *edges = task.input_shape
    common = {"dtype": "float32", "value_range": [], "is_patch_data": "Sliding" in task.inferer}
    image = {"type": "image", "format": "magnitude", "num_channels": channels, "spatial_shape": edges, **common}
    outputs = task.outputs or len(task.classes)
    names = list(task.classes) if outputs == len(task.classes) else ["background", *task.classes]
    pred = {"type": "logits", "format": task.kind.name, "num_channels": outputs, **common}
    pred |= {"spatial_shape": edges if task.masks else [], "channel_def": {str(k): n for k, n in enumerate(names)}}
    return {"inputs": {"image": image | {"channel_def": {"0": "image"}}}, "outputs": {"pred": pred}}


def _preprocessing(text: str, keys: tuple[str, ...], missing: bool = False) -> dict[str, Any]:
    """What reads files, the transforms, and what makes tensors of them; ``missing``: where there is no label."""
    more = {"allow_missing_keys": True} if missing else {}
    own = [one | more for one in steps("transforms", text, ("image", "label"))]
    first = [{"_target_": "LoadImaged", "keys": list(keys)}, {"_target_": "EnsureChannelFirstd", "keys": list(keys)}]
    return _composed([*first, *own, {"_target_": "EnsureTyped", "keys": list(keys)}])


def _composed(transforms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"_target_": "Compose", "transforms": transforms}


def _dataset(data: str, part: str = "") -> dict[str, Any]:
    return {"_target_": "Dataset", "data": data, "transform": f"@{part}preprocessing"}


def _evaluator(part: str, postprocessing: list[Any]) -> dict[str, Any]:
    return {
        "_target_": "SupervisedEvaluator",
        "device": "@device",
        "val_data_loader": f"@{part}dataloader",
        "network": "@network",
        "inferer": f"@{part}inferer",
        **({"postprocessing": f"@{part}postprocessing"} if postprocessing else {}),
        "val_handlers": f"@{part}handlers",
    }


def _as_masks(task: BundleTask) -> list[dict[str, Any]]:
    """From the network's outputs to masks: the likeliest structure, or all above 1/2."""
    if task.outputs > len(task.classes):
        return [{"_target_": "AsDiscreted", "keys": "pred", "argmax": True}]
    return [{"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.0}]


def _scoring(task: BundleTask) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The key metric and what comes before it; nothing where structures may overlap, which a mask does not say."""
    if not task.masks:
        tensor = [{"_target_": "EnsureTyped", "keys": KEYS}]
        return {"accuracy": {"_target_": "ignite.metrics.Accuracy", "output_transform": PAIR}}, tensor
    values, _ = structure_values(getattr(task, "mask_values", ""), task.classes)
    background = task.outputs > len(task.classes)
    if not background and len(values) > 1:
        return {}, []
    pairs = [(value, k) for k, group in enumerate(values.values(), start=1) for value in group]
    known = {"orig_labels": [value for value, _ in pairs], "target_labels": [k for _, k in pairs]}
    whole = {"_target_": "AsDiscreted", "keys": KEYS, "to_onehot": task.outputs}
    found = [
        {"_target_": "MapLabelValued", "keys": "label", **known},
        *_as_masks(task),
        *([whole] if background else []),
    ]
    dice = {"_target_": "MeanDice", "include_background": not background, "output_transform": PAIR}
    return {"val_mean_dice": dice}, found


def _written(task: BundleTask) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What comes after the network, and the handlers that write answers: masks at the file's own voxels, or a table."""
    if not task.masks:
        name = "$lambda batch: [one['image'].meta for one in batch]"
        saver = {"_target_": "ClassificationSaver", "output_dir": "@output_dir", "batch_transform": name}
        chosen = {"_target_": "Activationsd", "keys": "pred", "softmax": True}
        return [chosen], [saver | {"output_transform": "$monai.handlers.from_engine(['pred'])"}]
    back = {"_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "image"}
    saved = {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir", "separate_folder": False}
    return [back | {"nearest_interp": False, "to_tensor": True}, *_as_masks(task), saved], []
