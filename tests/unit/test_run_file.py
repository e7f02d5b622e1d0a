# SPDX-License-Identifier: Apache-2.0
"""A run in one YAML file: the same run as the command line's, safely read, with every mistake in one line."""

import dataclasses
import json

import pytest

from cases import each
from command_line import call
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.user_code import VARIABLE
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.studies.labels import as_text, flat_settings
from fairflare.studies.run_file import RUN_FILE, RunFile, read_run_file, write_run_file

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
    short = ("--set", "lr=0.25", "--set", "trainer.rho_max=0.04")
    both = written(tmp_path, RUN.replace("probe: {sharpness: {rho_max: 0.05}}", "rho_max: 0.03"), "both.yaml")
    code, _, err = call(capsys, "export", both, *short, "--out", tmp_path / "short")
    assert code == 0, err
    config = config_of(tmp_path / "short")
    assert config["training"]["lr"] == 0.25 and config["settings"]["trainer"]["rho_max"] == 0.04
    assert config["settings"]["probe"]["sharpness"]["rho_max"] == 0.03, "the file's, under a name for both"
    code, _, err = call(capsys, "export", file, *short, "--set", "train.lr=1", "--out", tmp_path / "twice")
    assert code == 2 and "train.lr: is given twice, as lr and as train.lr" in " ".join(err.split())


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
    found = read_run_file(file)
    assert (found.code, found.out, found.env) == ([home / "mine.py"], home / "../run", "sim")
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
        ("method: fedavg\ntask: heart\nrounds: three\n", "run.yaml: rounds: expected a whole number, got 'three'"),
        ("method: fedavg\ntask: heart\nrounds: {a: 1}\n", "run.yaml: rounds: expected a whole number, got {'a': 1}"),
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
    with pytest.raises(UserError, match="run.yaml: solo: expected true or false, got 3"):
        read_run_file(written(tmp_path, "method: fedavg\ntask: heart\nsolo: 3\n"))
    found = read_run_file(written(tmp_path, "method: fedavg\ntask: heart\nsolo: false\nrounds: null\n"))
    assert (found.solo, found.rounds) == (False, None)


HARD = {
    "fedism-plus": {"rho_max": 0.3, "variant": "reference", "clip_updates": 0.0},
    "fedheal": {"trainer": "moon", "selector": "share", "share": 0.5, "server_optimizer": "yogi"},
    "fedavg": {
        "after": "recalibrate",
        "group_by": "sex",
        "min_count": None,
        "robust": "mixed",
        "accept": "few_examples",
    },
    "fedism": {"secure_sum": "masks", "best_by": "none", "threshold": 0.3, "clients": "a,b,c,d", "threads": 2},
}


def again(config, folder):
    write_run_file(config, folder, "local")
    return read_run_file(folder / RUN_FILE).config()


@each("method", registry.methods())
def test_every_run_s_own_file_is_its_configuration(method, tmp_path):
    """Whatever the method's defaults become: all choices are spelt out, and none is made anew."""
    values = {key: value for key, value in HARD.get(method, {"optimizer": "sgd"}).items()}
    config = make_config(method, "support2", seed=3, rounds=2, values=values)
    assert again(config, tmp_path) == config
    assert again(config, tmp_path).sha256() == config.sha256()


def test_what_a_level_or_a_number_of_sites_implies_is_not_implied_again(tmp_path):
    """``cap_weights`` beside ``robust``, ``min_sites`` of seven sites, options of data that are drawn."""
    values = {"robust": "bounded", "cap_weights": 1.0, "alpha": 0.1 + 0.2, "min_sites": 5}
    config = make_config("fedavg", "support2:dirichlet", sites=7, values=values)
    assert again(config, tmp_path) == config and config.options["alpha"] == 0.1 + 0.2


def test_a_part_of_a_join_writes_no_file(tmp_path):
    write_run_file(dataclasses.replace(make_config("fedavg", "heart"), fold="0/5/0"), tmp_path, "local")
    assert not (tmp_path / RUN_FILE).exists()


@pytest.mark.slow
def test_a_run_s_own_file_repeats_its_bits(tmp_path, capsys):
    """The same configuration and final model, from the file alone."""
    for name, arguments in (("first", [*SAME, "--robust"]), ("again", [tmp_path / "first" / RUN_FILE])):
        code, _, err = call(capsys, "run", *arguments, "--out", tmp_path / name)
        assert code == 0, err
    configs = [RunConfig.from_json(json.loads((tmp_path / name / "config.json").read_text())) for name in NAMES]
    assert configs[0] == configs[1] and configs[0].robust == "mixed"
    assert (tmp_path / "first" / RUN_FILE).read_bytes() == (tmp_path / "again" / RUN_FILE).read_bytes()
    logs = [verify(tmp_path / name / "audit.jsonl") for name in NAMES]
    assert logs[0][-1]["model_sha256"] == logs[1][-1]["model_sha256"]


NAMES = ("first", "again")


def test_the_keys_of_a_file_have_a_schema():
    """For editors that check YAML; the methods' own settings are checked when the file is read."""
    schema = RunFile.model_json_schema()
    assert schema["additionalProperties"] is False and {"method", "set", "rounds"} <= set(schema["properties"])
    assert schema["properties"]["env"]["enum"] == ["local", "sim", "poc", "prod"]


def test_a_key_may_be_any_name_of_its_option(tmp_path):
    found = read_run_file(written(tmp_path, "method: fedavg\ndata: tables\ninit_from: runs/first\n"))
    assert (found.datalists, found.init_from) == (tmp_path / "tables", tmp_path / "runs/first")
    with pytest.raises(UserError, match="unknown key 'data'|data: "):
        read_run_file(written(tmp_path, "method: fedavg\ndatalists: a\ndata: b\n"))


def test_no_such_file_is_one_line(tmp_path, capsys):
    code, _, err = call(capsys, "run", tmp_path / "gone.yaml")
    assert code == 2 and "gone.yaml: cannot be read" in err and err.strip().count("\n") == 0


def test_values_are_written_as_on_the_command_line():
    nested = {"model": {"class_path": "net.Net"}, "task": {"features": ["age", "score"]}, "probe": {"cka": {"a": None}}}
    assert dict(flat_settings(nested)) == {
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
