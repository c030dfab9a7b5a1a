"""The client of `control_plane/kubelets`: kubelets in Go, and when each of their nodes was untainted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from libs.testbed.child_process import ChildProcess
from libs.testbed.command_channel import CommandChannel, Reply
from libs.testbed.control_plane.build import KUBELETS, build_program
from libs.testbed.kubelet_node import (
    SimKubelet,
    build_heartbeat_status,
    build_node_lease,
    build_ready_status,
    build_registered_node,
)

_GRACE_SECONDS = 30  # beyond the time that a command was given


class ApiServer(Protocol):
    """What ControlPlane is here."""

    server: str
    ca_file: Path

    def client(self, user: str = "admin", groups: Sequence[str] = ()) -> tuple[Path, Path]:
        """Files with a user's certificate and key; "admin" must be allowed to impersonate nodes."""
        ...


class GoCertificateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How far one request for a certificate came and when, in Unix seconds of the same clock; 0: not yet."""

    name: str
    node: str
    begun: float = 0  # before it was sent; 0: by somebody else
    filed: float = 0  # the watch showed it
    approved: float = 0
    denied: float = 0
    issued: float = 0
    writes: int = 0  # that the watch showed after it was filed


class GoRequestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for certificates that were filed together."""

    requests: tuple[GoCertificateRequest, ...]  # each node's in the order in which they were filed
    retries: int
    restarts: int  # of the watches meanwhile, as in Joins


class GoNodeJoin(msgspec.Struct, frozen=True, kw_only=True):
    """How far one node came and when, in Unix seconds of one clock."""

    name: str
    begun: float  # before the first request of its kubelet
    joined: float  # its kubelet has reported it ready, and asked for its certificate if told to
    untainted: float  # the watch showed it without the taint; 0: it did not
    served: float = 0  # the watch showed it with podCIDRs; 0: it did not
    request: GoCertificateRequest | None = None  # for its certificate, if it asked for one


class GoJoinBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that joined together."""

    nodes: tuple[GoNodeJoin, ...]
    retries: int  # requests of kubelets that were sent again
    restarts: int  # of the watch meanwhile: the API server ended it, and what it missed bears too late a time


class HeartbeatCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeats that were sent."""

    beats: int
    events: int  # that the watch of Nodes showed meanwhile
    retries: int
    seconds: float


class GoReply(Reply):
    """One line of stdout."""

    result: msgspec.Raw = msgspec.Raw(b"null")


class KubeletsInGo:
    """A process of kubelets. Names must have been loaded."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self._conversation = CommandChannel(child, GoReply)

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, api: ApiServer) -> AsyncIterator[KubeletsInGo]:
        """Start the process; it watches Nodes and requests from now on, and ends with the context."""
        _make(run_dir)
        argv: list[str | Path] = [await build_program(KUBELETS), *build_access_flags(api, *api.client())]
        child = ChildProcess.start("kubelets", argv, run_dir, pipes=True)
        kubelets = cls(child)
        try:
            await kubelets._conversation.wait_until_ready()
            yield kubelets
        finally:
            await kubelets._conversation.close()

    async def load_kubelets(self, kubelets: Iterable[SimKubelet], *, certificates: int = 0) -> None:
        """Hand over everything that these kubelets will write, so that joining is nothing but sending it.

        Each gets so many requests for certificates, every one with a key of its own; none is sent twice.
        """
        written = [_build_writes(kubelet) for kubelet in kubelets]
        await self._conversation.send_command("load", kubelets=written, certificates=certificates)

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
        """Let kubelets join, all at once unless told otherwise (0 = no limit).

        With `certificates` each sends one of its requests as soon as its node is ready. Returns when all have
        joined and, if wanted, were seen without the taint, with podCIDRs (`until_served`, only together with
        the former) and with the certificate they asked for; after `seconds` with those that were not. Raises
        ValueError if the API server refuses one.
        """
        answer = await self._conversation.send_command(
            "join",
            answer_seconds=seconds + _GRACE_SECONDS,
            names=names,
            concurrency=concurrency,
            per_second=per_second,
            one_at_a_time=one_at_a_time,
            untainted=until_untainted,
            served=until_served,
            certificates=int(certificates),
            seconds=seconds,
        )
        return msgspec.json.decode(answer.result, type=GoJoinBatch)

    async def file_requests(
        self,
        names: Sequence[str],
        *,
        certificates: int = 1,
        concurrency: int = 0,
        until_issued: bool = True,
        seconds: float = 300,
    ) -> GoRequestBatch:
        """Send requests for certificates, of nodes that exist or not, so many of each one after the other.

        All nodes at once unless told otherwise. Returns when all are filed and, if wanted, the newest of each
        node is issued; after `seconds` with those that are not. Raises ValueError if one is refused.
        """
        answer = await self._conversation.send_command(
            "file",
            answer_seconds=seconds + _GRACE_SECONDS,
            names=names,
            certificates=certificates,
            concurrency=concurrency,
            issued=until_issued,
            seconds=seconds,
        )
        return msgspec.json.decode(answer.result, type=GoRequestBatch)

    async def wait_until_issued(self, names: Sequence[str], *, seconds: float = 300) -> GoRequestBatch:
        """Wait until the newest request of each node has its certificate, or for so many seconds."""
        answer = await self._conversation.send_command(
            "issued", answer_seconds=seconds + _GRACE_SECONDS, names=names, seconds=seconds
        )
        return msgspec.json.decode(answer.result, type=GoRequestBatch)

    async def wait_until_untainted(self, names: Sequence[str], *, seconds: float) -> bool:
        """Wait until these nodes, which have joined, were seen without the taint; False if not in time."""
        answer = await self._conversation.send_command(
            "untainted", answer_seconds=seconds + _GRACE_SECONDS, names=names, seconds=seconds
        )
        return msgspec.json.decode(answer.result, type=bool)

    async def send_heartbeats(
        self, names: Sequence[str], *, seconds: float, every_seconds: float
    ) -> HeartbeatCounts:
        """Let each node report its conditions and renew its Lease every so often, for a time."""
        answer = await self._conversation.send_command(
            "beat",
            answer_seconds=seconds + 2 * _GRACE_SECONDS,
            names=names,
            seconds=seconds,
            every_seconds=every_seconds,
        )
        return msgspec.json.decode(answer.result, type=HeartbeatCounts)

    async def expect_texts(self, texts: Mapping[str, str]) -> None:
        """From now on note when a node has that address, or a label with that value; one text a node."""
        await self._conversation.send_command("expect", texts=texts)

    async def wait_until_shown(self, texts: Mapping[str, str], *, seconds: float = 60) -> dict[str, float]:
        """When each node showed what was expected, in Unix seconds; after `seconds` those that did."""
        answer = await self._conversation.send_command(
            "await", answer_seconds=seconds + _GRACE_SECONDS, texts=texts, seconds=seconds
        )
        return msgspec.json.decode(answer.result, type=dict[str, float])

    async def delete_nodes(
        self, names: Sequence[str], *, concurrency: int = 64, seconds: float = 120
    ) -> None:
        """Delete nodes and their requests as an admin; returns when the watches show that they are gone."""
        await self._conversation.send_command(
            "delete",
            answer_seconds=seconds + _GRACE_SECONDS,
            names=names,
            concurrency=concurrency,
            seconds=seconds,
        )


def build_access_flags(api: ApiServer, certificate: Path, key: Path) -> tuple[str | Path, ...]:
    """The flags that say where the API server is, and as whom to come."""
    return ("-server", api.server, "-ca", api.ca_file, "-cert", certificate, "-key", key)


def _make(run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)


# What stands for the time of writing, and is replaced by the Go process.
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
