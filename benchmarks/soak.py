# SPDX-License-Identifier: Apache-2.0
"""Does the server's memory stay flat over weeks with 500 sites that come, go and are late?

    python benchmarks/soak.py --out DIR [--rounds 720] [--sites 500] [--minutes 30] [--model 100] [--toy]

The server's own code in this process: the round loop with gate, FedAvg, audit log and checkpoint over
``FairController`` and FLARE's task manager. Two more processes play the sites, which take their tasks and hand in their
updates over FLARE's cells (TCP, FLARE's encoding), each in messages of its own; they train nothing, an update is random
numbers. No round waits for its date: 720 rounds are two months of twelve a day.

In each round 5 % of the sites are late: they ask for their task twice, as a site does that no reply has reached, and
their answers come in the next round and are dropped. After every tenth round 1 % of the sites leave, without an answer
to that round, and as many join, back from an earlier stay or new: a tenth more sites exist than are connected.

After every round a line goes to ``DIR/soak.csv``. After ``--minutes`` the run stops where it is, and the same command
continues it in a new process, whose memory is judged alone. Memory is flat if over the last half of the process's
rounds the 95 % interval of its growth (regression over the means of 20 blocks) lies below 2 % of what it holds per
1,000 rounds.
"""

from __future__ import annotations

import argparse
import csv
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReservedKey, ServerCommandKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellChannel
from scipy import stats

from fairflare.core.manifest import all_versions
from fairflare.core.schema import Answer, Instruction
from fairflare.engine.files import AUDIT
from fairflare.engine.gate import Gate
from fairflare.engine.loop import Federation
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.engine.straggler_policy import EarlyEnd
from fairflare.flare.controller import FairController
from fairflare.flare.wire import answer_to_shareable, instruction_from_shareable

PLAYERS, AT_ONCE = 2, 16
LATE, CHURN, EVERY, SPARE = 0.05, 0.01, 10, 0.1
"""Shares of the connected sites: late in a round, exchanged every so many rounds, and how many more there are."""
GRACE = 0.5
BLOCKS, LEVEL, FLAT, PER = 20, 0.95, 0.02, 1000
COLUMNS = ("process", "round", "seconds", "resident_mb", "files", "threads", "log_mb", "accepted", "late", "absent")
WITHIN = {"native": True}
"""Tensors travel within their messages, as with FLARE's ``tensor_download_chunk_size`` of 0."""
CHANNEL, JOB = CellChannel.SERVER_MAIN, "soak"


class Plan:
    """Who is connected and who is late in a round; server and players work it out for themselves."""

    def __init__(self, sites: int) -> None:
        self.all = [f"site-{k:04d}" for k in range(1, sites + max(1, round(SPARE * sites)) + 1)]
        self._sites, self._exchanged = sites, max(1, round(CHURN * sites))

    def connected(self, number: int) -> list[str]:
        """The sites of a round; every ``EVERY`` rounds the window moves on."""
        first = (number - 1) // EVERY * self._exchanged
        return [self.all[(first + k) % len(self.all)] for k in range(self._sites)]

    def late(self, number: int) -> set[str]:
        """Those of them whose answers come a round too late."""
        return set(random.Random(number).sample(self.connected(number), round(LATE * self._sites)))

    def leaving(self, number: int) -> set[str]:
        """Those that will not be heard of again in this stay."""
        return set(self.connected(number)) - set(self.connected(number + 1))


class Server(FairController):
    """The controller with FLARE's task manager and a cell, and as much of FLARE's engine as they ask for."""

    def __init__(self, plan: Plan, folder: Path, url: str) -> None:
        super().__init__({}, task_check_period=0.05)
        self.number, self.may_go_on = 1, True
        self._clients = {name: Client(name, name) for name in plan.all}
        self.cell = Cell(fqcn="server", root_url=url, secure=False, credentials={})
        self.cell.update_fobs_context(WITHIN)
        workspace = SimpleNamespace(get_run_dir=lambda job: str(folder))
        engine = SimpleNamespace(
            get_clients=lambda: [self._clients[name] for name in plan.connected(self.number)],
            get_cell=lambda: self.cell,
            get_workspace=lambda: workspace,
            fire_event=lambda *of: None,
        )
        engine.new_context = FLContextManager(engine, "server", JOB).new_context
        self.set_communicator(WFCommServer(task_check_period=0.05))
        self.initialize(engine.new_context())
        self.communicator.initialize_run(engine.new_context())
        self.abort_signal, self._task_timeout, self._early_end = Signal(), 600, early_end(plan)
        for topic, answer in (
            (ServerCommandNames.GET_TASK, self._give),
            (ServerCommandNames.SUBMIT_UPDATE, self._take),
        ):
            self.cell.register_request_cb(channel=CHANNEL, topic=topic, cb=answer)
        self.cell.start()

    def _context(self) -> FLContext:
        context = self.engine.new_context()
        context.set_peer_context(FLContext())
        return context

    def _give(self, message: Message) -> Message:
        """What FLARE's server does when a site asks for a task."""
        client = self._clients[message.payload.get_header("site")]
        name, id, data = self.communicator.process_task_request(client, self._context())
        data = data or Shareable()
        data.set_header(ServerCommandKey.TASK_NAME, name)
        data.set_header(ReservedKey.TASK_ID, id)
        return make_reply(ReturnCode.OK, body=data)

    def _take(self, message: Message) -> Message:
        """What FLARE's server does when a site hands in a result."""
        result = message.payload
        client, name = self._clients[result.get_header("site")], result.get_header(ServerCommandKey.TASK_NAME)
        id = result.get_header(ReservedKey.TASK_ID)
        self.communicator.process_submission(client, name, id, result, self._context())
        return make_reply(ReturnCode.OK, body="")

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """The controller's; between two rounds the run may be told to stop, as by Ctrl-C."""
        if not self.may_go_on:
            raise KeyboardInterrupt
        return super().exchange(instructions)

    def close(self) -> None:
        """End FLARE's threads."""
        self.communicator.finalize_run(self._context())
        self._until_end.close()
        self.cell.stop()


def early_end(plan: Plan) -> EarlyEnd:
    """A round ends ``GRACE`` seconds after the answers of nine sites of ten."""
    return EarlyEnd(int(0.9 * len(plan.connected(1))), GRACE)


def play(url: str, sites: int, place: int, size: int, number: int) -> None:
    """A process: every ``PLAYERS``-th site asks for tasks, for ever; ``AT_ONCE`` of them at a time."""
    plan = Plan(sites)
    late: dict[str, Shareable] = {}
    mine, busy = set(plan.all[place::PLAYERS]), set[str]()
    updates = [{"w": 0.01 * torch.randn(size, generator=torch.Generator().manual_seed(k))} for k in range(50)]
    cell = Cell(fqcn=f"player-{place}", root_url=url, secure=False, credentials={}, create_internal_listener=False)
    cell.update_fobs_context(WITHIN)
    cell.start()
    while not cell.is_cell_connected("server"):
        time.sleep(0.1)
    ask = partial(request, cell, ServerCommandNames.GET_TASK)
    hand_in = partial(request, cell, ServerCommandNames.SUBMIT_UPDATE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            asking = [site for site in plan.connected(number) if site in mine - busy]
            tasks = dict(zip(asking, pool.map(ask, asking)))
            read = {
                site: instruction_from_shareable(name, task)
                for site, task in tasks.items()
                if (name := task.get_header(ServerCommandKey.TASK_NAME))
            }
            now = max([one.round.number for one in read.values()], default=number)
            if now > number or any(one.task == "evaluate" for one in read.values()):
                number = now
                list(pool.map(hand_in, late, late.values()))
                late.clear()
                busy.clear()
            due, slow, leaving = dict[str, Shareable](), plan.late(number), plan.leaving(number)
            for site, instruction in read.items():
                result = answer_to_shareable(answer(site, instruction, updates))
                for header in (ServerCommandKey.TASK_NAME, ReservedKey.TASK_ID):
                    result.set_header(header, tasks[site].get_header(header))
                if instruction.task != "train" or site not in slow | leaving:
                    due[site] = result
                    continue
                busy.add(site)
                if site in slow:
                    late[site] = result
                    ask(site)
            list(pool.map(hand_in, due, due.values()))
            time.sleep(0.1)


def request(cell: Cell, topic: str, site: str, data: Shareable | None = None) -> Any:
    """The payload of the server's reply; raises SystemExit once there is no server."""
    data = data or Shareable()
    data.set_header("site", site)
    message = new_cell_message({}, data)
    reply = cell.send_request(target="server", channel=CHANNEL, topic=topic, request=message, timeout=60.0)
    if reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK:
        raise SystemExit(f"{site}: no reply from the server")
    return reply.payload


def answer(site: str, instruction: Instruction, updates: Sequence[dict[str, torch.Tensor]]) -> Answer:
    """What a site that trains nothing says."""
    number, examples = instruction.round.number, 100 + int(site[-4:]) % 50
    if instruction.task == "preflight":
        said = {"findings": {}, "versions": all_versions()}
        return Answer(site, number, n_examples=examples, metrics=said)
    if instruction.task == "evaluate":
        return Answer(site, number, n_examples=examples)
    update = updates[(int(site[-4:]) + number) % len(updates)]
    return Answer(site, number, update, n_examples=examples, steps=1)


class Watch:
    """Writes a line after every round, tells the server its number, and stops the run once its time is over."""

    def __init__(self, server: Server, folder: Path, minutes: float) -> None:
        self._server, self._file, self._log = server, folder / "soak.csv", folder / AUDIT
        self._until, self._own = time.monotonic() + 60 * minutes, psutil.Process()
        known = rows_of(self._file)
        self._process = 1 + int(known[-1]["process"]) if known else 1
        server.number = 1 + int(known[-1]["round"]) if known else 1

    def saw(self, entry: Mapping[str, Any]) -> None:
        """The loop's observer."""
        if entry["event"] != "round":
            return
        codes = [one["code"] for one in entry["rejected"].values()]
        found = [
            self._process, entry["round"], round(sum(entry["seconds"].values()), 3),
            round(self._own.memory_info().rss / 1e6, 2), self._own.num_fds(), self._own.num_threads(),
            round(self._log.stat().st_size / 1e6, 2),
            len(entry["accepted"]), codes.count("late"), codes.count("absent"),
        ]  # fmt: skip
        if others := set(codes) - {"late", "absent"}:
            raise SystemExit(f"round {entry['round']}: expected late and absent sites, got {sorted(others)}")
        new = not self._file.exists()
        with self._file.open("a", newline="") as file:
            csv.writer(file).writerows([COLUMNS, found] if new else [found])
        self._server.number = entry["round"] + 1
        self._server.may_go_on = time.monotonic() < self._until


def rows_of(file: Path) -> list[dict[str, float]]:
    """The lines so far."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(lines)]


def growth(rows: Sequence[Mapping[str, float]], column: str) -> tuple[float, float, float]:
    """Growth of ``column`` per ``PER`` rounds over the last half of the rows, and its interval.

    Regression over the means of equally long blocks: neighbouring rounds are no independent observations.
    """
    half = rows[len(rows) // 2 :]
    blocks = min(BLOCKS, len(half))
    parts = [half[k * len(half) // blocks : (k + 1) * len(half) // blocks] for k in range(blocks)]
    means = [[sum(row[name] for row in part) / len(part) for part in parts] for name in ("round", column)]
    if len(set(means[1])) == 1:
        return 0.0, 0.0, 0.0
    line = stats.linregress(*means)
    width = float(stats.t.ppf((1 + LEVEL) / 2, blocks - 2)) * float(line.stderr)
    return PER * float(line.slope), PER * (float(line.slope) - width), PER * (float(line.slope) + width)


def report(rows: Sequence[Mapping[str, float]]) -> None:
    """Print the figures of the last process."""
    own = [row for row in rows if row["process"] == rows[-1]["process"]]
    half = own[len(own) // 2 :]
    mean = {name: sum(row[name] for row in half) / len(half) for name in COLUMNS}
    print(
        f"rounds {own[0]['round']:.0f} to {own[-1]['round']:.0f} in one process; the last {len(half)}: "
        f"{mean['accepted']:.0f} sites accepted, {mean['late']:.1f} late, {mean['absent']:.1f} absent, "
        f"{mean['seconds']:.2f} s a round; log {own[-1]['log_mb']:.1f} MB"
    )
    for name in ("resident_mb", "files", "threads", "seconds"):
        slope, low, high = growth(own, name)
        print(f"{name}: mean {mean[name]:.2f}, per {PER} rounds {slope:+.2f} ({low:+.2f} to {high:+.2f})")
    low, high = growth(own, "resident_mb")[1:]
    flat = high < FLAT * mean["resident_mb"]
    print(f"memory {'is flat' if flat else 'is not shown to be flat'}: at most {high:+.2f} MB per {PER} rounds")


def run(options: argparse.Namespace, folder: Path) -> None:
    """The server's process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    plan = Plan(options.sites)
    server = Server(plan, folder, url)
    watch = Watch(server, folder, options.minutes)
    command = [sys.executable, __file__, "--play", url, "--sites", str(options.sites), "--model", str(options.model)]
    players = [subprocess.Popen([*command, "--place", str(k), "--first", str(server.number)]) for k in range(PLAYERS)]
    federation = Federation(
        rule=default_parts("fedavg").rule,
        gate=Gate(frozenset({"w"})),
        transport=server,
        rounds=options.rounds,
        min_sites=options.sites // 2,
        folder=folder,
        header={"method": "fedavg"},
        observers=[watch],
        early_end=early_end(plan),
    )
    try:
        federation.run({"w": torch.zeros(options.model)})
    except KeyboardInterrupt:
        print(f"stopped after {options.minutes:g} minutes; the same command goes on")
    finally:
        for player in players:
            player.terminate()
            player.wait()
        server.close()


def main() -> None:
    """Run or go on, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder, which is continued; a temporary one by default")
    parser.add_argument("--rounds", type=int, default=720)
    parser.add_argument("--sites", type=int, default=500, help="that are connected")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--model", type=int, default=100, help="entries")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.play:
        play(options.play, options.sites, options.place, options.model, options.first)
    if options.toy:
        options.rounds, options.sites, options.model = 12, 20, 10
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.out or Path(scratch)
        folder.mkdir(exist_ok=True)
        run(options, folder)
        report(rows_of(folder / "soak.csv"))


if __name__ == "__main__":
    main()
