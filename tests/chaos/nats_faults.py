"""Faults of the nats-servers, the stream and its consumers."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import STREAM
from libs.testbed.nats_server import NatsServer
from tests.chaos.cluster import CLUSTERED_MODES, SINGLE_SERVER_MODES
from tests.chaos.fault import Fault, FaultSite, heal_nothing
from tests.chaos.persist import persist

_MOMENT: Final = (0.0, 0.0)
_ROTATION_SECONDS: Final = (18.0, 20.0)  # between two rotations of all keys
_cluster_fault = partial(Fault, target="nats", modes=CLUSTERED_MODES)
_PROBES: Final = 3
_PROBE_SECONDS: Final = 2.0  # the chart's liveness probe: every 30 s


async def _kill_all(site: FaultSite) -> None:
    await site.cluster.nats.kill()


async def _restart_stopped(site: FaultSite) -> None:
    await site.cluster.nats.restart()


async def _wipe_all(site: FaultSite) -> None:
    await site.cluster.nats.wipe()


async def _pause_all(site: FaultSite) -> None:
    site.cluster.nats.pause()


async def _resume_all(site: FaultSite) -> None:
    site.cluster.nats.resume()


async def _delete_stream(site: FaultSite) -> None:
    await site.cluster.nats.call_jetstream(f"STREAM.DELETE.{STREAM}")


async def _delete_consumers(site: FaultSite) -> None:
    for durable in DURABLES:
        await site.cluster.nats.call_jetstream(f"CONSUMER.DELETE.{STREAM}.{durable.name}")


async def _kill_leader(site: FaultSite) -> None:
    await (await _find_leader(site)).kill()


async def _pause_leader(site: FaultSite) -> None:
    (await _find_leader(site)).pause()


async def _wipe_follower(site: FaultSite) -> None:
    """It loses its data, as with a new emptyDir, and gets them from the others."""
    leader = await _find_leader(site)
    await next(server for server in site.cluster.nats.servers if server is not leader).wipe()


async def _fill_disks(site: FaultSite) -> None:
    site.cluster.nats.fill()


async def _empty_disks(site: FaultSite) -> None:
    """A server that has failed to write stays without its stream until it is restarted."""
    site.cluster.nats.make_room()
    for _ in range(_PROBES):
        await asyncio.sleep(_PROBE_SECONDS)
        await site.cluster.nats.restart_unhealthy()


async def _rotate_keys(site: FaultSite) -> None:
    """Replace the keys of all services; their connections end, and they read the new ones.

    Certificates of servers are renewed every 30 s in each run with keys.
    """
    site.cluster.rotate_nats_keys()


async def _find_leader(site: FaultSite) -> NatsServer:
    found: list[NatsServer] = []

    async def find() -> None:
        found.append(await site.cluster.nats.find_leader())

    await persist("find the leader of the stream", find)  # another fault may delay an election
    return found[0]


NATS_FAULTS: Final[Sequence[Fault]] = (
    Fault(name="nats-killed", target="nats", inject=_kill_all, heal=_restart_stopped),
    Fault(name="nats-paused", target="nats", inject=_pause_all, heal=_resume_all),
    Fault(name="nats-wiped", target="nats", inject=_wipe_all, heal=heal_nothing, hold_seconds=_MOMENT),
    Fault(name="nats-disk-full", target="nats", inject=_fill_disks, heal=_empty_disks),
    Fault(
        name="stream-deleted",
        target="nats",
        inject=_delete_stream,
        heal=heal_nothing,
        hold_seconds=_MOMENT,
        modes=SINGLE_SERVER_MODES,  # no key may delete it
    ),
    Fault(
        name="consumers-deleted",
        target="nats",
        inject=_delete_consumers,
        heal=heal_nothing,
        hold_seconds=_MOMENT,
        modes=SINGLE_SERVER_MODES,  # only the watcher's key may delete them
    ),
    _cluster_fault(name="nats-leader-killed", inject=_kill_leader, heal=_restart_stopped),
    _cluster_fault(name="nats-leader-paused", inject=_pause_leader, heal=_resume_all),
    _cluster_fault(
        name="nats-follower-wiped", inject=_wipe_follower, heal=heal_nothing, hold_seconds=_MOMENT
    ),
    Fault(
        name="nats-credentials-rotated",
        target="nats-credentials",
        inject=_rotate_keys,
        heal=_rotate_keys,
        hold_seconds=_ROTATION_SECONDS,
        modes=CLUSTERED_MODES,
    ),
)
