# SPDX-License-Identifier: Apache-2.0
"""What is imported before something is computed: `list` no PyTorch, and a run its own parts and task alone."""

import os
import resource
import subprocess
import sys
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cases import each
from fairflare.core import plugins, registry
from fairflare.engine.setup import tasks
from fairflare.studies.describe import listed_rows, method_rows

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch._C",
    "monai",
    "numpy.linalg",
    "sklearn",
    "scipy",
    "nvflare",
    "pandas",
    "matplotlib",
    "PIL",
    "cryptography",
)
MOST_MODULES = 200
MOST_TIMES = 12
"""How much more CPU `list` may take than importing what draws a command line."""


def python(*arguments):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAIRFLARE_")}
    kept["PYTHONPATH"] = str(ROOT / "custom")
    return subprocess.run([sys.executable, *arguments], env=kept, capture_output=True, text=True, timeout=300)


@each(
    "command",
    [
        ["--help"],
        ["run", "--help"],
        ["list"],
        ["list", "--parts"],
        ["list", "--parts", "--json"],
        ["describe", "fedism"],
        ["tasks"],
        ["run", "--no-such-option"],
        ["no-such-command"],
    ],
    ids=" ".join,
)
def test_what_trains_nothing_imports_nothing_that_trains(command):
    code = f"""
import sys
from fairflare.cli.main import main
try:
    main({command!r})
except SystemExit as end:
    code = end.code
print("imported:", code, *sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = python("-c", code)
    expected = [str(2 if "no-such" in " ".join(command) else 0)]
    expected += ["PIL", "numpy.linalg"] if command == ["tasks"] else []  # the sizes of simulated sites are drawn
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["imported:", *expected], done.stdout


def test_what_was_put_off_is_there_when_it_is_used():
    code = """
import sys
from fairflare.cli.about import put_off
put_off()
import torch, numpy as np
from torch import Tensor, nn
from torch.nn import functional as F
from fairflare.core import registry
from fairflare.networks import volumes
rule = registry.get_rule("fedavg")
assert "torch._C" not in sys.modules and np.ones(2).sum() == 2
assert isinstance(nn.Linear(1, 1), torch.nn.Module) and F.relu(torch.ones(1)) == 1 and not isinstance(1, Tensor)
assert isinstance(torch.ones(1), Tensor) and sys.modules["torch"].Tensor is torch.Tensor
own = sys.modules["fairflare.networks.volumes"]
assert issubclass(volumes.Windowed, nn.Module) and sys.modules[own.__name__].Windowed is volumes.Windowed
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def cpu(*arguments):
    """Seconds of a process and the system for it, the least of five."""

    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert python(*arguments).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return min(once() for _ in range(5))


def test_listing_methods_takes_little():
    assert cpu("-m", "fairflare", "list") < MOST_TIMES * cpu("-c", "import click, rich")


def test_a_run_imports_its_own_parts_and_task(tmp_path):
    """Up to its first round."""
    code = f"""
import sys
import fairflare.engine.loop as loop
from fairflare.cli.main import main

def begins(*arguments):
    found = sorted(name.partition("fairflare.")[2] for name in sys.modules if name.startswith("fairflare"))
    print("imported:", *found, flush=True)
    raise SystemExit

loop.Federation._round = begins
main(["run", "fedavg", "--task", "support2", "--out", {str(tmp_path / "run")!r}])
"""
    done = python("-c", code)
    lines = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert lines, done.stdout + done.stderr
    found = lines[0].split()[1:]
    assert len(found) <= MOST_MODULES, f"{len(found)}: {found}"
    own = {"aggregators": {"fedavg"}, "trainers": {"base"}, "datasets": {"support2", "partition", "patients"}}
    for room, names in own.items():
        there = {name.split(".")[1] for name in found if name.startswith(f"{room}.")}
        others = {path.stem for path in (plugins.PACKAGE / room).glob("*.py")} - {"base", "bounded", "bounds", "own"}
        assert names <= there and not (there - names) & others, there


def test_every_declaration_is_found_by_its_text():
    """Otherwise all files are imported to find it."""
    homes = {("method", id): registry.home(id) for id in registry.methods()}
    for kind in registry.BASES:
        homes |= {(kind, id): cls.__module__ for id, cls in registry.parts(kind).items()}
    own = {key: home for key, home in homes.items() if home.startswith("fairflare.")}  # no plugin of another test
    for (kind, id), home in own.items():
        found = [plugins.declared_in(plugins.PART, plugins.ROOMS, word, id) for word in registry.words_for(kind)]
        assert home in found, f"{kind} {id}: {found}"
    for name, cls in tasks.every().items():
        if not cls.__module__.startswith("fairflare."):
            continue
        assert plugins.declared_in(plugins.TASK, tasks.ROOMS, "name", name) == cls.__module__, name


def test_with_a_plugin_everything_is_imported(monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, str(Path(__file__).parent / "toy_rule.py"))
    assert plugins.declared_in(plugins.PART, plugins.ROOMS, "method", "fedavg") is None
    monkeypatch.delenv(plugins.VARIABLE)
    assert plugins.declared_in(plugins.PART, plugins.ROOMS, "method", "fedavg") == "fairflare.aggregators.fedavg"
    entry = EntryPoint("mine", "a_module_of_mine", plugins.GROUP)
    monkeypatch.setattr(plugins, "in_group", lambda group=plugins.GROUP: (entry,))
    assert plugins.declared_in(plugins.PART, plugins.ROOMS, "method", "fedavg") is None


@cache
def rows():
    return {row["id"]: row for row in method_rows()}


def test_what_is_listed_is_part_of_the_whole_row():
    for row in listed_rows():
        assert row == {key: rows()[row["id"]][key] for key in row}


@each("id", rows())
def test_a_method_says_all_of_itself(id):
    """Card, paper, cost, what leaves and comes, what it needs, parts and settings."""
    row = rows()[id]
    assert (ROOT / row["card"]).is_file() and row["url"].startswith("https://") and row["paper"]
    assert row["passes"]["forward"] >= 1 and row["passes"]["backward"] >= 1 and row["exchanges"] in (1, 2, "several")
    assert row["cost"] == pytest.approx((row["passes"]["forward"] + 2 * row["passes"]["backward"]) / 3, abs=0.006)
    assert all(one["number"] and one["range"] and one["meaning"] for one in row["sends"])
    assert all(one["tensors"] and one["meaning"] for one in row["receives"])
    assert {"trainer", "probes", "rule", "selector", "server_optimizer", "parameters", "needs"} <= set(row)


def test_what_is_listed_of_a_few_methods():
    found = rows()
    assert [one["number"] for one in found["scaffold"]["sends"]] == ["control_change/<entry>"]
    assert [one["tensors"] for one in found["scaffold"]["receives"]] == ["control"]
    assert found["fedlwr"]["exchanges"] == 2 and found["fedavg"]["exchanges"] == 1
    assert any("BatchNorm" in need for need in found["fedbn"]["needs"]) and found["fedavg"]["needs"] == []
    assert any("sgd" in need for need in found["scaffold"]["needs"])
    assert any("class label" in need for need in found["moon"]["needs"])
