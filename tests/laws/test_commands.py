# SPDX-License-Identifier: Apache-2.0
"""Laws over all commands: each answers a program by --json alone, and with --quiet says nothing beside its result."""

import json
import re
import shutil

import pytest

from cases import each
from fairflare.cli import main as cli
from fairflare.cli.main import main

SMALL = ["--task", "heart:full", "--rounds", "2", "--no-solo"]
QUESTION = ["--set", "label=ill", "--set", "features=age"]
LINES = {
    "list": ["list"],
    "tasks": ["tasks"],
    "describe": ["describe", "fedavg"],
    "run": ["run", "fedavg", *SMALL, "--out", "OUT"],
    "report": ["report", "RUN"],
    "verify": ["verify", "RUN"],
    "watch": ["watch", "RUN"],
    "after": ["after", "RUN", "--step", "recalibrate"],
    "risk": ["risk", "RUN", "--shadows", "0"],
    "export": ["export", "fedavg", "--task", "heart:full", "--out", "OUT"],
    "inspect": ["inspect", "JOB"],
    "export-model": ["export-model", "RUN", "--format", "state-dict", "--out", "OUT"],
    "predict": ["predict", "RUN", "TABLE", "--site", "VA", "--out", "OUT.csv"],
    "compare": ["compare", "fedavg", "fedheal", *SMALL[:-1], "--out", "OUT"],
    "init": ["init", "CSV", "--yes", "--label", "ill", "--site", "hospital", "--patient", "none"],
    "preflight": ["preflight", "CSV"],
    "plan": ["plan", "CSV"],
    "fingerprint": ["fingerprint", "SITE", "--kind", "tabular", "--classes", "no,yes", *QUESTION, "--out", "OUT.json"],
}  # fmt: skip
"""Command -> a line that runs it on what ``places`` holds."""


def every_command():
    context = cli.click.Context(cli.cli)
    return {name: cli.cli.get_command(context, name) for name in cli.cli.list_commands(context)}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("commands")
    (csv := root / "csv").mkdir()
    rows = [f"{'ab'[k % 2]},{k % 7},{(k * 37) % 11},{'yes' if (k * 5) % 7 > 3 else 'no'}" for k in range(240)]
    (csv / "rows.csv").write_text("\n".join(["hospital,age,score,ill", *rows]) + "\n")
    ready = shutil.copytree(csv, root / "ready")
    (root / "table.csv").write_text("age,sex,cp\n63,1,1\n41,0,2\n")
    for line in (
        [*LINES["init"][:1], ready, *LINES["init"][2:]],
        ["run", "fedavg", *SMALL, "--out", root / "run"],
        ["export", "fedavg", *SMALL[:2], "--out", root / "job"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in line])
        assert stop.value.code == 0
    named = {"RUN": "run", "JOB": "job", "CSV": "csv", "SITE": "ready/fairflare/sites/a.yaml", "TABLE": "table.csv"}
    return {key: root / path for key, path in named.items()}


@each("name", sorted(every_command()))
def test_every_command_has_json_and_quiet_once(name):
    flags = [flag for one in every_command()[name].params for flag in one.opts]
    assert flags.count("--json") == flags.count("--quiet") == 1


@each("name", LINES)
def test_json_is_all_that_is_printed(name, places, tmp_path, capfd):
    named = {**{key: str(path) for key, path in places.items()}, "OUT": str(tmp_path / "out")}
    line = [re.sub("|".join(named), lambda found: named[found[0]], word) for word in LINES[name]]
    with pytest.raises(SystemExit) as stop:
        main([*line, "--json", "--quiet"])
    said = capfd.readouterr()
    assert stop.value.code == 0 and said.err == "", said.err
    json.loads(said.out)


def test_a_command_without_json_of_its_own_gives_its_lines(capsys):
    command = cli.click.Command("hello", callback=lambda: print("one\ntwo"))
    from fairflare.cli.options import for_every_command

    for_every_command(for_every_command(command)).main(["--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"output": ["one", "two"]}


LISTED = re.compile(r"\b\w+(,\w+)+\b")
FIXED = {"window"}
"""Options whose commas stand between parts of one value."""


@each("name", sorted(every_command()))
def test_a_list_is_one_text_with_commas_or_the_option_given_again(name):
    command = every_command()[name]
    for one in command.params:
        if not isinstance(one, cli.click.Option) or one.name in FIXED or one.is_flag:
            continue
        shows_list = LISTED.fullmatch((one.metavar or "").rpartition("|")[2])
        assert one.multiple or not shows_list, f"{name} --{one.name}"
        if one.multiple and shows_list:
            with cli.click.Context(command) as context:
                both = [one.process_value(context, given) for given in (("1", "2"), ("1,2",))]
            assert both[0] == both[1] and "2" in both[0], f"{name} --{one.name}"


@each(
    "words, offered", [("fairflare ", "data"), ("fairflare data pre", "preflight"), ("fairflare run --qu", "--quiet")]
)
def test_a_shell_completes_groups_verbs_and_options(words, offered, monkeypatch, capsys):
    monkeypatch.setenv("_FAIRFLARE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        cli.cli.main(prog_name="fairflare", args=[])
    assert f"plain,{offered}" in capsys.readouterr().out.splitlines()
