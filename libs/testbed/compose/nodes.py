"""`python -m libs.testbed.compose.nodes`: NODES kubelets join, ask for their certificates, and keep beating.

When every node is usable, READY exists; nothing removes it. It ends with 1 if that takes too long.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from libs.testbed.compose.cluster import FOLDER, Admin, wanted_nodes
from libs.testbed.compose.fleet import fleet
from libs.testbed.compose.usable import what_is_missing
from libs.testbed.kubelets import Kubelet, Kubelets, Refused

READY: Final = Path("/tmp/all-nodes-are-ready")  # noqa: S108 - the container's own; its health check looks
_PATIENCE_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.25
_HEARTBEAT_SECONDS: Final = 10.0


async def live(kubelets: Kubelets, joining: list[Kubelet]) -> None:
    """Join, tell when all are usable, and beat for ever. Raises Refused or TimeoutError."""
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(_join(kubelets, kubelet)) for kubelet in joining]
    print(f"nodes: {len(joining)} joined after {time.monotonic() - begun:.2f} s", flush=True)
    async with kubelets.beating(*(each.name for each in joining), every_seconds=_HEARTBEAT_SECONDS):
        await _until_usable(
            kubelets, {task.result(): each.name for task, each in zip(requests, joining, strict=True)}
        )
        print(f"nodes: all {len(joining)} usable after {time.monotonic() - begun:.2f} s", flush=True)
        READY.touch()
        await asyncio.Event().wait()


async def _join(kubelets: Kubelets, kubelet: Kubelet) -> str:
    """The name of its request for a certificate."""
    try:
        await kubelets.join(kubelet)
    except Refused as refused:
        if refused.answer.status != HTTPStatus.CONFLICT:  # it has joined already, in an earlier life
            raise
        await kubelets.turn_ready(kubelet.name)
    return await kubelets.ask_for_certificate(kubelet)


async def _until_usable(kubelets: Kubelets, requests: dict[str, str]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while missing := what_is_missing(await _nodes(kubelets), await _requests(kubelets), requests):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {_PATIENCE_SECONDS:g} s: " + "; ".join(missing[:10]))
        await asyncio.sleep(_LOOK_SECONDS)


async def _nodes(kubelets: Kubelets) -> list[Any]:
    return list((await kubelets.request("GET", "/api/v1/nodes")).body["items"])


async def _requests(kubelets: Kubelets) -> list[Any]:
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    return list((await kubelets.request("GET", path)).body["items"])


async def main() -> None:
    """Until SIGTERM."""
    living = asyncio.current_task()
    assert living is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, living.cancel)
    async with Kubelets.start(Admin(FOLDER / "nodes")) as kubelets:
        await live(kubelets, [Kubelet.on(machine) for machine in fleet(wanted_nodes())])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        sys.exit(os.EX_OK)
    except (Refused, TimeoutError) as error:
        sys.exit(f"nodes: {error}")
