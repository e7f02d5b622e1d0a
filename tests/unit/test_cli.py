# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: what it prints, what it leaves behind, how it refuses."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
import torch

from cases import each
from command_line import call
from fairflare.cli import main as cli
from fairflare.cli.main import main
from fairflare.engine.files import read_tensors, save_tensors

RUN = ["run", "fedavg", "--task", "support2", "--rounds", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as stop:
        main([*RUN, "--out", str(folder)])
    assert stop.value.code == 0
    return folder


def test_list_tells_everything(capsys):
    code, out, _ = call(capsys, "list", "--json")
    rows = {r["id"]: r for r in json.loads(out)}
    assert code == 0 and {"fedavg", "fedism", "fedism-plus"} <= set(rows)
    assert rows["fedavg"]["cost"] == 1.0 and rows["fedism-plus"]["cost"] == pytest.approx(10 / 3, abs=0.01)
    assert rows["fedism-plus"]["parameters"]["rho_max"] == 0.1 and rows["fedism-plus"]["trainer"] == "gsam"
    assert "FedISM+" in call(capsys, "list")[1]


@each("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_locale_without_a_minus_sign_stops_no_report(encoding, finished):
    words = [sys.executable, "-m", "fairflare", "report", str(finished)]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=False)
    assert done.returncode == 0 and b"internal error" not in done.stderr and b"\\u2212" in done.stdout


def test_commands_are_shown_by_group_and_alone_in_ten_lines(capsys):
    assert {*cli.VERBS.values(), *cli.DAILY.split()} == set(cli.COMMANDS)
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    lines = capsys.readouterr().out.splitlines()
    assert stop.value.code == 0 and len(lines) <= 10 and max(map(len, lines)) <= 82
    assert all(any(line.split()[:1] == [group] and verb in line for line in lines) for group, verb in cli.VERBS)


def test_help_shows_the_whole_first_sentence_of_every_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(capsys, "--help")
    said = " ".join(out.split())
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    shown = {" ".join(words): command for words, command in cli.VERBS.items()}
    for name, command in {**shown, **{daily: daily for daily in cli.DAILY.split()}}.items():
        one = cli.cli.get_command(None, command)
        assert one.name == command and f"{name} {cli.first_sentence(one)}" in said and cli.first_sentence(one), name


@each("words, command", cli.VERBS.items())
def test_a_group_s_verb_is_the_command_of_the_old_name(words, command, capsys):
    outs = [call(capsys, *line, "--help") for line in (words, (command,))]
    assert [code for code, _, _ in outs] == [0, 0]
    (said, _, texts), (_, _, same) = (out.partition("\n\n") for _, out, _ in outs)
    assert texts == same and f" {' '.join(words)} [OPTIONS]" in said


@each("command", ["run", "export", "compare"])
def test_help_shows_options_by_purpose_and_each_once(command, capsys):
    _, out, _ = call(capsys, command, "--help")
    titles = [line for line in out.splitlines() if line and line[0] != " " and line.endswith(":")]
    assert titles[:2] == ["Data:", "Method and training:"] and titles[-1] == "Results:" and len(titles) in (3, 4)
    shown = Counter(re.findall(r"^  (?:-h, )?(--[\w-]+)", out.partition("\nData:")[2], re.MULTILINE))
    options = [
        one.opts[-1 if one.name == "help" else 0]
        for one in cli.cli.get_command(None, command).params[1:]
        if not one.hidden
    ]
    assert shown == Counter([*options, "--help"])


def test_an_option_that_a_setting_replaces_says_so_on_a_terminal(capsys, monkeypatch, tmp_path):
    """It works in this version, and no help shows it."""
    line = ("export", "fedavg", "--task", "support2", "--server-optimizer", "adam", "--out")
    monkeypatch.setattr("fairflare.cli.choices.at_terminal", lambda: True)
    code, _, err = call(capsys, *line, tmp_path / "old")
    assert code == 0 and "fairflare: --server-optimizer: is now --set server_optimizer=adam\n" in err
    _, said, _ = call(capsys, "run", "--help")
    assert not re.search("--(trainer|rule|selector|server-optimizer|after|tune)", said)


def test_a_group_says_its_verbs_which_have_short_names_too(capsys, monkeypatch):
    code, out, _ = call(capsys, "job")
    assert code == 0 and [line.split()[:3] for line in out.splitlines()] == [
        ["fairflare", "job", "export"],
        ["fairflare", "job", "inspect"],
    ]
    code, _, err = call(capsys, "data", "inti", "folder")
    assert code == 2 and err == "fairflare: fairflare data: unknown verb 'inti'; did you mean init?\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert call(capsys, "list", "--json") == call(capsys, "study", "list", "--json")


def test_tasks_on_own_data_have_no_number_of_sites(capsys):
    code, out, _ = call(capsys, "tasks")
    assert code == 0 and out.count(" your sites, ") >= 4 and ":countries  17 sites, 30 rounds" in out
    assert not re.search(r"\b0 sites", out)


def test_tasks_say_what_is_simulated(capsys):
    rows = {r["name"]: r for r in json.loads(call(capsys, "tasks", "--json")[1])}
    assert {"ich-phantom", "support2"} <= set(rows)
    assert "bleed" in rows["ich-phantom"]["simulated"] or "lesion" in rows["ich-phantom"]["simulated"]
    presets = {p["preset"]: p for p in rows["ich-phantom"]["presets"]}
    assert len(presets["small"]["sites"]) == 8 and len(presets["paper"]["sites"]) == 20
    assert "simulated" in call(capsys, "tasks")[1]


def test_a_run_folder_holds_what_was_promised(finished):
    names = {p.name for p in finished.iterdir()}
    assert {
        "report.html",
        "report.json",
        "audit.jsonl",
        "model.safetensors",
        "config.json",
        "tb_events",
        "log.txt",
    } <= names
    state = read_tensors(finished / "model.safetensors")
    assert all(isinstance(v, torch.Tensor) for v in state.values())
    assert json.loads((finished / "report.json").read_text())["status"] == "completed"
    assert any((finished / "tb_events").iterdir()) and "completed" in (finished / "log.txt").read_text()


def test_the_config_repeats_the_run(finished, tmp_path):
    from fairflare.engine.hashes import model_hash
    from fairflare.engine.setup.config import RunConfig
    from fairflare.engine.setup.local import run_local

    config = RunConfig.from_json(json.loads((finished / "config.json").read_text()))
    again = run_local(config, tmp_path)
    assert model_hash(again) == model_hash(read_tensors(finished / "model.safetensors"))


def test_tensorboard_holds_the_weights(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished / "tb_events")).Reload()
    weights = [events.Scalars(f"weight/site-{k}")[0].value for k in range(1, 5)]
    assert sum(weights) == pytest.approx(1, abs=1e-6)
    assert "fairness/worst_auc" in events.Tags()["scalars"]


def test_report_rewrites_and_verify_checks(capsys, finished):
    before = (finished / "report.json").read_text()
    (finished / "report.html").unlink()
    assert call(capsys, "report", finished)[0] == 0
    assert (finished / "report.html").is_file() and (finished / "report.json").read_text() == before
    code, out, _ = call(capsys, "verify", finished, "--json")
    assert code == 0 and json.loads(out)["verified"] is True


def test_verify_finds_an_edit_and_a_swapped_model(capsys, finished, tmp_path):
    import shutil

    for name in ("edited", "swapped"):
        shutil.copytree(finished, tmp_path / name)
    log = tmp_path / "edited" / "audit.jsonl"
    log.write_text(log.read_text().replace('"n_examples": ', '"n_examples": 1', 1))
    code, _, err = call(capsys, "verify", tmp_path / "edited")
    assert code == 2 and "chain is broken at line 2" in err
    model = read_tensors(tmp_path / "swapped" / "model.safetensors")
    next(iter(model.values())).add_(1e-6)
    save_tensors(tmp_path / "swapped" / "model.safetensors", model)
    code, _, err = call(capsys, "verify", tmp_path / "swapped")
    assert code == 2 and "model.safetensors: is not the model" in err


def test_compare_reuses_what_is_finished(capsys, tmp_path):
    command = ["compare", "fedavg", "fedavg:weighting=uniform", "--task", "support2", "--rounds", 1]
    command += ["--seeds", "0,1", "--out", tmp_path / "c"]
    code, out, err = call(capsys, *command)
    assert code == 0 and "comparison:" in out and out.count("fairflare report") == 1, err
    assert (tmp_path / "c" / "compare.html").is_file()
    assert len(json.loads((tmp_path / "c" / "compare.json").read_text())["methods"]) == 2
    code, out, err = call(capsys, *command)
    assert code == 0 and err.count("reused") == 4


def test_export_writes_a_flare_job(capsys, tmp_path):
    code, out, err = call(capsys, "export", "fedism-plus", "--task", "support2", "--out", tmp_path / "job")
    assert code == 0 and "nvflare job submit" in out, err
    job = tmp_path / "job"
    server = json.loads((job / "app_server" / "config" / "config_fed_server.json").read_text())
    client = json.loads((job / "app_sites" / "config" / "config_fed_client.json").read_text())
    assert json.loads((job / "meta.json").read_text())["name"] == "fedism_plus_support2"
    assert server["workflows"][0]["path"] == "fairflare.flare.controller.FairController"
    tasks = [
        "preflight",
        "train",
        "compare",
        "sum",
        "weigh",
        "reveal",
        "evaluate",
        "calibrate",
        "adjust",
        "solo",
        "benefit",
        "validate",
    ]
    assert client["executors"][0]["tasks"] == tasks
    assert "task_request_interval" not in json.dumps(server), "production keeps FLARE's intervals"
    package = job / "app_server" / "custom" / "fairflare"
    assert (package / "__init__.py").is_file() and (package / "datasets" / "data").is_dir()
    assert not list(job.rglob("__pycache__")) and not [p for p in job.rglob("*") if p.is_symlink()]
    assert os.fspath(tmp_path) not in "".join(p.read_text() for p in job.rglob("*.json"))


MISTAKES = [
    (["run", "nosuch", "--task", "support2"], "unknown method 'nosuch'"),
    (["run", "fedavg", "--task", "nosuch"], "nosuch"),
    (["run", "fedavg"], "--task"),
    (
        ["run", "fedavg", "--task", "support2", "--rounds", "0"],
        "rounds: expected a whole number from 1 to 1000000, got 0",
    ),
    (["run", "fedavg", "--task", "support2", "--rounds", "many"], "many"),
    (["run", "fedavg", "--task", "support2:dirichlet", "--sites", "1"], "n_sites"),
    (["run", "fedavg", "--task", "heart", "--sites", "2"], "sites: expected no number, for the task says which"),
    (["run", "fedavg", "--task", "support2", "--set", "qq=1"], "unknown key 'qq'"),
    (["run", "fedavg", "--task", "support2", "--set", "lr"], "expected KEY=VALUE, got 'lr'"),
    (["run", "fedavg", "--task", "support2", "--set", "lr=1", "--set", "lr=2"], "lr is given twice"),
    (["run", "fedavg", "--task", "support2", "--set", "lr=fast"], "lr: expected a number, got 'fast'"),
    (["run", "fedavg", "--task", "support2", "--env", "moon"], "moon"),
    (["run", "fedavg", "--task", "support2", "--seed", "-1"], "seed: expected a whole number from 0 to"),
    (["compare", "fedavg", "--task", "support2", "--seeds", "0,0"], "--seeds"),
    (["compare", "fedavg", "--task", "support2", "--seeds", "one"], "--seeds"),
    (["export", "fedavg", "--task", "support2"], "--out"),
    (["nosuch"], "nosuch"),
    (["run", "fedism", "--task", "support2", "--set", "probe_batch=0"], "probe_batch must be at least 1, got 0"),
    (["run", "fedism", "--task", "support2", "--set", "rho_max=-1", "--set", "trainer=sgd"], "rho_max must be finite"),
    (
        ["run", "fedism", "--task", "support2", "--set", "rho_max=nan", "--set", "trainer=sgd"],
        "rho_max: expected a number, got 'nan'",
    ),
]


@each("arguments, text", MISTAKES, ids=lambda v: " ".join(v)[:60] if isinstance(v, list) else None)
def test_mistakes_are_one_line_and_leave_nothing(capsys, tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    if arguments[0] in ("run", "compare") and "--out" not in arguments:
        arguments = [*arguments, "--out", "made"]
    code, out, err = call(capsys, *arguments)
    assert code == 2 and text in err and err.count("\n") == 1, err
    assert not out and not list(tmp_path.iterdir())


def test_an_existing_folder_is_refused_and_force_replaces_runs_only(capsys, finished, tmp_path):
    code, _, err = call(capsys, *RUN, "--out", finished)
    assert code == 2 and "exists" in err and "--force" in err
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    code, _, err = call(capsys, *RUN, "--out", precious, "--force")
    assert code == 2 and (precious / "thesis.txt").exists()
    assert call(capsys, *RUN, "--out", finished, "--force")[0] == 0


@pytest.mark.parametrize("out", ["file/run", "file"])
def test_an_unwritable_out_is_one_line(capsys, tmp_path, out):
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, *RUN, "--out", tmp_path / out)
    assert code == 2 and "--out" in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["report", "verify"])
def test_no_run_there_is_one_line(capsys, tmp_path, command):
    code, _, err = call(capsys, command, tmp_path)
    assert code == 2 and "found no" in err and err.count("\n") == 1


def test_a_site_that_fails_midway_leaves_the_last_model(capsys, tmp_path, monkeypatch):
    """All sites send NaN in round 2: exit code 1, one line, and a report that says so."""
    from fairflare.engine.exchanges.train import TrainAtSite

    train = TrainAtSite.train

    def poisoned(self, site, instruction):
        answer = train(self, site, instruction)
        if instruction.round.number == 2:
            next(iter(answer.update.values())).fill_(float("nan"))
        return answer

    monkeypatch.setattr(TrainAtSite, "train", poisoned)
    code, _, err = call(capsys, *RUN[:-1], "3", "--out", tmp_path / "run")
    assert code == 1 and "round 2: 0 accepted sites" in err.splitlines()[-1]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["status"] == "failed" and (tmp_path / "run" / "model.safetensors").is_file()


def test_a_second_interrupt_while_python_ends_is_no_traceback():
    code = """if True:
        import atexit, os, signal, sys
        from fairflare.cli import main
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt = lambda *a, **more: os.kill(os.getpid(), signal.SIGINT)
        atexit.register(interrupt)
        sys.argv, main.cli.main = ["fairflare", "list"], interrupt
        main.main()"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "fairflare: interrupted\n")


def test_given_weights_start_the_model_and_their_path_stays_here(capsys, tmp_path):
    """A ResNet-18 state dict with another head: everything but the head is taken over; nobody sees the path."""
    from fairflare.engine.setup.config import make_config
    from fairflare.engine.setup.parts import build_parts
    from fairflare.networks.builtin import build

    torch.manual_seed(1)
    weights = build("resnet18", 3, 1000).state_dict()
    path = tmp_path / "resnet18.pth"
    torch.save(weights, path)
    config = make_config("fedavg", "ich-phantom:small", values={"model": "resnet18", "init_from": str(path)})
    model = build_parts(config).model
    assert torch.equal(model["conv1.weight"], weights["conv1.weight"]) and model["fc.weight"].shape == (5, 512)
    arguments = ["export", "fedavg", "--task", "ich-phantom:small", "--set", "model=resnet18"]
    code, _, err = call(capsys, *arguments, "--init-from", path, "--out", tmp_path / "job")
    assert code == 0, err
    configs = tmp_path / "job" / "app_server" / "config"
    assert str(path) not in (configs / "config_fed_server.json").read_text()
    assert torch.equal(read_tensors(configs / "initial.safetensors")["conv1.weight"], weights["conv1.weight"])
    client = tmp_path / "job" / "app_sites" / "config"
    assert [str(path) in one.read_text() for one in client.iterdir()] == [False]
    arguments[0] = "run"
    for env in ("local", "sim"):
        where = ["--init-from", tmp_path / "no.pth", "--out", tmp_path / "run", "--env", env]
        code, _, err = call(capsys, *arguments, *where)
        assert code == 2 and "no.pth" in err and err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_report_json_has_the_promised_keys(finished):
    report = json.loads((finished / "report.json").read_text())
    rows, fairness = report["sites"], report["fairness"]
    assert (report["method"], report["task"], report["seed"], report["rounds"]) == ("fedavg", "support2:default", 0, 1)
    assert report["env"] == "local" and report["clean"] is None and report["corrupted"] is None
    assert list(rows) == [f"site-{k}" for k in range(1, 5)]
    for row in rows.values():
        assert row["n_train"] > row["n_test"] > 0 and len(row["weight"]) == 1 and "auc" in row["metrics"]
    values = {site: row["metrics"]["auc"] for site, row in rows.items()}
    assert fairness["metric"] == "auc" and fairness["worst"] == min(values.values())
    assert values[fairness["worst_site"]] == fairness["worst"]
    assert fairness["gap"] == pytest.approx(max(values.values()) - min(values.values()))
    assert fairness["std_sample"] == pytest.approx(fairness["std"] * (4 / 3) ** 0.5)


EDITS = {
    "a number": ("audit.jsonl", lambda text: text.replace('"n_examples": ', '"n_examples": 1', 1)),
    "the last line dropped": ("audit.jsonl", lambda text: "".join(text.splitlines(True)[:-1])),
    "a space": ("audit.jsonl", lambda text: text.replace(": ", ":  ", 1)),
    "a second key": ("audit.jsonl", lambda text: text.replace('{"seq": 1,', '{"weights": {}, "seq": 1,', 1)),
    "the seed": ("config.json", lambda text: text.replace('"seed": 0', '"seed": 1')),
    "the report": ("report.json", lambda text: text.replace('"chain_head": "', '"chain_head": "0', 1)),
}


@each("name, change", EDITS.values(), ids=EDITS)
def test_verify_finds_any_edit(capsys, finished, tmp_path, name, change):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    assert call(capsys, "verify", copy)[0] == 0
    before = (copy / name).read_text()
    (copy / name).write_text(change(before))
    assert (copy / name).read_text() != before
    code, _, err = call(capsys, "verify", copy)
    assert code == 2 and err.count("\n") == 1, err


def test_force_keeps_the_old_run_when_the_new_one_cannot_start(capsys, finished):
    before = (finished / "model.safetensors").read_bytes()
    code, _, err = call(capsys, "run", "fedavg", "--task", "ich-phantom:small", "--set", "images=200", "--set",
                        "alpha=0.01", "--out", finished, "--force")  # fmt: skip
    assert code == 2, err
    assert (finished / "model.safetensors").read_bytes() == before and not list(finished.parent.glob(".*before*"))


def test_force_leaves_folders_of_others_alone(capsys, tmp_path):
    other = tmp_path / "bert"
    other.mkdir()
    for name in ("config.json", "weights.bin"):
        (other / name).write_text("{}")
    assert call(capsys, *RUN, "--out", other, "--force")[0] == 2 and (other / "weights.bin").exists()
    (other / "meta.json").write_text("{}")
    command = ["export", "fedavg", "--task", "support2", "--out", other, "--force"]
    assert call(capsys, *command)[0] == 2 and (other / "weights.bin").exists()


def test_compare_does_not_replace_another_finished_run(capsys, tmp_path):
    command = ["compare", "fedavg", "--task", "support2", "--out", tmp_path / "c"]
    assert call(capsys, *command, "--rounds", 1)[0] == 0
    code, _, err = call(capsys, *command, "--rounds", 2)
    assert code == 2 and "exists" in err.splitlines()[-1]
