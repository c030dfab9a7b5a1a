"""Clients of `control_plane/kubelets`: kubelets that measure joins, and a loop that approves everything."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from libs.testbed.child_process import ChildProcess, make_directory
from libs.testbed.command_channel import CommandChannel, open_channel
from libs.testbed.control_plane.build import KUBELETS, build_program
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelet_node import (
    SimKubelet,
    build_heartbeat_status,
    build_node_lease,
    build_ready_status,
    build_registered_node,
)

T = TypeVar("T")
_GRACE_SECONDS = 60  # beyond the time limit of a command


class GoCertificateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one request for a certificate, in Unix seconds of one clock; 0: not yet."""

    name: str
    node: str
    begun: float = 0  # before it was sent; 0: sent by another process
    filed: float = 0  # seen by the watch
    approved: float = 0
    issued: float = 0


class GoRequestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for certificates that were created together."""

    requests: tuple[GoCertificateRequest, ...]  # those of a node in the order of creation
    restarts: int  # restarts of the watches meanwhile, as in GoJoinBatch


class GoNodeJoin(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one joining node, in Unix seconds of one clock."""

    name: str
    begun: float  # before the first request of its kubelet
    joined: float  # its kubelet reported it ready, and requested its certificate if configured
    untainted: float  # the watch saw it without the taint; 0: not yet
    served: float = 0  # the watch saw it with podCIDRs; 0: not yet
    request: GoCertificateRequest | None = None  # the request for its certificate, if there is one


class GoJoinBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that joined together."""

    nodes: tuple[GoNodeJoin, ...]
    restarts: int  # of the watch by the API server meanwhile; times of events that it missed are too late


class HeartbeatCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of heartbeats that were sent."""

    beats: int
    seconds: float


class KubeletsInGo:
    """A process of kubelets. Names must be loaded before they are used."""

    def __init__(self, child: ChildProcess, channel: CommandChannel) -> None:
        self.child = child
        self._channel = channel

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, api: ControlPlane) -> AsyncIterator[KubeletsInGo]:
        """Start the process; it watches Nodes and requests, and ends with the context."""
        child = await start_kubelets_program("kubelets", run_dir, api, api.client())
        async with open_channel(child) as channel:
            yield cls(child, channel)

    async def load_kubelets(self, kubelets: Iterable[SimKubelet], *, certificates: int = 0) -> None:
        """Send all objects of these kubelets in advance, so that joining is only sending them.

        Each kubelet gets `certificates` requests with different keys; none is sent twice.
        """
        written = [_build_writes(kubelet) for kubelet in kubelets]
        await self._channel.send_command("load", kubelets=written, certificates=certificates)

    async def join(
        self,
        names: Sequence[str],
        *,
        concurrency: int = 0,
        per_second: float = 0,
        one_at_a_time: bool = False,
        until_untainted: bool = True,
        until_served: bool = False,
        certificates: bool = False,
        seconds: float = 300,
    ) -> GoJoinBatch:
        """Let the kubelets join, all at once by default (0 = no limit).

        With `certificates`, each sends one of its requests as soon as its node is ready. It returns when all
        have joined and reached the requested states: without the taint, with podCIDRs (`until_served`, only
        together with the former), with the certificate. After `seconds` it returns as it is. Raises
        CommandRejected if the API server rejects a node.
        """
        pace = {"concurrency": concurrency, "per_second": per_second, "one_at_a_time": one_at_a_time}
        end = {"untainted": until_untainted, "served": until_served, "certificates": int(certificates)}
        return await self._send("join", GoJoinBatch, names=names, seconds=seconds, **pace, **end)

    async def file_requests(
        self,
        names: Sequence[str],
        *,
        concurrency: int = 0,
        seconds: float = 300,
    ) -> GoRequestBatch:
        """Create a request of each node, all at once by default; the nodes need not exist.

        It returns when all are issued. After `seconds` it returns as it is. Raises
        CommandRejected if a request is rejected.
        """
        return await self._send(
            "file",
            GoRequestBatch,
            names=names,
            certificates=1,
            concurrency=concurrency,
            seconds=seconds,
        )

    async def wait_until_untainted(self, names: Sequence[str], *, seconds: float) -> bool:
        """Wait until these joined nodes were seen without the taint; False if not in time."""
        return await self._send("untainted", bool, names=names, seconds=seconds)

    async def send_heartbeats(
        self, names: Sequence[str], *, seconds: float, every_seconds: float
    ) -> HeartbeatCounts:
        """Let each node report its conditions and renew its Lease every `every_seconds`, for `seconds`."""
        return await self._send(
            "beat",
            HeartbeatCounts,
            names=names,
            seconds=seconds,
            every_seconds=every_seconds,
        )

    async def expect_texts(self, texts: Mapping[str, str]) -> None:
        """Record from now on when a node has that address, or a label with that value; one text per node."""
        await self._channel.send_command("expect", texts=texts)

    async def wait_until_shown(self, texts: Mapping[str, str], *, seconds: float = 60) -> dict[str, float]:
        """Return when each node had the expected text, in Unix seconds; after `seconds`, those that did."""
        return await self._send("await", dict[str, float], texts=texts, seconds=seconds)

    async def delete_nodes(self, names: Sequence[str]) -> None:
        """Delete nodes and their requests as an admin; return when the watches show the deletions."""
        await self._send("delete", object, names=names, concurrency=64, seconds=120)

    async def _send(self, command: str, result: type[T], *, seconds: float, **arguments: Any) -> T:
        """Send a command that takes at most `seconds`, and return its decoded result."""
        answer = await self._channel.send_command(
            command, answer_seconds=seconds + _GRACE_SECONDS, seconds=seconds, **arguments
        )
        return msgspec.json.decode(answer.result, type=result)


async def start_kubelets_program(
    name: str, run_dir: Path, api: ControlPlane, credentials: tuple[Path, Path], *flags: str
) -> ChildProcess:
    """Start the program with the address of the API server and a client certificate with its key."""
    make_directory(run_dir)
    certificate, key = credentials
    access = ("-server", api.server, "-ca", api.ca_file, "-cert", certificate, "-key", key)
    return ChildProcess.start(name, [await build_program(KUBELETS), *access, *flags], run_dir, pipes=True)


# A placeholder for the time of writing, replaced by the Go process.
_MOMENT = datetime(1999, 12, 31, 23, 59, 58, 987654, tzinfo=UTC)
_PLACEHOLDERS = ((b"1999-12-31T23:59:58.987654Z", b"@now-micro@"), (b"1999-12-31T23:59:58Z", b"@now@"))


def _build_writes(kubelet: SimKubelet) -> dict[str, Any]:
    return {
        "name": kubelet.name,
        "addresses": kubelet.ips,
        "node": _make_template(build_registered_node(kubelet, _MOMENT)),
        "ready": _make_template({"status": build_ready_status(_MOMENT)}),
        "heartbeat": _make_template({"status": build_heartbeat_status(_MOMENT)}),
        "lease": _make_template(build_node_lease(kubelet.name, _MOMENT)),
    }


def _make_template(body: Mapping[str, Any]) -> msgspec.Raw:
    text = msgspec.json.encode(body)
    for moment, place in _PLACEHOLDERS:
        text = text.replace(moment, place)
    return msgspec.Raw(text)


class ApproveEverything:
    """A process of the kubelets program that approves every request for a serving certificate at once."""

    USER: Final = "approve-everything"

    def __init__(self, child: ChildProcess) -> None:
        self.child = child

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, run_dir: Path, api: ControlPlane, *, concurrency: int = 64
    ) -> AsyncIterator[ApproveEverything]:
        """Start the process as a user with all permissions; it ends with the context."""
        credentials = api.client(cls.USER, ["system:masters"])
        flags = ("-approve", str(concurrency))
        child = await start_kubelets_program("approve-everything", run_dir, api, credentials, *flags)
        async with open_channel(child):
            yield cls(child)
