# SPDX-License-Identifier: Apache-2.0
"""A run in one YAML file: the same run as the command line's, safely read, with every mistake in one line."""

import json

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.cli.run import read_run_file, run, with_file
from fairflare.core.errors import UserError
from fairflare.core.user_code import VARIABLE
from fairflare.engine.audit import verify
from fairflare.studies.labels import as_text, flat_settings

RUN = """
method: fedism-plus
task: heart
rounds: 1
seed: 3
set:
  rule: {q: 2}
  probe: {sharpness: {rho_max: 0.05}}
  train.lr: 1e-3
accept: [few_examples]
"""
SAME = "fedism-plus --task heart --rounds 1 --seed 3 --set rule.q=2 --set probe.sharpness.rho_max=0.05"
SAME = [*SAME.split(), "--set", "train.lr=1e-3", "--accept", "few_examples"]


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    streams = capsys.readouterr()
    return stop.value.code, streams.out, streams.err


def written(folder, text=RUN, name="run.yaml"):
    (folder / name).write_text(text)
    return folder / name


def config_of(job):
    flow = json.loads((job / "app_server" / "config" / "config_fed_server.json").read_text())["workflows"][0]
    return flow["args"]["config"]


def test_a_file_stands_for_its_command_line(tmp_path, capsys):
    """An export holds the whole configuration, and trains nothing."""
    for name, arguments in (("file", [written(tmp_path)]), ("line", SAME)):
        code, _, err = call(capsys, "export", *arguments, "--out", tmp_path / name)
        assert code == 0, err
    assert config_of(tmp_path / "file") == config_of(tmp_path / "line")


def test_what_is_given_beside_the_file_wins(tmp_path, capsys):
    file = written(tmp_path)
    extra = ("--rounds", "2", "--set", "train.lr=0.5", "--set", "rule.beta=0.25")
    code, _, err = call(capsys, "export", *extra[:2], file, *extra[2:], "--out", tmp_path / "job")
    assert code == 0, err
    config = config_of(tmp_path / "job")
    assert config["training"]["rounds"] == 2 and config["training"]["lr"] == 0.5 and config["seed"] == 3
    assert config["settings"]["rule"]["beta"] == 0.25 and config["settings"]["rule"]["q"] == 2


@pytest.mark.slow
def test_file_and_command_line_make_the_same_bits(tmp_path, capsys):
    hashes = []
    for name, arguments in (("file", [written(tmp_path)]), ("line", SAME)):
        code, _, err = call(capsys, "run", *arguments, "--out", tmp_path / name)
        assert code == 0, err
        hashes.append(verify(tmp_path / name / "audit.jsonl")[-1]["model_sha256"])
    assert hashes[0] == hashes[1]


def test_relative_paths_start_at_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    home = tmp_path / "home"
    home.mkdir()
    (home / "mine.py").write_text("")
    file = written(home, "method: fedavg\ntask: heart\ncode: mine.py\nout: ../run\nenv: sim\n")
    paths = [f"--code={home / 'mine.py'}", f"--out={home / '../run'}"]
    assert with_file(run, file, [str(file)], ()) == ["--task=heart", *paths, "--env=sim", "fedavg"]
    code, _, err = call(capsys, "export", file, "--out", tmp_path / "job")
    assert code == 0, err
    assert list(config_of(tmp_path / "job")["code"]) == ["mine"] and not (tmp_path / "run").exists()


@each(
    "text, message",
    [
        ("method: fedavg\ntask: heart\nruonds: 3\n", "run.yaml: unknown key 'ruonds'; did you mean rounds?"),
        ("method: fedavg\nxyzzy: 3\n", "run.yaml: unknown key 'xyzzy'; known: method, "),
        ("task: heart\n", "run.yaml: expected the key 'method', got ['task']"),
        ("method: 3\ntask: heart\n", "run.yaml: method: expected a method's id, got 3"),
        ("method: other.yaml\n", "run.yaml: method: expected a method's id, got 'other.yaml'"),
        ("method: fedavg\nmethod: fedism\n", "run.yaml: line 1: 'method' is given twice"),
        ("method: fedavg\ntask: heart\nforce: true\n", "run.yaml: unknown key 'force'"),
        ("method: fedavg\ntask: heart\nset: 3\n", "run.yaml: set: expected names and values, got 3"),
        ("method: fedavg\ntask: heart\nrounds: three\n", "'--rounds': 'three' is not a valid integer"),
        ("method: fedavg\ntask: heart\nrounds: {a: 1}\n", "run.yaml: rounds: expected a value or a list of values"),
        ("method: fedavg\ntask: heart\nset: {rule.qq: 3}\n", "unknown key 'rule.qq'"),
        ("- method\n", "run.yaml: expected keys and values"),
        ("method: [\n", "run.yaml: line 2: "),
        ("method: !!python/object/apply:os.system [touch owned]\n", "could not determine a constructor"),
        ("method: fedavg\nrounds: 2026-01-01\n", "run.yaml: expected JSON values, got 'date'"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: " + "[" * 30 + "]" * 30, "run.yaml: expected at most 8 levels"),
        ("a: &a [*a]\n", "run.yaml: expected at most 8 levels"),
        ("method: " + "x" * 70_000, "run.yaml: expected at most 65536 bytes"),
    ],
)
def test_a_mistake_is_one_line(text, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "export", written(tmp_path, text), "--out", tmp_path / "job")
    assert code == 2 and message in err and err.strip().count("\n") == 0, err
    assert not (tmp_path / "job").exists() and not (tmp_path / "owned").exists()


def test_a_flag_is_true_or_false(tmp_path):
    file = written(tmp_path, "method: fedavg\ntask: heart\nsolo: 3\n")
    with pytest.raises(UserError, match="run.yaml: solo: expected true or false, got 3"):
        with_file(run, file, [str(file)], ())
    file.write_text("method: fedavg\ntask: heart\nsolo: true\npooled: false\nrounds: null\n")
    assert with_file(run, file, [str(file)], ()) == ["--task=heart", "--solo", "fedavg"]


def test_no_such_file_is_one_line(tmp_path, capsys):
    code, _, err = call(capsys, "run", tmp_path / "gone.yaml")
    assert code == 2 and "gone.yaml: cannot be read" in err and err.strip().count("\n") == 0


def test_values_are_written_as_on_the_command_line():
    nested = {"model": {"class_path": "net.Net"}, "task": {"features": ["age", "score"]}, "probe": {"cka": {"a": None}}}
    assert dict(flat_settings(nested, "x")) == {
        "model": '{"class_path": "net.Net"}',
        "task.features": "age,score",
        "probe.cka.a": "none",
    }
    assert [as_text(v) for v in (True, 0.1, 1e-7, [1, True], [[1]])] == ["true", "0.1", "1e-07", "1,true", "[[1]]"]


def test_a_file_whose_aliases_make_it_long_is_refused_at_once(tmp_path):
    """Thirty lists of two that are each the one before: 2^30 values in 1 KB."""
    lists = ["- &a0 [1, 1]", *(f"- &a{k} [*a{k - 1}, *a{k - 1}]" for k in range(1, 30))]
    with pytest.raises(UserError, match="run.yaml: expected keys and values, got 'a list'"):
        read_run_file(written(tmp_path, "\n".join(lists) + "\n"))
    inside = "method: fedavg\nsettings:\n" + "\n".join("  " + line for line in lists) + "\n"
    with pytest.raises(UserError, match="run.yaml: expected at most"):
        read_run_file(written(tmp_path, inside))
