# SPDX-License-Identifier: Apache-2.0
"""Finding tasks by name, and what a mistyped one is told."""

import dataclasses
import json
import subprocess
import sys

import pytest

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.schema import Instruction
from fairflare.core.types import Round, Training
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.tasks import every, load
from fairflare.tasks.base import Task
from fairflare.tasks.kinds.own import OwnData

ALL = [(name, preset) for name, cls in every().items() for preset in cls.presets]


def test_the_tasks_are_found():
    assert {"ich-phantom", "support2"} <= set(every()) and list(every()) == sorted(every())


@each("name, preset", ALL)
def test_a_task_describes_itself(name, preset):
    task = load(name, preset)
    cls = type(task)
    assert isinstance(task, Task) and cls.name == name
    assert all(isinstance(text, str) and text for text in (cls.title, cls.real, cls.simulated))
    assert task.headline in task.metrics and (task.classes or task.kind.has_times)
    assert isinstance(cls.presets[preset].training, Training) and cls.presets[preset].summary
    if hasattr(task, "n_sites"):
        assert list(task.sites()) == [f"site-{k}" for k in range(1, task.n_sites + 1)]
    else:  # a user's own data have the sites that the user names, published ones often those of their hospitals
        assert len(task.sites()) >= 4 or isinstance(task, OwnData)


@each("name, preset", ALL)
def test_options_survive_json(name, preset):
    task = load(name, preset)
    assert load(name, preset, **json.loads(json.dumps(dataclasses.asdict(task)))) == task


def test_overrides_from_the_command_line():
    task = load("ich-phantom", "small", sites="6", alpha="0.5", augment="true", model="small-cnn-bn")
    assert (task.n_sites, task.alpha, task.augment, task.model) == (6, 0.5, True, "small-cnn-bn")
    assert load("ich-phantom", None) == load("ich-phantom", "small")


def test_the_papers_settings():
    task, preset = load("ich-phantom", "paper"), every()["ich-phantom"].presets["paper"]
    assert (task.n_sites, task.corrupted, task.severity, task.alpha, task.data_seed) == (20, 4, 3, 1.0, 2024)
    assert (task.size, task.model, task.augment) == (224, "resnet18", True)
    assert preset.training == Training(
        rounds=300, epochs=1, batch_size=32, optimizer="adam", lr=3e-4, weight_decay=5e-4, logit_tau=1.0
    )


@each(
    "call, message",
    [
        (lambda: load("ich"), "unknown task: 'ich'; known: .*ich-phantom.*support2"),
        (lambda: load("support2", "huge"), "unknown preset: 'huge'; known: default, dirichlet"),
        (lambda: load("support2", "default", size=3), "unknown option of task 'support2': 'size'; known: n_sites, "),
        (lambda: load("ich-phantom", "small", n_sites="many"), "n_sites: expected a whole number, got 'many'"),
        (lambda: load("ich-phantom", "small", sites=1), "n_sites: expected 2..100, got 1"),
        (lambda: load("ich-phantom", "small", augment="maybe"), "augment: expected true or false, got 'maybe'"),
        (lambda: load("ich-phantom", "small", model="vgg"), "model: expected one of small-cnn, .*got 'vgg'"),
    ],
)
def test_mistakes_are_answered_in_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_importing_the_tasks_is_cheap():
    heavy = "('scipy', 'monai', 'sklearn', 'nibabel', 'nilearn', 'pandas', 'matplotlib', 'nvflare')"
    code = f"import sys, fairflare.engine.setup.tasks; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_metric_that_nobody_has_declared_is_named_before_a_run(monkeypatch):
    monkeypatch.setattr(every()["support2"], "metrics", ("accuracy", "acuracy"))
    with pytest.raises(UserError, match="task support2: unknown metric 'acuracy'; did you mean accuracy"):
        load("support2")


def test_a_metric_that_a_tasks_own_code_adds_does_not_leave_and_the_list_is_shown(monkeypatch):
    config = make_config("fedavg", "support2", rounds=2)
    parts = build_parts(config)
    site, honest = build_site(config, parts, "site-1"), type(parts.task).evaluate
    monkeypatch.setattr(type(parts.task), "evaluate", lambda *given: honest(*given) | {"mine": 0.5})
    error = site.handle(Instruction("train", Round(1, 2), parts.model)).error
    assert error.startswith("egress: metric: a name that is not on the list: accuracy, auc, ") and "mine" not in error
