# SPDX-License-Identifier: Apache-2.0
"""Ports of FLARE's simulator: two simulators on one machine never choose the same one.

FLARE looks for a free port, closes it, and starts a process that opens it seconds later; in between another simulator
may be given the same port, and its site then waits for the other's server.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable

NAME = "\0fairflare-port-{}"
"""A socket of this name in Linux's abstract namespace stands for a port; it ends with the last process that has it."""

_held: list[socket.socket] = []


def reserved_ports(number: int, find: Callable[[int], list[int]]) -> list[int]:
    """As FLARE's ``get_open_ports``, but no port that another process of this package has reserved.

    Args:
        find: FLARE's function.

    Returns:
        Ports that stay reserved until this process and its children have ended.
    """
    ports: list[int] = []
    while len(ports) < number:
        ports += [port for port in find(number - len(ports)) if _reserve(port)]
    return ports


def reserve_ports() -> None:
    """Have FLARE's simulator in this process, and in the processes that it forks, take reserved ports."""
    from nvflare.fuel.utils.network_utils import get_open_ports
    from nvflare.private.fed.app.deployer import simulator_deployer
    from nvflare.private.fed.app.simulator import simulator_runner

    for module in (simulator_deployer, simulator_runner):
        module.get_open_ports = lambda number: reserved_ports(number, get_open_ports)


def _reserve(port: int) -> bool:
    """Whether ``port`` is this process's now; elsewhere than on Linux nothing can be reserved."""
    if sys.platform != "linux":
        return True
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        mark.bind(NAME.format(port))
        _held.append(mark)
        return True
    mark.close()
    return False
