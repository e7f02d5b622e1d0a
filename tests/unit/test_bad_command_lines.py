# SPDX-License-Identifier: Apache-2.0
"""Bad command lines: each ends with one line that names what is wrong, and code 2 or 1; none trains anything."""

import os

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core import registry, user_code

RUN = ["run", "fedavg", "--task", "support2"]
LONG = "x" * 5000
NAME = "x" * 300
"""Longer than a file system takes."""
DEEP = "[" * 2000
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi")
)


def made(folder):
    """Files and folders that are not what a command expects."""
    (folder / "file").write_text("x")
    (folder / "empty").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "gone").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe")
    (folder / "bytes").write_bytes(bytes(range(256)) * 40)
    (folder / "full").mkdir()
    (folder / "full" / "note.txt").write_text("mine")
    (folder / "folder.py").mkdir()
    for name, text in SITE_FILES.items():
        (folder / f"site_{name}.yaml").write_text(text, errors="surrogatepass")
    for name, text in DESCRIPTIONS.items():
        (folder / f"lists_{name}").mkdir()
        (folder / f"lists_{name}" / "a.csv").write_text("label,x\n0,1\n")
        (folder / f"lists_{name}" / "dataset.json").write_text(text)
    (folder / "lists").mkdir()
    (folder / "lists" / "a.csv").write_text("label,x\n0,1\n")
    (folder / "lists" / "b.csv").write_text("label,x\n0,1\n")
    (folder / "odd_lists").mkdir()
    (folder / "odd_lists" / "a\nb.csv").write_text("label,x\n0,1\n")
    (folder / "odd_lists" / "c.csv").write_text("label,x\n0,1\n")
    for name, text in PLUGINS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "net.py").write_text("raise RuntimeError('broken')\n")
    (folder / "fairflare.py").write_text("")
    (folder / "not-a-name.py").write_text("")
    return folder


SITE_FILES = {
    "empty": "",
    "list": "[1, 2]",
    "text": "hello",
    "number": "3",
    "unclosed": "a: [",
    "deep": "data_root: " + DEEP,
    "deep_json": '{"data_root": ' + "[" * 100_000,
    "laughs": LAUGHS,
    "circle": "data_root: &a [*a]",
    "python": "data_root: !!python/object/apply:os.system ['true']",
    "unknown": "data_rot: x",
    "long_key": f"{LONG}: x",
    "number_key": "1: 2",
    "list_key": "? [a, b]\n: 1",
    "path_number": "data_root: 3",
    "path_list": "data_root: [a]",
    "path_nul": 'data_root: "a\\0b"',
    "path_long": f"data_root: {NAME}",
    "path_longer": f"data_root: {LONG}",
    "outside": "{data_root: empty, datalist: ../../x}",
    "datalist_absolute": "{data_root: empty, datalist: /etc/passwd}",
    "loop": "{data_root: loop, datalist: x}",
    "gpu": "{data_root: empty, gpu: -1}",
    "gpu_text": "{data_root: empty, gpu: first}",
    "gpu_true": "{data_root: empty, gpu: true}",
    "gpu_huge": "{data_root: empty, gpu: 99999999999999999999}",
    "batch": "{data_root: empty, batch_size: 1}",
    "batch_huge": "{data_root: empty, batch_size: 1000000}",
    "workers": "{data_root: empty, num_workers: 100000}",
    "cache": "{data_root: empty, cache_rate: .nan}",
    "cache_inf": "{data_root: empty, cache_rate: .inf}",
    "min_count": "{data_root: empty, min_count: 1.5}",
    "secure": "{data_root: empty, secure_sum: 1}",
    "secure_text": "{data_root: empty, secure_sum: 'yes'}",
    "date": "{data_root: 2026-01-01}",
    "bad_date": "{data_root: 2026-13-45}",
    "digits": "{gpu: " + "9" * 5000 + "}",
    "hexadecimal": "{gpu: 0x" + "f" * 5000 + "}",
    "tab": "a:\n\t- b",
    "twins": "--- a: 1\n---\nb: 2\n",
    "null_root": "{data_root: null}",
    "large": "data_root: x # " + "y" * 100_000,
    "no_root": "min_count: 5",
    "surrogate": '{"data_root": "\\ud800"}',
}
DESCRIPTIONS = {
    "list": "[]",
    "deep": "[" * 100_000,
    "missing": "{}",
    "unclosed": "{",
    "kind_list": '{"kind": [], "classes": [], "options": {}}',
    "options": '{"kind": "tabular", "classes": ["a", "b"], "options": {"qq": 1}}',
    "classes": '{"kind": "tabular", "classes": [1, 2], "options": {}}',
    "options_text": '{"kind": "tabular", "classes": ["a", "b"], "options": "text"}',
    "datalists": '{"kind": "tabular", "classes": ["a", "b"], "options": {"n_sites": 3}}',
    "nan": '{"kind": "tabular", "classes": ["a", "b"], "options": {"test_fraction": NaN}}',
    "digits": '{"kind": "tabular", "classes": 1' + "0" * 5000 + "}",
}
HEAD = """
from dataclasses import dataclass
from fairflare.core.types import Paper
from fairflare.core.registry import method, probe, trainer
from fairflare.aggregators.base import WeighingRule as Rule
PAPER = Paper("a", "b", "c", 2026, "https://example.org")
"""
PLUGINS = {
    "raises": "raise ValueError('no')",
    "exits": "raise SystemExit(7)",
    "interrupts": "raise KeyboardInterrupt",
    "ends": "raise EOFError",
    "aborts": "import click\nraise click.Abort",
    "syntax": "def",
    "nul_byte": "x = '\0'",
    "imports": "import nosuchmodule",
    "paper_none": HEAD
    + "@method('mine', title='t', summary='s', paper=None)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    def weigh(self, replies, state, info): return {}, state\n",
    "paper_text": HEAD
    + "@method('mine', title='t', summary='s', paper='p')\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    def weigh(self, replies, state, info): return {}, state\n",
    "no_dataclass": HEAD + "@method('mine', title='t', summary='s', paper=PAPER)\nclass Mine(Rule):\n"
    "    def weigh(self, replies, state, info): return {}, state\n",
    "no_rule": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine:\n    q: float = 1\n",
    "abstract": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    q: float = 1\n",
    "no_default": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n    q: float\n"
    "    def weigh(self, replies, state, info): return {}, state\n",
    "odd_type": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    q: complex = 1j\n    def weigh(self, replies, state, info): return {}, state\n",
    "unknown_type": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    q: 'NoSuchType' = 1\n    def weigh(self, replies, state, info): return {}, state\n",
    "bad_default": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    q: float = float('nan')\n    def weigh(self, replies, state, info): return {}, state\n",
    "taken": HEAD
    + "@method('fedavg', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    def weigh(self, replies, state, info): return {}, state\n",
    "odd_id": HEAD
    + "@method('../mine', title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    def weigh(self, replies, state, info): return {}, state\n",
    "no_id": HEAD + "@method(None, title='t', summary='s', paper=PAPER)\n@dataclass(frozen=True)\nclass Mine(Rule):\n"
    "    def weigh(self, replies, state, info): return {}, state\n",
    "no_trainer": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER, trainer='nosuch')\n@dataclass(frozen=True)\n"
    "class Mine(Rule):\n    def weigh(self, replies, state, info): return {}, state\n",
    "no_probe": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER, probes=('nosuch',))\n@dataclass(frozen=True)\n"
    "class Mine(Rule):\n    def weigh(self, replies, state, info): return {}, state\n",
    "settings": HEAD
    + "@method('mine', title='t', summary='s', paper=PAPER, settings={'nosuch': 1})\n@dataclass(frozen=True)\n"
    "class Mine(Rule):\n    def weigh(self, replies, state, info): return {}, state\n",
    "a_trainer": HEAD + "@trainer('mine')\nclass Mine: pass\n",
    "a_probe": HEAD + "@probe('mine')\nclass Mine: pass\n",
    "function": HEAD + "@method('mine', title='t', summary='s', paper=PAPER)\ndef mine(): pass\n",
}


def numbers():
    """--set KEY=VALUE with values that are no such number."""
    whole = ["rounds", "epochs", "batch_size", "min_sites", "threads", "task_timeout", "data_seed", "n_sites"]
    real = ["lr", "weight_decay", "logit_tau", "adam_beta2", "alpha", "test_fraction"]
    odd = ["", "nan", "-inf", "-1", "1e999", "9" * 100, "[]", "1_000", "\u0663", "a\nb", "\ud800", LONG]
    for k, key in enumerate(whole + real):
        for value in odd[k % 3 :: 2]:
            yield [*RUN, "--set", f"{key}={value}"], key
    for value in ("0.5", "1.0000001", "0x10", "true", "1e400"):
        yield [*RUN, "--set", f"epochs={value}"], "epochs"


def options():
    for name in ("--seed", "--rounds", "--sites"):
        for value in ("", "x", "1.5", "nan", "-1", "9" * 60, "9" * 5000):
            yield [*RUN, name, value], ""
    for value in ("0", "-1", "nan", "x", "1e400"):
        yield [*RUN, "--env", "prod", "--kit", "empty", "--wait", value], "--wait"
    for value in ("", "moon", "SIM", "poc\0"):
        yield [*RUN, "--env", value], ""
    for value in ("", "empty", "file", "loop", "nosuch", NAME, LONG, "a\0b", "pipe"):
        yield [*RUN, "--env", "prod", "--kit", value], ""
    yield [*RUN, "--kit", "empty"], "--kit"
    yield [*RUN, "--preinstalled"], "--preinstalled"
    yield [*RUN, "--env", "prod"], "--kit"
    yield [*RUN, "--nosuch"], "--nosuch"
    yield ["--nosuch"], "--nosuch"
    yield ["nosuch"], "nosuch"
    yield ["run"], "METHOD"
    yield ["run", ""], ""
    yield ["\0"], ""
    yield [*RUN, "more"], "more"


def settings():
    for pair in ("", "=", "=1", "lr", " =1", "nosuch=1", f"{LONG}=1", "a\0b=1", "\ud800=1", "variant", "l r=1"):
        yield [*RUN, "--set", pair], ""
    yield [*RUN, "--set", "lr=1", "--set", "lr=1"], "lr is given twice"
    for key, value in {
        "trainer": "nosuch",
        "group_by": "label+label",
        "min_count": "-3",
        "leave_out": "../site-1",
        "clients": "../a,b,c,d",
        "federation": "../../x",
        "secure_sum": "rot13",
        "optimizer": "lion",
        "precision": "",
        "keep_optimizer": "maybe",
        "sites_by": "coin",
        "model": "{" + '"a":' * 5000,
        "label": "",
        "weighting": LONG,
        "min_sites": "9",
    }.items():
        yield [*RUN, "--set", f"{key}={value}"], key
    for value in ("a,b", "a,a,c,d", "a b,b,c,d", f"{NAME},b,c,d", "a\0,b,c,d", "-a,b,c,d", "é,b,c,d"):
        yield [*RUN, "--set", f"clients={value}"], "clients"
    for value in ("a/b", ".", NAME, "x\0", "-x", "a\nb", "\ud800"):
        yield [*RUN, "--set", f"federation={value}"], "federation"
    for value in ("nosuch", "", "+", "label+nosuch", LONG, "\0"):
        yield [*RUN, "--set", f"group_by={value}"], "group_by"


def tasks_and_methods():
    for value in (
        "",
        ":",
        "nosuch",
        "support2:nosuch",
        ":default",
        LONG,
        "a\0b",
        "\ud800",
        "../x",
        "support2:default:x",
    ):
        yield ["run", "fedavg", "--task", value], ""
    for value in ("nosuch", "", "fedavg:weighting=uniform", LONG, "a\0b", "\ud800", "../fedavg"):
        yield ["run", value, "--task", "support2"], ""
        yield ["export", value, "--task", "support2", "--out", "job"], ""
    own = ["run", "fedavg", "--task", "classification", "--set"]
    for pair in (
        "labels=²",
        "labels=999999999999",
        "labels=" + "9" * 5000,
        "labels=1",
        "labels=a,a",
        "labels=",
        "site_names=a,A",
    ):
        yield [*own, pair, "--set", "site_names=x,y" if "site_names" not in pair else "size=32"], ""
    for pair in (
        "site_names=",
        "site_names=../a,b",
        "site_names=a/b,c",
        f"site_names={NAME},b",
        "attribute_values=sex",
        "mean=a",
        "mean=nan,nan,nan",
        "size=0",
        "size=99999",
        "channels=0",
        "model={",
        "model=[]",
        "model={}",
        'model={"class_path": 3}',
        'model={"class_path": "a", "x": 1}',
        'model={"class_path": "nosuch.Net"}',
        "norm=x",
        "augment=perhaps",
    ):
        yield [*own, pair, *([] if "site_names" in pair else ["--set", "site_names=x,y"])], ""
    for pair in ("mask_values=x", "mask_values=a=b", "mask_values=lesion=" + "9" * 5000):
        yield (
            [
                "run",
                "fedavg",
                "--task",
                "segmentation",
                "--set",
                "site_names=a,b",
                "--set",
                "labels=lesion",
                "--set",
                pair,
            ],
            "mask_values",
        )
    for value in ("", "nosuch", "empty", "file", "loop", "bytes", NAME, "a\0b"):
        yield ["run", "fedavg", "--task", "ich-phantom:paper", "--init-from", value], ""


def comparisons():
    start = ["compare", "fedavg", "--task", "support2", "--out", "c"]
    for value in (
        "",
        ",",
        "0,",
        "a",
        "1.5",
        "0,0",
        "-1",
        "0..1000000000",
        "1e9",
        "nan",
        "9" * 5000,
        ",".join(map(str, range(20_000))),
        "\u0663,3",
    ):
        yield [*start, "--seeds", value], "--seeds"
    for value in (
        "",
        "=",
        "weighting",
        "=a",
        "nosuch=1",
        "weighting=",
        "weighting=a,b",
        "weighting=uniform,uniform",
        "weighting=" + ",".join(map(str, range(5000))),
        f"weighting={LONG}",
        "weighting=a\0b",
    ):
        yield [*start, "--grid", value], ""
    yield [*start, "--grid", "weighting=uniform", "--grid", "weighting=uniform"], "twice"
    for label in (
        "fedavg:",
        "fedavg:weighting",
        "fedavg:nosuch=1",
        "fedavg:weighting=x",
        ":",
        "fedavg:a=b:c=d",
        f"fedavg:{LONG}",
    ):
        yield ["compare", label, "--task", "support2", "--set", "lr=x"], ""
    yield ["compare", "--task", "support2"], "METHOD"
    yield ["compare", "fedavg", "fedavg", "--task", "support2", "--out", "full"], ""
    yield ["compare", "fedavg", "--task", "support2", "--out", "full"], "note.txt"
    grid = ",".join(f"0.{k:03}" for k in range(100))
    yield (
        [
            "compare",
            "fedism-plus",
            "--task",
            "support2",
            "--grid",
            f"q={grid}",
            "--grid",
            f"beta={grid}",
            "--grid",
            f"rho_max={grid}",
        ],
        "--grid",
    )
    yield ["compare", *["fedavg"] * 3000, "--task", "support2"], ""
    for out in ("file", "loop", "gone", "file/x", NAME, "a\0b", "loop/x"):
        yield ["compare", "fedavg", "--task", "support2", "--out", out], ""


def outputs():
    for out in (
        "file",
        "loop",
        "gone",
        "full",
        "file/x",
        NAME,
        f"{NAME}/x",
        LONG,
        "a\0b",
        "loop/x",
        "pipe",
        "/proc/x",
        "/dev/null",
        "",
    ):
        yield [*RUN, "--out", out], ""
        yield ["export", "fedavg", "--task", "support2", "--out", out], ""
    for out in ("loop", NAME, "a\0b"):
        yield ["contribution", "fedavg", "--task", "support2", "--out", out], ""
    yield [*RUN, "--out", "full", "--force"], "full"
    yield ["export", "fedavg", "--task", "support2", "--out", "full", "--force"], "full"
    for name in ("a/b", "../x", "", ".", "..", NAME, LONG, "a\0b", "\ud800", "a b", "-x", "a\nb", "é", "-"):
        yield (
            ["export", "fedavg", "--task", "support2", "--out", "job", "--name", name],
            "" if {*name} & {*"\0\ud800"} else "--name",
        )
    yield ["contribution", "fedavg", "--task", "support2", "--set", "leave_out=site-1"], "leave_out"
    yield ["contribution", "fedavg", "--task", "ctg"], ""


def own_data():
    for folder in ("", "nosuch", "file", "empty", "loop", "gone", "pipe", "bytes", NAME, LONG, "a\0b", "\ud800"):
        yield ["run", "fedavg", "--datalists", folder, "--kind", "tabular", "--classes", "2"], ""
    for name in DESCRIPTIONS:
        yield ["run", "fedavg", "--datalists", f"lists_{name}"], ""
    yield (
        ["run", "fedavg", "--datalists", "odd_lists", "--kind", "tabular", "--classes", "2", "--set", "features=x"],
        "site_names",
    )
    lists = ["run", "fedavg", "--datalists", "lists", "--kind", "tabular"]
    for classes in ("0", "1", "-1", "1.5", "999999999999", "9" * 5000, "a", "a,a", ",", "²", "a\0b", "\ud800,b"):
        yield [*lists, "--classes", classes, "--set", "features=x"], "" if {*classes} & {*"\0\ud800"} else "labels"
    yield [*lists, "--classes", "2"], "features"
    yield ["run", "fedavg", "--datalists", "lists"], "--kind"
    yield ["run", "fedavg", "--datalists", "lists", "--kind", "nosuch"], "--kind"
    yield ["run", "fedavg", "--datalists", "lists", "--task", "support2"], "--kind"
    yield [*RUN, "--kind", "tabular"], "--kind"
    yield [*RUN, "--classes", "3"], "--classes"
    for code in (
        "",
        "nosuch.py",
        "file",
        "empty",
        "loop",
        "folder.py",
        "fairflare.py",
        "not-a-name.py",
        "net.py/x",
        NAME,
        f"{LONG}.py",
        "a\0b.py",
        "pipe",
    ):
        yield [*RUN, "--code", code], "code" if "\0" not in code else ""
    yield [*RUN, "--code", "net.py", "--code", "net.py"], "code"
    yield (
        [
            "run",
            "fedavg",
            "--task",
            "classification",
            "--set",
            "site_names=a,b",
            "--code",
            "net.py",
            "--set",
            'model={"class_path": "net.Net"}',
        ],
        "net.Net",
    )


def sites():
    for name in SITE_FILES:
        yield ["preflight", f"site_{name}.yaml", "--kind", "tabular", "--classes", "2", "--set", "features=x"], ""
    for path in (
        "",
        "nosuch",
        "empty",
        "loop",
        "gone",
        "pipe",
        "bytes",
        NAME,
        LONG,
        "a\0b",
        "\ud800",
        "/dev/zero",
        "/dev/null",
        "file/x",
    ):
        yield ["preflight", path, "--kind", "tabular", "--classes", "2"], ""
    good = ["preflight", "site_good.yaml"]
    yield good, "--kind"
    yield [*good, "--kind", "tabular", "--task", "support2"], "--kind"
    for extra in (
        ["--kind", "nosuch"],
        ["--task", "nosuch"],
        ["--task", "support2:nosuch"],
        ["--kind", "tabular", "--classes", "0"],
        ["--kind", "tabular", "--classes", "²"],
        ["--kind", "tabular", "--classes", "9" * 5000],
        ["--kind", "tabular", "--set", "nosuch=1"],
        ["--kind", "tabular", "--set", "features=x", "--set", "group_by=nosuch"],
        ["--kind", "tabular", "--set", "features=x"],
        ["--kind", "classification", "--site", "a/../b"],
        ["--kind", "classification", "--site", NAME],
        ["--kind", "segmentation", "--set", "size=33"],
        ["--kind", "tabular", "--set", "labels=3", "--classes", "2"],
        ["--task", "support2", "--classes", "2"],
    ):
        yield [*good, *extra], ""


def accepted():
    for code in ("nosuch", "../x", LONG, "a,b"):
        yield [*RUN, "--accept", code], "accept"
    for tables in ("", "loop", NAME, LONG, "a\0b"):
        yield ["compare", "fedavg", "--task", "support2", "--tables", tables], ""


def folders():
    for command in ("resume", "report", "verify"):
        for path in (
            "",
            "nosuch",
            "file",
            "empty",
            "full",
            "loop",
            "gone",
            "pipe",
            "file/x",
            NAME,
            LONG,
            "a\0b",
            "\ud800",
        ):
            yield [command, path], ""
        yield [command], "FOLDER"


def preparations():
    for source in ("nosuch", "file", "loop", "empty", NAME, "a\0b", ""):
        yield ["prepare", "rsna-ich", source, "dest"], ""
    for data in ("nosuch", "support2", "", "rsna-ich:nosuch", "a\0b", LONG):
        yield ["prepare", data, "empty", "dest"], ""
    for dest in ("file", "loop", "full", NAME, "a\0b", "file/x", ""):
        yield ["prepare", "rsna-ich", "empty", dest], ""
    for pair in ("size=x", "nosuch=1", "size=0", "limit=0", "n_sites=999999999999", "="):
        yield ["prepare", "rsna-ich", "empty", "dest", "--set", pair], ""


ALL = [  # (arguments, what the line says)
    *numbers(),
    *options(),
    *settings(),
    *tasks_and_methods(),
    *comparisons(),
    *outputs(),
    *own_data(),
    *sites(),
    *accepted(),
    *folders(),
    *preparations(),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = made(tmp_path_factory.mktemp("place"))
    (folder / "site_good.yaml").write_text("{data_root: lists, datalist: a.csv}")
    return folder


def nothing_trains(monkeypatch, place):
    """For one case."""

    def trained(*args, **kwargs):
        raise AssertionError("a bad command line trained")

    monkeypatch.chdir(place)
    monkeypatch.setattr("fairflare.studies.runs.run_local", trained)
    monkeypatch.setattr("fairflare.flare.simulate.run_simulator", trained)
    for name in (user_code.VARIABLE, registry.PLUGINS, "FAIRFLARE_DATA", "FAIRFLARE_SITE_CONFIG", "FAIRFLARE_DEBUG"):
        monkeypatch.setenv(name, "")  # whatever a command sets goes with the test
        monkeypatch.delenv(name)


def check(capsys, arguments, text):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    said = capsys.readouterr()
    assert stop.value.code in (1, 2), (stop.value.code, said.err)
    lines = [line for line in said.err.splitlines() if line.strip() and not line.startswith("    ")]  # a tree of files
    assert len(lines) == 1 and lines[0].startswith("fairflare: "), said.err
    assert "internal error" not in said.err and "Traceback" not in said.err and len(lines[0]) < 1600, said.err
    assert text in lines[0], said.err
    assert len(lines[0]) > len("fairflare: ") + 8


@each("number", range(len(ALL)))
def test_a_bad_command_line_ends_in_one_line(capsys, number, monkeypatch, place):
    nothing_trains(monkeypatch, place)
    check(capsys, *ALL[number])


@each("name", [*PLUGINS, "nosuch", "folder", "pipe", "file", NAME, LONG, "loop"])
def test_a_broken_plugin_is_named_and_leaves_nothing_registered(capsys, name, monkeypatch, place):
    nothing_trains(monkeypatch, place)
    path = f"{name}.py" if name in (*PLUGINS, "nosuch", "folder") else name
    monkeypatch.setenv(registry.PLUGINS, path)
    if name == "interrupts":
        with pytest.raises(SystemExit) as stop:
            main(["list"])
        assert stop.value.code == 130 and capsys.readouterr().err.strip() == "fairflare: interrupted"
        return
    check(capsys, ["list"], "")
    monkeypatch.delenv(registry.PLUGINS)
    left = set(registry.methods()).union(*map(registry.parts, registry.BASES))
    assert "mine" not in left
