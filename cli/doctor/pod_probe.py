"""Probes the Talos credential in a pod of metadata by exec, or in this process if it runs in a pod."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from cli.cluster.installation import Installation
from cli.cluster.pods import Pod
from cli.cluster.unavailable import RemoteClock, Unavailable
from cli.doctor.talos_credential_report import TalosCredentialReport, decode_report
from libs.common.contract.ip_addresses import InvalidNodeIP, parse_node_ips
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError
from libs.common.kube.pod_exec import exec_in_pod
from libs.talos.talosconfig import SERVICE_ACCOUNT_FILE

_SECONDS: Final = 60.0
_MAX_MACHINES: Final = 3  # limit for queried machines
_MAX_OUTPUT: Final = 300


class PodProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The credential report, and the pod's clock."""

    talos: TalosCredentialReport | Unavailable
    clock: RemoteClock | Unavailable


async def probe_in_pod(
    kube: KubeApi, installation: Installation, pods: Sequence[Pod] | Unavailable, nodes: Sequence[Node]
) -> PodProbe:
    """Return the probe; each part may be unavailable, with the reason."""
    arguments = _build_arguments(installation, nodes)
    if SERVICE_ACCOUNT_FILE.exists():
        from cli.doctor.talos_credential_probe import probe_credential  # noqa: PLC0415 - loaded only if needed

        asked = datetime.now(UTC)
        return _make_pod_probe(
            await probe_credential(tuple(arguments["--node-ip"]), "".join(arguments["--endpoints"])), asked
        )
    if isinstance(pods, Unavailable):
        return PodProbe(talos=pods, clock=pods)
    pod = _choose_pod(installation, pods)
    if isinstance(pod, Unavailable):
        return PodProbe(talos=pod, clock=pod)
    words = [word for flag, values in arguments.items() for value in values for word in (flag, value)]
    return await _run_probe(kube, installation, pod, ("python", "-m", "cli", "inside", "talos", *words))


def _build_arguments(installation: Installation, nodes: Sequence[Node]) -> dict[str, list[str]]:
    process = installation.find_process("metadata")
    endpoints = process.container.last_flag_value("talos-endpoints") if process else ""
    addresses = []
    for node in nodes:
        ips = parse_node_ips(node.provided_node_ip) if node.provided_node_ip else ()
        if not isinstance(ips, InvalidNodeIP) and ips:
            addresses.append(str(ips[0]))
    return {"--node-ip": addresses[:_MAX_MACHINES], "--endpoints": [endpoints] if endpoints else []}


def _choose_pod(installation: Installation, pods: Sequence[Pod]) -> Pod | Unavailable:
    """Return a running pod, ready or not: an invalid credential makes it unready."""
    process = installation.find_process("metadata")
    name = f"{process.workload.name}-" if process else ""
    own = [pod for pod in pods if process and pod.name.startswith(name)]
    running = [pod for pod in own if pod.status.phase == "Running"]
    running.sort(key=lambda pod: not pod.is_ready)
    if not running:
        return Unavailable(reason="no pod of metadata is running")
    return running[0]


async def _run_probe(
    kube: KubeApi, installation: Installation, pod: Pod, command: tuple[str, ...]
) -> PodProbe:
    process = installation.find_process("metadata")
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
        told = Unavailable(reason=f"this requires permission to {right}", required_permission=right)
        return PodProbe(talos=told, clock=told)
    except KubeError as error:
        told = Unavailable(reason=str(error))
        return PodProbe(talos=told, clock=told)
    try:
        return _make_pod_probe(decode_report(ran.stdout), asked)
    except ValueError as error:
        said = " ".join(ran.stderr.decode(errors="replace").split())[-_MAX_OUTPUT:]
        told = Unavailable(reason=f"it exited with status {ran.exit_status}: {said or error}")
        return PodProbe(talos=told, clock=told)


def _make_pod_probe(talos: TalosCredentialReport, asked: datetime) -> PodProbe:
    now = datetime.now(UTC)
    return PodProbe(
        talos=talos,
        clock=RemoteClock(earliest=talos.at, latest=talos.at, requested_at=asked, responded_at=now),
    )
