# SPDX-License-Identifier: Apache-2.0
"""``--bundle DIR``: a MONAI bundle's configuration as the options of a task (``tasks.own.bundle``) and of training.

Read are ``configs/train.json`` (or .yaml) and ``configs/metadata.json``, by the names of MONAI's bundle specification.
Only what is needed is followed; handlers, engines and data sets are left aside. An expression ($) may have numbers,
lists, arithmetic and references: nothing in a bundle is run.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import expected, shown
from fairflare.tasks.bundle_parts import LOADING, built, pipeline

Values = dict[str, str]
TRAIN, VALIDATE = "train", "validate"
MOST = 10_000
"""Values that references may add up to, and entries of a list that arithmetic makes."""
SEPARATORS = re.compile("::|#")
REFERENCE = re.compile(r"@(\w+(?:(?:::|#)\w+)*)")
METRICS = {"MeanDice": "dice", "DiceMetric": "dice", "ROCAUC": "auc_ovr", "Accuracy": "accuracy"}
"""MONAI's and ignite's key metrics -> this package's."""
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
CALLS: dict[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (int, float, bool, list, tuple, len, min, max, sum, round)},
    "torch.tensor": lambda value: value,
}
"""Functions that an expression may call; a tensor stays a list, which whoever needs one makes a tensor of."""


def of_bundle(folder: Path, kind: str) -> tuple[str, Values, list[str]]:
    """The task, its options and training settings that the bundle in ``folder`` stands for, and what is left aside.

    Args:
        kind: of the data, e.g. "volume-segmentation".

    Raises:
        UserError: a part is missing, or is none that may be made; names file and key.
    """
    config = Configuration(folder)
    shape = [config.meta("num_channels"), *config.meta("spatial_shape")]
    inferer = config.value(f"{VALIDATE}#inferer") if config.has(f"{VALIDATE}#inferer") else None
    if isinstance(inferer, Mapping) and not all(type(n) is int for n in shape):  # "*" and "16*n" are patterns
        roi = inferer.get("roi_size")
        shape = [shape[0], *(roi if isinstance(roi, list) else [roi] * (len(shape) - 1))]
    network = dict(config.component("network_def"))
    name = str(network.pop("_target_"))
    model = {"class_path": name if "." in name else f"monai.networks.nets.{name}", "args": network}
    options = {
        "model": json.dumps(model),
        "loss": json.dumps(config.component("loss")),
        "train_transforms": json.dumps(config.transforms(TRAIN)),
        "transforms": json.dumps(config.transforms(VALIDATE)),
        "shape": ",".join(map(str, shape)),
        **({"inferer": json.dumps(inferer)} if inferer is not None else {}),
        **({"key_metric": metric} if (metric := config.metric()) else {}),
    }
    values = {f"task.{key}": value for key, value in options.items()} | config.training()
    return f"bundle-{kind}:bundle", values, sorted(set(config.content) - config.read)


def bundled(folder: Path, chosen: str, own: Mapping[str, str], given: Mapping[str, str]) -> tuple[str, Values]:
    """The task and the settings of a run with the bundle in ``folder`` on data of the kind ``chosen``.

    Args:
        own: settings of the data's folder; those of how its files are read are the bundle's to say.
        given: the user's, which win.
    """
    import dataclasses

    from fairflare.engine.setup import tasks
    from fairflare.studies import display
    from fairflare.tasks.own.bundle import BundleTask

    kind = chosen.partition(":")[0]
    known = [name.removeprefix("bundle-") for name in tasks.every() if name.startswith("bundle-")]
    expected("--bundle", kind in known, f"data of kind {', '.join(known)}", kind)
    task, values, aside = of_bundle(folder, kind)
    cls = tasks.known(task.partition(":")[0])
    assert issubclass(cls, BundleTask)
    options = {field.name for field in dataclasses.fields(cls)}
    taken = {key: value for key, value in own.items() if key in options}
    bare = {key.rpartition(".")[2] for key in given}
    values = taken | {key: value for key, value in values.items() if key.rpartition(".")[2] not in bare}
    for key in ("transforms", "train_transforms"):
        if f"task.{key}" in values:
            pipeline(f"{folder.name}: {key}", values[f"task.{key}"], ("image", "label"))
    if "task.loss" in values:
        built(f"{folder.name}: loss", json.loads(values["task.loss"]), "loss")
    display.note(f"bundle {folder.name}: network, loss, optimizer and transforms; left aside: {', '.join(aside)}")
    return task, values


class Configuration:
    """A bundle's ``configs``, whose references are followed where a value is asked for.

    Attributes:
        content: of ``train.json``.
        read: its keys that a value came from.
    """

    def __init__(self, folder: Path) -> None:
        from fairflare.engine.files import read_json
        from fairflare.studies.plain_yaml import SUFFIXES, read_yaml

        names = [folder / "configs" / f"{TRAIN}{suffix}" for suffix in (".json", *SUFFIXES)]
        self.path = next((one for one in names if one.is_file()), names[0])
        expected(f"--bundle {folder.name}", self.path.is_file(), "a MONAI bundle with configs/train.json", "none")
        self.content: dict[str, Any] = (
            read_json(self.path) if self.path.suffix == ".json" else read_yaml(self.path, "bundle")
        )
        self._about = read_json(folder / "configs" / "metadata.json")
        self.read, self._values = set[str](), 0

    def fail(self, key: str, text: str) -> UserError:
        """An error at a key of the file."""
        return UserError(f"bundle: {self.path.name}: {key}: {text}")

    def has(self, key: str) -> bool:
        try:
            self._at(key)
        except UserError:
            return False
        return True

    def value(self, key: str) -> Any:
        """What stands at ``key`` ("validate#inferer"), its references and expressions resolved, as plain JSON."""
        self._values = 0
        return self._resolved(self._at(key), key, ())

    def component(self, key: str) -> dict[str, Any]:
        """The same of a component, by its class's name."""
        found = self.value(key)
        if not isinstance(found, dict) or not isinstance(found.get("_target_"), str):
            raise self.fail(key, f"expected a component with _target_, got {shown(found)}")
        return found

    def transforms(self, part: str) -> list[Any]:
        """The list of transforms of "train" or "validate"."""
        found = self.value(f"{part}#preprocessing")
        listed = found.get("transforms") if isinstance(found, dict) else found
        if not isinstance(listed, list):
            raise self.fail(f"{part}#preprocessing", "expected Compose with a list of transforms")
        return [one for one in listed if not (isinstance(one, dict) and one.get("_disabled_") is True)]

    def metric(self) -> str:
        """The key metric by this package's name; "": the bundle has none."""
        key = f"{VALIDATE}#key_metric"
        if not self.has(key):
            return ""
        names = [one["_target_"] for one in self._at(key).values() if isinstance(one, dict) and "_target_" in one]
        name = str(names[0]).rpartition(".")[2] if names else ""
        if name not in METRICS:
            raise self.fail(key, f"expected one of {', '.join(METRICS)}, got {shown(name)}; take it out")
        self.read.add(VALIDATE)
        return METRICS[name]

    def training(self) -> Values:
        """The optimizer and the batch size as settings of training."""
        node = self._at("optimizer")
        if not isinstance(node, dict):
            raise self.fail("optimizer", f"expected a component, got {shown(node)}")
        given = {k: self._resolved(v, f"optimizer#{k}", ()) for k, v in node.items() if k != "params"}
        name = str(given.pop("_target_", "")).rpartition(".")[2]
        beta, beta2 = given.pop("betas", (0.9, 0.999))
        plain = {"lr": given.pop("lr", 1e-3), "weight_decay": given.pop("weight_decay", 0.01 if name == "AdamW" else 0)}
        momentum = given.pop("momentum", 0)
        fits = name in ("Adam", "SGD") or (name == "AdamW" and not plain["weight_decay"])
        if not fits or beta != 0.9 or any(value is not False for value in given.values()):
            what = (
                "Adam or SGD with lr, weight_decay, momentum or betas of 0.9 and another; change it, or --set train.*"
            )
            raise self.fail("optimizer", f"expected {what}; got {shown({'_target_': name, **given})}")
        found = {"optimizer": "sgd" if name == "SGD" else "adam", **plain, "adam_beta2": beta2, "momentum": momentum}
        if self.has(f"{TRAIN}#dataloader#batch_size"):
            found["batch_size"] = self.value(f"{TRAIN}#dataloader#batch_size")
        return {f"train.{key}": str(value) for key, value in found.items()}

    def meta(self, key: str) -> Any:
        """What ``metadata.json`` says of the network's input."""
        where = ("network_data_format", "inputs", "image", key)
        found: Any = self._about
        for part in where:
            if not isinstance(found, dict) or part not in found:
                raise UserError(f"bundle: metadata.json: expected the key {'#'.join(where)}")
            found = found[part]
        return found

    def _at(self, key: str) -> Any:
        node: Any = self.content
        parts = SEPARATORS.split(key)
        for part in parts:
            if isinstance(node, list) and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict) and part in node:
                node = node[part]
            else:
                raise self.fail(key, "is not there; MONAI's bundles have it, and --bundle needs it")
        self.read.add(parts[0])
        return node

    def _resolved(self, node: Any, key: str, above: tuple[str, ...]) -> Any:
        self._values += 1
        if self._values > MOST:
            raise self.fail(key, f"expected at most {MOST} values")
        if isinstance(node, dict):
            if str(node.get("_target_")).rpartition(".")[2] in LOADING:
                return {"_target_": node["_target_"]}
            return {name: self._resolved(value, f"{key}#{name}", above) for name, value in node.items()}
        if isinstance(node, list):
            return [self._resolved(value, f"{key}#{k}", above) for k, value in enumerate(node)]
        if not isinstance(node, str) or node[:1] not in "$@%":
            return node
        if node[0] in "@%":  # a macro of another file, or a relative one, is neither
            if not REFERENCE.fullmatch(f"@{node[1:]}"):
                raise self.fail(key, f"{shown(node)}: expected a key from the file's top, as @train#inferer")
            return self._followed(node[1:], key, above)
        return self._computed(node, key, above)

    def _followed(self, name: str, key: str, above: tuple[str, ...]) -> Any:
        if name in above or len(above) > 32:
            raise self.fail(key, f"@{name} refers to itself")
        return self._resolved(self._at(name), name, (*above, name))

    def _computed(self, text: str, key: str, above: tuple[str, ...]) -> Any:
        """The value of an expression of numbers, texts, lists, arithmetic and references."""
        names: list[str] = []

        def placed(found: re.Match[str]) -> str:
            names.append(found[1])
            return f"_{len(names) - 1}"

        def of(node: ast.AST) -> Any:
            if isinstance(node, ast.Constant) and not isinstance(node.value, (bytes, complex)):
                return node.value
            if isinstance(node, (ast.List, ast.Tuple)):
                return [of(one) for one in node.elts]
            if isinstance(node, ast.Name) and re.fullmatch(r"_\d+", node.id) and int(node.id[1:]) < len(names):
                return self._followed(names[int(node.id[1:])], key, above)
            if ast.unparse(node) in ("np.pi", "numpy.pi", "math.pi"):
                return math.pi
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
                return -of(node.operand) if isinstance(node.op, ast.USub) else not of(node.operand)
            if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
                left, right = of(node.left), of(node.right)
                many = next((n for n in (left, right) if type(n) is int), 0) if isinstance(node.op, ast.Mult) else 0
                if not (isinstance(left, (list, str)) or isinstance(right, (list, str))) or many <= 100:
                    return OPERATORS[type(node.op)](left, right)
            if isinstance(node, ast.IfExp):
                return of(node.body if of(node.test) else node.orelse)
            if isinstance(node, ast.Subscript):
                return of(node.value)[of(node.slice)]
            if isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in CALLS:
                found = CALLS[ast.unparse(node.func)](*map(of, node.args))
                return list(found) if isinstance(found, tuple) else found
            raise ValueError

        try:
            found = of(ast.parse(REFERENCE.sub(placed, text[1:].strip()), mode="eval").body)
        except UserError:
            raise
        except Exception:  # whatever is wrong with an expression, it has no value here
            what = "numbers, texts, lists, + - * / and @references; write its value in its place"
            raise self.fail(key, f"{shown(text)}: expected {what}") from None
        if isinstance(found, list) and len(found) > MOST:
            raise self.fail(key, f"expected at most {MOST} values")
        return found
