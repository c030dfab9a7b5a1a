"""Runs `talos-ccm` in a pod of a service, with the caller's permissions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from cli.cluster.chart_labels import CHART, COMPONENT, INSTANCE, NAME
from cli.cluster.credentials import AccessError, open_kube_client
from cli.cluster.kube_listing import list_all
from cli.cluster.pods import Pod, pod_resource
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.pod_exec import ExecResult, exec_in_pod

_SECONDS: Final = 30.0


class ClusterAccess(Protocol):
    """The kubeconfig and its context."""

    @property
    def kubeconfig(self) -> Path | None: ...
    @property
    def context(self) -> str: ...


class AllInOneError(AccessError):
    """All services run in one process: there is no pod per service, and no NATS."""


async def run_in_pod(
    service: str,
    arguments: tuple[str, ...],
    *,
    source: ClusterAccess,
    namespace: str = "kube-system",
    release: str = "",
) -> ExecResult:
    """Run `python -m cli ARGUMENTS` in a ready pod of the service and return its output.

    Raises AccessError with advice. `release` may be "" if there is only one.
    """
    kube = open_kube_client(source.kubeconfig, source.context, user_agent="talos-ccm-exec")
    try:
        pod = await find_ready_pod(kube, service, namespace, release)
        return await _run(kube, namespace, pod, service, arguments)
    finally:
        await kube.close()


async def find_ready_pod(kube: KubeApi, service: str, namespace: str, release: str) -> str:
    """Return the name of a ready pod. Raises AccessError."""
    try:
        there = await list_pods(kube, namespace, release)
    except Forbidden as error:
        raise AccessError(f"{error}: this requires permission to list pods in {namespace}") from error
    except KubeError as error:
        raise AccessError(f"the Kubernetes API request failed: {error}") from error
    return choose_pod(there, service, namespace, release)


async def list_pods(kube: KubeApi, namespace: str, release: str) -> list[Pod]:
    """Return all pods of the chart, including those of NATS. Raises KubeError."""
    return await list_all(kube, pod_resource(namespace, build_label_selector(release)))


def build_label_selector(release: str) -> Mapping[str, str]:
    """Return the labels of all pods of the chart; with a release, the chart's name is irrelevant."""
    return {INSTANCE: release} if release else {NAME: CHART}


def choose_pod(pods: Sequence[Pod], service: str, namespace: str, release: str) -> str:
    """Return the name of the pod to use. Raises AccessError with the reason if there is none."""
    where = f"in namespace {namespace}"
    releases = sorted({pod.metadata.labels.get(INSTANCE, "") for pod in pods})
    if len(releases) > 1:
        raise AccessError(
            f"{where} there are several releases ({', '.join(releases)}): select one with --release"
        )
    own = [pod for pod in pods if pod.metadata.labels.get(COMPONENT) == service and not pod.is_terminated]
    if ready := sorted(pod.name for pod in own if pod.is_ready):
        return ready[0]
    if own:
        why = "; ".join(f"{pod.name} {pod.why_not_ready}" for pod in own)
        raise AccessError(f"no pod of {service} is ready {where}: {why}")
    if any(COMPONENT not in pod.metadata.labels and NAME in pod.metadata.labels for pod in pods):
        raise AllInOneError("all services run in one process (a DaemonSet), without NATS")
    labels = ",".join(
        f"{key}={value}" for key, value in {**build_label_selector(release), COMPONENT: service}.items()
    )
    raise AccessError(
        f"no pod with the labels {labels} {where}: set --namespace and --release to those of the chart"
    )


async def _run(
    kube: KubeApi, namespace: str, pod: str, service: str, arguments: tuple[str, ...]
) -> ExecResult:
    try:
        return await exec_in_pod(
            kube,
            namespace=namespace,
            pod=pod,
            container=service,
            command=("python", "-m", "cli", *arguments),
            timeout_seconds=_SECONDS,
        )
    except Forbidden as error:
        raise AccessError(
            f"{error}: this requires the verbs get and create for pods/exec in {namespace}"
        ) from error
    except NotFound as error:
        raise AccessError(f"pod {pod} no longer exists, or its node does not answer: {error}") from error
    except KubeError as error:
        raise AccessError(f"cannot run a command in pod {namespace}/{pod}: {error}") from error
