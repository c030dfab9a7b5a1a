"""Faults of nats-server, its stream and consumers, kube-apiserver and etcd."""

from collections.abc import Sequence
from typing import Final

import nats

from chaos.fault import Fault, FaultSite, heal_nothing
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import STREAM

_MOMENT: Final = (0.0, 0.0)
_REPLY_SECONDS: Final = 5.0


async def _kill_nats(site: FaultSite) -> None:
    await site.cluster.nats.kill()


async def _restart_nats(site: FaultSite) -> None:
    await site.cluster.nats.restart()


async def _wipe_nats(site: FaultSite) -> None:
    await site.cluster.nats.wipe()


async def _pause_nats(site: FaultSite) -> None:
    site.cluster.nats.pause()


async def _resume_nats(site: FaultSite) -> None:
    site.cluster.nats.resume()


async def _delete_stream(site: FaultSite) -> None:
    await _call_jetstream(site, f"STREAM.DELETE.{STREAM}")


async def _delete_consumers(site: FaultSite) -> None:
    for durable in DURABLES:
        await _call_jetstream(site, f"CONSUMER.DELETE.{STREAM}.{durable.name}")


async def _call_jetstream(site: FaultSite, what: str) -> None:
    """Send a request of the JetStream API; a stream or consumer that is missing already is no error."""
    client = await nats.connect(site.cluster.nats.url, connect_timeout=_REPLY_SECONDS)
    try:
        await client.request(f"$JS.API.{what}", timeout=_REPLY_SECONDS)
    finally:
        await client.close()


async def _kill_apiserver(site: FaultSite) -> None:
    await site.cluster.control_plane.apiserver.kill()


async def _restart_apiserver(site: FaultSite) -> None:
    await site.cluster.control_plane.restart_apiserver()


async def _pause_apiserver(site: FaultSite) -> None:
    site.cluster.control_plane.apiserver.pause()


async def _resume_apiserver(site: FaultSite) -> None:
    site.cluster.control_plane.apiserver.resume()


async def _pause_etcd(site: FaultSite) -> None:
    site.cluster.control_plane.etcd.pause()


async def _resume_etcd(site: FaultSite) -> None:
    site.cluster.control_plane.etcd.resume()


SERVER_FAULTS: Final[Sequence[Fault]] = (
    Fault(name="nats-killed", target="nats", inject=_kill_nats, heal=_restart_nats),
    Fault(name="nats-paused", target="nats", inject=_pause_nats, heal=_resume_nats),
    Fault(name="nats-wiped", target="nats", inject=_wipe_nats, heal=heal_nothing, hold_seconds=_MOMENT),
    Fault(
        name="stream-deleted", target="nats", inject=_delete_stream, heal=heal_nothing, hold_seconds=_MOMENT
    ),
    Fault(
        name="consumers-deleted",
        target="nats",
        inject=_delete_consumers,
        heal=heal_nothing,
        hold_seconds=_MOMENT,
    ),
    Fault(name="apiserver-killed", target="apiserver", inject=_kill_apiserver, heal=_restart_apiserver),
    Fault(name="apiserver-paused", target="apiserver", inject=_pause_apiserver, heal=_resume_apiserver),
    Fault(name="etcd-paused", target="apiserver", inject=_pause_etcd, heal=_resume_etcd),
)
