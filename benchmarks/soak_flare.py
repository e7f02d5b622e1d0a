# SPDX-License-Identifier: Apache-2.0
"""What grows in a server's memory under FLARE's cells alone, with no code of this package?

    python benchmarks/soak_flare.py [--messages 6000] [--toy]

One cell (FLARE's TCP and encoding) sends back what a second process asks it, ``AT_ONCE`` requests at a time, and keeps
nothing. After each of ``READINGS`` equal parts, with no request on its way, the server's process says how many blocks
Python's allocator holds, how many bytes glibc's ``malloc`` counts as in use, and how many threads there are. In a
second run glibc keeps no freed blocks for single threads: what grows in the first run alone lies in its caches per
thread, 240 kB each, and the cell's pool has up to 100 threads. It needs glibc 2.33 or later.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.private.defs import CellChannel

AT_ONCE, READINGS = 16, 6
CHANNEL, TOPIC = CellChannel.SERVER_MAIN, "echo"
NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
NO_CACHE = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


class MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]


def ask(url: str) -> None:
    """A process: for each number in its input so many requests, and a line once all are answered."""
    cell = Cell(fqcn="player", root_url=url, secure=False, credentials={}, create_internal_listener=False)
    cell.start()
    while not cell.is_cell_connected("server"):
        time.sleep(0.1)

    def one(seed: int) -> None:
        draw = random.Random(seed)
        payload = {f"part {k}": draw.randbytes(draw.randrange(16, 1000)) for k in range(draw.randrange(1, 20))}
        request = new_cell_message({}, payload)
        reply = cell.send_request(target="server", channel=CHANNEL, topic=TOPIC, request=request, timeout=60.0)
        if reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK or reply.payload != payload:
            raise SystemExit("no reply from the server")

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for line in sys.stdin:
                list(pool.map(one, range(int(line))))
                print("done", flush=True)
    finally:
        cell.stop()


def serve(messages: int) -> None:
    """A process: answer and print the readings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = MallInfo
    cell = Cell(fqcn="server", root_url=url, secure=False, credentials={})
    cell.register_request_cb(
        channel=CHANNEL, topic=TOPIC, cb=lambda message: make_reply(ReturnCode.OK, body=message.payload)
    )
    cell.start()
    with subprocess.Popen(
        [sys.executable, __file__, "--ask", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as player:
        print(f"{'messages':>10} {'Python blocks':>14} {'malloc MB':>10} {'threads':>8}", flush=True)
        for reading in range(1, READINGS + 1):
            player.stdin.write(f"{messages // READINGS}\n")
            if not player.stdout.readline():
                raise SystemExit("the player ended")
            gc.collect()
            used = libc.mallinfo2()
            print(
                f"{messages // READINGS * reading:>10} {sys.getallocatedblocks():>14} "
                f"{(used.uordblks + used.hblkhd) / 1e6:>10.3f} {threading.active_count():>8}",
                flush=True,
            )
        player.stdin.close()
    cell.stop()


def main() -> None:
    """Both runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=6000)
    parser.add_argument("--toy", action="store_true", help="the smallest size")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        ask(options.ask)
    elif options.serve:
        serve(options.messages)
    else:
        command = [sys.executable, __file__, "--serve", "--messages", str(60 if options.toy else options.messages)]
        for said, more in (("glibc as it is", {}), ("no blocks kept for single threads", NO_CACHE)):
            print(said)
            with subprocess.Popen(command, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True) as server:
                for line in server.stdout:
                    print(line, end="", flush=True)
            if server.returncode:
                raise SystemExit(f"the server's process ended with {server.returncode}")


if __name__ == "__main__":
    main()
