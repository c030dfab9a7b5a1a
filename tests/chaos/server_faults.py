"""Faults of kube-apiserver and etcd."""

from collections.abc import Sequence
from typing import Final

from tests.chaos.fault import Fault, FaultSite


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
    Fault(name="apiserver-killed", target="apiserver", inject=_kill_apiserver, heal=_restart_apiserver),
    Fault(name="apiserver-paused", target="apiserver", inject=_pause_apiserver, heal=_resume_apiserver),
    Fault(name="etcd-paused", target="apiserver", inject=_pause_etcd, heal=_resume_etcd),
)
