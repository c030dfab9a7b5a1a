"""Runs `talos-ccm inside` in a pod of a service, with the caller's permissions."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from cli.cluster.access import AccessError
from cli.cluster.kube_objects import CHART, COMPONENT, INSTANCE, NAME
from cli.cluster.kube_reader import own_connections
from cli.cluster.pods import Pod
from cli.cluster.unavailable import Unavailable
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
