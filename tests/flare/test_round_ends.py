# SPDX-License-Identifier: Apache-2.0
"""Rounds that end early over FLARE, without its processes: the controller's tasks, and a site whose task is gone."""

import contextlib
import dataclasses
import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_constant import ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.private.fed.server.server_runner import ServerRunner

from fairflare.core.errors import RunFailed
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.memory import SiteMemory
from fairflare.engine.setup.config import make_config
from fairflare.engine.straggler_policy import EarlyEnd, Ending
from fairflare.flare import controller
from fairflare.flare.compat import excuse_sites
from fairflare.flare.controller import FairController
from fairflare.flare.executor import Aborted, FairExecutor
from fairflare.flare.wire import TaskWatch
from fairflare.trainers.base import PlainTrainer
from helpers import TRAINING, initial_model, make_sites

CONFIG = make_config("fedavg", "support2:dirichlet", sites=3)


class Board(FairController):
    """FLARE's tasks on a clock of their own; ``answers``: site -> (seconds, Answer) of whoever answers."""

    def __init__(self, early_end, answers):
        super().__init__(CONFIG.to_json(), task_check_period=0.5)
        self._early_end, self._task_timeout = early_end, 100
        self.now, self.tasks, self.cancelled, self.due = 0.0, [], [], dict(answers)
        self.abort_signal = SimpleNamespace(triggered=False)
        self._arrivals = SimpleNamespace()  # no answer comes through FLARE

    def broadcast_model(self, data, task_name, targets, timeout, blocking, callback):
        self.tasks.append({"name": task_name, "left": set(targets), "until": self.now + timeout})

    def get_num_standing_tasks(self):
        return len(self.tasks)

    def cancel_all_tasks(self):
        self.cancelled += [(task["name"], sorted(task["left"])) for task in self.tasks]
        for task in self.tasks:
            task["until"] = self.now

    def sleep(self, seconds):
        self.now += seconds
        for task in self.tasks:
            for site in sorted(task["left"] & self.due.keys()):
                if self.due[site][0] <= self.now < task["until"]:
                    self._inbox.append(self.due[site][1])
                    task["left"].remove(site)
        self.tasks = [task for task in self.tasks if task["left"] and self.now < task["until"]]


def exchange(monkeypatch, early_end, answers, instructions):
    board = Board(early_end, answers)
    monkeypatch.setattr(controller, "time", SimpleNamespace(sleep=board.sleep, monotonic=lambda: board.now))
    found = sorted(answer.site for answer in board.exchange(instructions))
    return found, board.now, board


def asked(task="train", sites="abcd", **orders):
    model = {"w": torch.zeros(1)}
    return {site: Instruction(task, Round(2, 3), model, orders={"q": orders.get(site, 0.0)}) for site in sites}


def within(**seconds):
    return {site: (after, Answer(site)) for site, after in seconds.items()}


def test_a_round_ends_with_the_answers_of_all_groups_together(monkeypatch):
    groups = asked(a=1.0, b=2.0, c=2.0)
    found, took, board = exchange(monkeypatch, EarlyEnd(2), within(a=3, b=9, c=5), groups)
    assert found == ["a", "c"] and 5 <= took <= 6
    assert board.cancelled == [("train", ["b"]), ("train", ["d"])] and board.tasks == []


def test_answers_within_the_grace_time_count(monkeypatch):
    found, took, _ = exchange(monkeypatch, EarlyEnd(2, 4.0), within(a=1, b=2, c=5.5, d=8), asked())
    assert found == ["a", "b", "c"] and 6 <= took <= 7


def test_a_round_whose_sites_all_answer_is_not_cut(monkeypatch):
    found, took, board = exchange(monkeypatch, EarlyEnd(2, 60.0), within(a=1, b=2, c=3, d=4), asked())
    assert found == list("abcd") and took <= 5 and board.cancelled == []


def test_too_few_answers_wait_for_the_deadline(monkeypatch):
    found, took, _ = exchange(monkeypatch, EarlyEnd(3), within(a=1, b=2), asked())
    assert found == ["a", "b"] and took == 100


def test_an_error_is_no_contribution(monkeypatch):
    due = {**within(a=1, c=7), "b": (2, Answer("b", error="EXECUTION_EXCEPTION ValueError"))}
    found, took, _ = exchange(monkeypatch, EarlyEnd(2), due, asked())
    assert found == ["a", "b", "c"] and 7 <= took <= 8


@pytest.mark.parametrize("task, times", [("solo", 3), ("benefit", 1)])
def test_what_joining_gives_is_asked_for_as_a_round_is(task, times, monkeypatch):
    """Whoever trains alone does so for three rounds, and is given the grace of three."""
    due = within(a=1, b=2, c=2 + 4.0 * times - 1, d=2 + 4.0 * times + 2)
    found, took, board = exchange(monkeypatch, EarlyEnd(2, 4.0), due, asked(task))
    assert found == ["a", "b", "c"] and board.cancelled == [(task, ["d"])]
    assert 2 + 4.0 * times <= took <= 3 + 4.0 * times
    assert exchange(monkeypatch, EarlyEnd(), due, asked(task))[0] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("task", ["compare", "sum", "weigh", "evaluate"])
def test_other_exchanges_wait_for_everyone(task, monkeypatch):
    found, took, _ = exchange(monkeypatch, EarlyEnd(2), within(a=1, b=2, c=3, d=50), asked(task))
    assert found == list("abcd") and took >= 50


def test_an_invitation_stands_as_long_as_the_round_and_is_never_waited_for(monkeypatch):
    invited = asked(sites="abc") | asked("preflight", "d")
    found, took, board = exchange(monkeypatch, EarlyEnd(2), within(a=4, b=5, d=3), invited)
    assert found == ["a", "b", "d"] and took <= 6 and board.cancelled == [("train", ["c"])]
    found, took, _ = exchange(monkeypatch, EarlyEnd(2), within(a=0.5, b=0.5, d=2.4), invited)
    assert found == ["a", "b", "d"], "a fast round leaves it time to be met"


def connected(**parents):
    clients = [Client(name, "") for name in ("site-1", "site-2")]
    for client in clients:
        client.set_fqcn(f"region.{client.name}")  # behind a relay
        client.set_fqsn(f"{parents[client.name]}.{client.name}" if client.name in parents else client.name)
    one = FairController(CONFIG.to_json())
    one.engine = SimpleNamespace(get_clients=lambda: clients)
    return one


def test_sites_behind_a_relay_are_sites():
    assert connected().sites() == ["site-1", "site-2"]


def test_a_site_with_a_parent_is_refused_in_a_line():
    with pytest.raises(RunFailed, match="site site-2: expected a connection .* got the parent site-1:") as error:
        connected(**{"site-2": "site-1"}).sites()
    assert "\n" not in str(error.value)


def test_a_site_with_a_parent_that_comes_later_is_passed_over():
    one = connected()
    assert one.sites() == ["site-1", "site-2"]
    one.engine.get_clients()[1].set_fqsn("site-1.site-2")
    assert one.sites() == ["site-1"]


class Engine:
    """A client's engine whose server answers task checks with ``code``."""

    def __init__(self, code=ReturnCode.OK):
        self.code, self.asked = code, []

    @contextlib.contextmanager
    def new_context(self):
        yield self

    def send_aux_request(self, targets, topic, request, timeout, fl_ctx, optional):
        self.asked.append((targets, topic, request.get_header(ReservedKey.TASK_ID)))
        return {"server": make_reply(self.code)} if self.code else {}


class Context:
    def __init__(self, engine, task="task-7"):
        self.engine, self.task = engine, task

    def get_prop(self, key):
        return self.task if key == ReservedKey.TASK_ID else None

    def set_prop(self, key, value, **how):
        """What the executor says of the task to the filters that come after it."""

    def get_engine(self):
        return self.engine


@pytest.mark.parametrize(
    "code, gone",
    [(ReturnCode.TASK_UNKNOWN, True), (ReturnCode.OK, False), (ReturnCode.COMMUNICATION_ERROR, False), (None, False)],
)
def test_a_task_is_gone_when_the_server_says_so(code, gone):
    engine = Engine(code)
    watch = TaskWatch(Context(engine))
    assert watch.ask() is gone and watch.gone is gone
    assert engine.asked == [(["server"], ReservedTopic.TASK_CHECK, "task-7")]
    assert TaskWatch(Context(engine, None)).ask() is False, "outside a task nothing is asked"


def test_the_thread_asks_until_the_task_is_gone_or_done(monkeypatch):
    monkeypatch.setattr("fairflare.flare.wire.PERIOD", 0.01)
    engine, before = Engine(), threading.active_count()
    with TaskWatch(Context(engine)) as watch:
        waited_for(lambda: len(engine.asked) > 2)
        assert not watch.gone
        engine.code = ReturnCode.TASK_UNKNOWN
        waited_for(lambda: watch.gone)
    with TaskWatch(Context(Engine())):
        pass
    waited_for(lambda: threading.active_count() <= before)


def test_who_works_for_hours_asks_a_few_hundred_times():
    """On a clock that the waits move: 400 sites that asked every second would keep their server busy."""
    now, waits = 0.0, []

    def wait(seconds):
        nonlocal now
        now += seconds
        waits.append(seconds)
        return now > 3 * 3600

    engine = Engine()
    watch = TaskWatch(Context(engine), lambda: now)
    watch._left = SimpleNamespace(wait=wait)
    watch._watch()
    assert waits[:59] == [1.0] * 59 and max(waits) <= 3 * 3600 / 60 + 1 and len(engine.asked) < 400


def waited_for(holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def executor(tmp_path, hook):
    """An executor of a site that has kept round 1; ``hook`` is called in every training step."""

    class Hooked(PlainTrainer):
        def step(self, work, optimizer, objective, batch):
            hook(work)
            return super().step(work, optimizer, objective, batch)

    training = dataclasses.replace(TRAINING, keep_optimizer=True)
    site = make_sites(1, trainer=Hooked(), probes=())["site-1"]
    site = dataclasses.replace(site, training=training, memory=SiteMemory(tmp_path / "site.safetensors"))
    site.handle(Instruction("train", Round(1, 3), initial_model()))
    one = FairExecutor(CONFIG.to_json())
    one.log_info = lambda fl_ctx, text: said.append(text)
    said = []
    return one, site, said


def train(one, site, engine, number=2):
    return one._watched(site, Instruction("train", Round(number, 3), initial_model()), Context(engine), Signal())


def held(site):
    return {number: site.memory.has(number) for number in (1, 2)}


def test_a_site_whose_task_is_gone_stops_and_stands_as_before_the_round(tmp_path, monkeypatch):
    monkeypatch.setattr("fairflare.flare.wire.PERIOD", 0.01)
    engine, steps = Engine(), []

    def hook(work):
        if work.round.number == 2:
            steps.append(1)
            engine.code = ReturnCode.TASK_UNKNOWN
            while True:  # a step that never ends by itself
                work.stop_if_aborted()
                time.sleep(0.001)

    one, site, said = executor(tmp_path, hook)
    with pytest.raises(Aborted):
        train(one, site, engine)
    assert len(steps) == 1 and held(site) == {1: True, 2: False}
    assert said == ["train: round 2 went on without this site"]
    assert SiteMemory(tmp_path / "site.safetensors").before(3).keys() == site.memory.at(1).keys()


def test_a_site_that_ends_too_late_keeps_nothing_of_the_round(tmp_path):
    one, site, said = executor(tmp_path, lambda work: None)
    with pytest.raises(Aborted):
        train(one, site, Engine(ReturnCode.TASK_UNKNOWN))
    assert held(site) == {1: True, 2: False} and len(said) == 1
    answer = train(one, site, Engine())
    assert not answer.error and held(site) == {1: True, 2: True}


def test_the_next_round_has_the_bits_of_one_that_was_never_missed(tmp_path):
    one, site, _ = executor(tmp_path / "late", lambda work: None)
    with contextlib.suppress(Aborted):
        train(one, site, Engine(ReturnCode.TASK_UNKNOWN))
    other, fresh, _ = executor(tmp_path / "other", lambda work: None)
    found, expected = train(one, site, Engine(), 3).update, train(other, fresh, Engine(), 3).update
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_nothing_is_asked_of_a_short_task_that_keeps_nothing(tmp_path):
    one, site, _ = executor(tmp_path, lambda work: None)
    site.memory, engine = SiteMemory(), Engine()
    site.training = dataclasses.replace(site.training, keep_optimizer=False)
    train(one, site, engine)
    assert engine.asked == []


def test_a_site_that_asks_twice_does_not_keep_rounds_from_ending():
    """Its reply was lost, and another group's task stands: FLARE's own map of tasks ends the thread that ends them."""
    context, server = FLContext(), WFCommServer()
    one = FairController(CONFIG.to_json())
    one.set_communicator(server)
    server._engine = SimpleNamespace(new_context=contextlib.nullcontext)
    for site in ("a", "b"):
        one.broadcast(Task("train", Shareable()), context, targets=[site])
    for _ in range(2):
        assert server.process_task_request(Client("a", ""), context)[0] == "train"
    server.cancel_all_tasks()
    server.check_tasks()
    assert server.get_num_standing_tasks() == 0 and not server._client_task_map


def test_flares_deadline_of_a_task_follows_the_machines_clock(monkeypatch):
    """What docs/faults.md says of a clock that is set forward over FLARE; ours, of ``min_responses``, does not."""
    context, server, clock = FLContext(), WFCommServer(), time.time
    FairController(CONFIG.to_json()).set_communicator(server)
    server._engine = SimpleNamespace(new_context=contextlib.nullcontext)
    server.broadcast(Task("train", Shareable(), timeout=100), context, targets=["a"])
    server.check_tasks()
    assert server.get_num_standing_tasks() == 1
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    server.check_tasks()
    assert server.get_num_standing_tasks() == 0
    ending = Ending(EarlyEnd(1, 100.0), {"a", "b"})
    assert not ending.is_reached([Answer("a")])
    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
    assert not ending.is_reached([Answer("a")])


@pytest.mark.parametrize("code", [ReturnCode.UNSAFE_JOB, ReturnCode.TASK_UNKNOWN, ReturnCode.RUN_MISMATCH])
def test_a_code_of_one_site_does_not_end_the_job_for_all(code, monkeypatch):
    monkeypatch.setattr(ServerRunner, "ABORT_RETURN_CODES", ServerRunner.ABORT_RETURN_CODES)  # as it was, afterwards
    excuse_sites()
    runner = MagicMock(ABORT_RETURN_CODES=ServerRunner.ABORT_RETURN_CODES, job_id="job")
    context = MagicMock()
    context.get_peer_context.return_value = MagicMock(spec=FLContext, get_job_id=lambda: "job")
    ServerRunner._process_submission(runner, Client("site-1", ""), "train", "task-7", make_reply(code), context)
    assert not runner.system_panic.called
    assert runner.current_wf.controller.communicator.process_submission.called, "the controller hears of it"
