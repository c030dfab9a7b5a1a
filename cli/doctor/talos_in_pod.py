"""Asks metadata's own pod what its Talos credential is worth: by exec, or here, where that is mounted."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from cli.doctor.installation import Installation
from cli.doctor.objects import Pod
from cli.doctor.seen import Moment, NotSeen
from cli.doctor.talos_seen import TalosSeen, decoded
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.errors import Forbidden, KubeError
from libs.common.kube_api.pod_exec import exec_in_pod
from libs.common.node import Node
from libs.common.node_ips import InvalidNodeIP, parse_node_ips
from services.metadata.talos_api.talosconfig import SERVICE_ACCOUNT_FILE

_SECONDS: Final = 60.0
_MACHINES: Final = 3  # that are asked
_SAID: Final = 300


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What it says, and when by its clock."""

    talos: TalosSeen | NotSeen
    clock: Moment | NotSeen


async def talos_seen(
    kube: KubeApi, installation: Installation, pods: Sequence[Pod] | NotSeen, nodes: Sequence[Node]
) -> Told:
    """Why not is told, too."""
    arguments = _arguments(installation, nodes)
    if SERVICE_ACCOUNT_FILE.exists():
        from cli.doctor.inside_talos import look  # noqa: PLC0415 - loaded where it is of use

        asked = datetime.now(UTC)
        return _told(await look(tuple(arguments["--node-ip"]), "".join(arguments["--endpoints"])), asked)
    if isinstance(pods, NotSeen):
        return Told(talos=pods, clock=pods)
    pod = _pod(installation, pods)
    if isinstance(pod, NotSeen):
        return Told(talos=pod, clock=pod)
    words = [word for flag, values in arguments.items() for value in values for word in (flag, value)]
    return await _by_exec(kube, installation, pod, ("python", "-m", "cli", "inside", "talos", *words))


def _arguments(installation: Installation, nodes: Sequence[Node]) -> dict[str, list[str]]:
    process = installation.process_of("metadata")
    endpoints = process.container.last_said("talos-endpoints") if process else ""
    addresses = []
    for node in nodes:
        ips = parse_node_ips(node.provided_node_ip) if node.provided_node_ip else ()
        if not isinstance(ips, InvalidNodeIP) and ips:
            addresses.append(str(ips[0]))
    return {"--node-ip": addresses[:_MACHINES], "--endpoints": [endpoints] if endpoints else []}


def _pod(installation: Installation, pods: Sequence[Pod]) -> Pod | NotSeen:
    """One that runs; ready or not, since a bad credential is what makes it unready."""
    process = installation.process_of("metadata")
    name = f"{process.workload.name}-" if process else ""
    own = [pod for pod in pods if process and pod.name.startswith(name)]
    running = [pod for pod in own if pod.status.phase == "Running"]
    running.sort(key=lambda pod: not pod.ready)
    if not running:
        return NotSeen(why="no pod of metadata runs")
    return running[0]


async def _by_exec(kube: KubeApi, installation: Installation, pod: Pod, command: tuple[str, ...]) -> Told:
    process = installation.process_of("metadata")
    container = process.container.name if process else "metadata"
    asked = datetime.now(UTC)
    try:
        ran = await exec_in_pod(
            kube,
            namespace=installation.namespace,
            pod=pod.name,
            container=container,
            command=command,
            timeout_seconds=_SECONDS,
        )
    except Forbidden:
        right = f"create pods/exec --namespace {installation.namespace}"
        told = NotSeen(why=f"it takes the right to {right}", right=right)
        return Told(talos=told, clock=told)
    except KubeError as error:
        told = NotSeen(why=str(error))
        return Told(talos=told, clock=told)
    try:
        return _told(decoded(ran.stdout), asked)
    except ValueError as error:
        said = " ".join(ran.stderr.decode(errors="replace").split())[-_SAID:]
        told = NotSeen(why=f"it ended with status {ran.exit_status}, saying: {said or error}")
        return Told(talos=told, clock=told)


def _told(talos: TalosSeen, asked: datetime) -> Told:
    now = datetime.now(UTC)
    return Told(talos=talos, clock=Moment(said_from=talos.at, said_until=talos.at, asked=asked, answered=now))
