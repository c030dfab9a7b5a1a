"""`python -m libs.testbed.compose.nodes`: NODES kubelets that join, request certificates and send heartbeats.

It creates the file READY when every node is usable, and exits with 1 if that takes too long.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from libs.testbed.compose.addresses import FOLDER, Admin, read_fleet
from libs.testbed.kubelet_node import UNINITIALIZED
from libs.testbed.kubelets import KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.signing_requests import CSRS, read_outcome

READY: Final = Path("/tmp/all-nodes-are-ready")  # noqa: S108 - in the container; its health check reads it
_TIMEOUT_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.25
_HEARTBEAT_SECONDS: Final = 10.0


async def run_nodes(kubelets: KubeletFleet, joining: list[SimKubelet]) -> None:
    """Join, report when all are usable, and send heartbeats until cancelled.

    Raises RequestRejected or TimeoutError.
    """
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(_join_node(kubelets, kubelet)) for kubelet in joining]
    print(f"nodes: {len(joining)} joined after {time.monotonic() - begun:.2f} s", flush=True)
    async with kubelets.keep_heartbeats(*(each.name for each in joining), every_seconds=_HEARTBEAT_SECONDS):
        await _wait_until_usable(
            kubelets, {task.result(): each.name for task, each in zip(requests, joining, strict=True)}
        )
        print(f"nodes: all {len(joining)} usable after {time.monotonic() - begun:.2f} s", flush=True)
        READY.touch()
        await asyncio.Event().wait()


async def _join_node(kubelets: KubeletFleet, kubelet: SimKubelet) -> str:
    """Join, and return the name of the certificate request."""
    try:
        await kubelets.join(kubelet)
    except RequestRejected as rejected:
        if rejected.response.status != HTTPStatus.CONFLICT:  # it joined before a restart of this container
            raise
        await kubelets.set_ready(kubelet.name)
    return await kubelets.request_certificate(kubelet)


async def _wait_until_usable(kubelets: KubeletFleet, requests: dict[str, str]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while missing := list_missing(
        await _list_objects(kubelets, "/api/v1/nodes"), await _list_objects(kubelets, CSRS), requests
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {_TIMEOUT_SECONDS:g} s: " + "; ".join(missing[:10]))
        await asyncio.sleep(_POLL_SECONDS)


async def _list_objects(kubelets: KubeletFleet, path: str) -> list[Any]:
    return list((await kubelets.send("GET", path))["items"])


def list_missing(
    nodes: Iterable[Mapping[str, Any]],
    requests: Iterable[Mapping[str, Any]],
    node_by_request: Mapping[str, str],
) -> list[str]:
    """One sentence per node that lacks something; `node_by_request` maps names of requests to nodes."""
    existing = {node["metadata"]["name"]: node for node in nodes}
    issued = {
        node_by_request.get(each["metadata"]["name"]) for each in requests if read_outcome(each).certificate
    }
    missing = []
    for name in node_by_request.values():
        lacks = [*_list_missing_of_node(existing.get(name)), *([] if name in issued else ["certificate"])]
        missing += [f"{name} lacks {', '.join(lacks)}"] if lacks else []
    return missing


def _list_missing_of_node(node: Mapping[str, Any] | None) -> list[str]:
    if node is None:
        return ["Node"]
    spec = node["spec"]
    tainted = any(taint["key"] == UNINITIALIZED["key"] for taint in spec.get("taints", ()))
    return [
        *(["initialization"] if tainted else []),
        *([] if "providerID" in spec else ["providerID"]),
        *([] if "podCIDRs" in spec else ["podCIDRs"]),
    ]


async def main() -> None:
    """Run until SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with KubeletFleet.start(Admin(FOLDER / "nodes")) as kubelets:
        await run_nodes(kubelets, [SimKubelet.of_machine(machine) for machine in read_fleet()])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        sys.exit(os.EX_OK)
    except (RequestRejected, TimeoutError) as error:
        sys.exit(f"nodes: {error}")
