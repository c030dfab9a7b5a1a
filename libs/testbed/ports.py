"""TCP ports of the loopback for servers, so that no two processes of the testbed get the same one."""

import contextlib
import os
import random
import socket
import sys
from collections.abc import Iterator

_allocated_ports: dict[int, int] = {}  # port -> file descriptor of its reservation


def _is_reserved(port: int) -> bool:
    """Whether a process has reserved the port; if not, reserve it for this process.

    On Linux a name in the abstract socket namespace is the reservation. The kernel removes it with the
    process, so no file stays behind. Elsewhere only ports of this process count.
    """
    if port in _allocated_ports:
        return True
    reservation = socket.socket(socket.AF_UNIX)
    if sys.platform == "linux":
        try:
            reservation.bind(f"\0talos-ccm-port-{port}")
        except OSError:
            reservation.close()
            return True
    _allocated_ports[port] = reservation.detach()  # stays open until the process ends
    return False


@contextlib.contextmanager
def release_ports() -> Iterator[None]:
    """Release the ports that are allocated within the block at its end, when their servers have ended."""
    before = set(_allocated_ports)
    try:
        yield
    finally:
        for port in set(_allocated_ports) - before:
            os.close(_allocated_ports.pop(port))


def allocate_port() -> int:
    """Return a free TCP port on the loopback that no process of the testbed was given before.

    The port stays reserved until this process or a block of `release_ports` ends: its server may start later,
    or be down for a while. It is below the range that Linux uses for outgoing connections, so that none
    occupies it meanwhile.
    """
    for _ in range(1000):
        port = random.randrange(12000, 32000)  # noqa: S311 - no secret
        if _is_reserved(port):
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no free port between 12000 and 32000 on 127.0.0.1")
