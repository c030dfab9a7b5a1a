"""Runs `talos-ccm inside` in a pod of a service, with the caller's permissions, or queries NATS directly."""

import os
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from cli.cluster.access import AccessError
from cli.cluster.kube_objects import CHART, COMPONENT, INSTANCE, NAME
from cli.cluster.kube_reader import own_connections
from cli.cluster.pods import Pod
from cli.cluster.query import ClusterQuery, resolve_nats_access
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_snapshot import (
    FLOW_DECODER,
    CertificateSnapshot,
    FlowObject,
    FlowSnapshot,
    FlowUnavailable,
)
from cli.inside.talos_credential import REPORT_DECODER
from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.pod_exec import exec_in_pod

_MAX_OUTPUT: Final = 500  # maximum characters of a failed command's output

T = TypeVar("T")


class AllInOneError(AccessError):
    """All services run in one process: there is no pod per service, and no NATS."""


def build_label_selector(release: str) -> Mapping[str, str]:
    """Return the labels of all pods of the chart; with a release, the chart's name is irrelevant."""
    return {INSTANCE: release} if release else {NAME: CHART}


def choose_pod(pods: Sequence[Pod] | Unavailable, service: str, namespace: str, release: str) -> str:
    """Return the name of a ready pod of the service. Raises AccessError with the reason if there is none."""
    if isinstance(pods, Unavailable):
        if pods.required_permission:
            raise AccessError(f"{pods.reason}: this requires permission to list pods in {namespace}")
        raise AccessError(f"the Kubernetes API request failed: {pods.reason}")
    where, selector = f"in namespace {namespace}", build_label_selector(release)
    ours = [pod for pod in pods if selector.items() <= pod.metadata.labels.items()]
    releases = sorted({pod.metadata.labels.get(INSTANCE, "") for pod in ours})
    if len(releases) > 1:
        raise AccessError(
            f"{where} there are several releases ({', '.join(releases)}): select one with --release"
        )
    own = [pod for pod in ours if pod.metadata.labels.get(COMPONENT) == service and not pod.is_terminated]
    if ready := sorted(pod.name for pod in own if pod.is_ready):
        return ready[0]
    if own:
        why = "; ".join(f"{pod.name} {pod.why_not_ready}" for pod in own)
        raise AccessError(f"no pod of {service} is ready {where}: {why}")
    if any(COMPONENT not in pod.metadata.labels and NAME in pod.metadata.labels for pod in ours):
        raise AllInOneError("all services run in one process (a DaemonSet), without NATS")
    labels = ",".join(f"{key}={value}" for key, value in {**selector, COMPONENT: service}.items())
    raise AccessError(
        f"no pod with the labels {labels} {where}: set --namespace and --release to those of the chart"
    )


async def run_inside(
    kube: KubeApi,
    namespace: str,
    pod: str,
    container: str,
    arguments: tuple[str, ...],
    *,
    decoder: msgspec.json.Decoder[T],
    timeout_seconds: float = 30.0,
) -> T | Unavailable:
    """Run `talos-ccm inside ARGUMENTS` in the pod; return its decoded output, or why there is none."""
    try:
        async with own_connections(kube, 1) as own:
            ran = await exec_in_pod(
                own,
                namespace=namespace,
                pod=pod,
                container=container,
                command=("python", "-m", "cli", "inside", *arguments),
                timeout_seconds=timeout_seconds,
            )
    except Forbidden as error:
        return Unavailable(
            reason=f"{error}: this requires the verbs get and create for pods/exec in {namespace}",
            required_permission=f"create pods/exec --namespace {namespace}",
        )
    except NotFound as error:
        return Unavailable(reason=f"pod {pod} no longer exists, or its node does not answer: {error}")
    except KubeError as error:
        return Unavailable(reason=f"cannot run a command in pod {namespace}/{pod}: {error}")
    try:
        return decoder.decode(ran.stdout)
    except JSON_ERRORS as error:
        output = " ".join(ran.stderr.decode(errors="replace").split())[-_MAX_OUTPUT:]
        why = f"it exited with status {ran.exit_status}: {output or error}"
        return Unavailable(reason=f"`talos-ccm inside {arguments[0]}` failed in the {container}'s pod: {why}")


async def query_flow(
    kube: KubeApi,
    query: ClusterQuery,
    pods: Sequence[Pod] | Unavailable,
    objects: Sequence[FlowObject] = (),
) -> FlowSnapshot | FlowUnavailable:
    """Return the flow and the last messages about the objects, or why the flow is unavailable.

    `pods` are those of the chart.
    """
    nats = resolve_nats_access(query, os.environ)
    if nats is not None:
        from cli.inside.flow_reader import query_nats  # noqa: PLC0415 - loaded only if needed

        return await query_nats(nats, objects)
    try:
        pod = choose_pod(pods, "watcher", query.namespace, query.release)
    except AccessError as error:
        return FlowUnavailable(reason=str(error), is_all_in_one=isinstance(error, AllInOneError))
    arguments = ("flow", *(word for each in objects for word in ("--object", each.kind, each.name)))
    found = await run_inside(kube, query.namespace, pod, "watcher", arguments, decoder=FLOW_DECODER)
    return FlowUnavailable(reason=found.reason) if isinstance(found, Unavailable) else found


async def fetch_certificates(
    kube: KubeApi, query: ClusterQuery, pods: Sequence[Pod] | Unavailable
) -> tuple[CertificateSnapshot, ...]:
    """Return metadata's Talos certificate by exec in its pod; () if it is unavailable."""
    if resolve_nats_access(query, os.environ) is not None:
        return ()  # there are no pods to query, or this process may not exec
    try:
        pod = choose_pod(pods, "metadata", query.namespace, query.release)
    except AccessError:
        return ()
    arguments = ("talos", "--offline")
    found = await run_inside(kube, query.namespace, pod, "metadata", arguments, decoder=REPORT_DECODER)
    if isinstance(found, Unavailable) or found.not_after is None:
        return ()
    return (CertificateSnapshot(name="talos", expires_at=found.not_after),)
