"""Pods: their state, whether they are ready, and why not."""

from collections.abc import Iterator, Sequence

import msgspec

from cli.cluster.kube_objects import COMPONENT, Condition, PodSpec
from libs.common.contract.node import ApiObject
from libs.common.contract.services import SERVICES


class WaitingState(msgspec.Struct, frozen=True, kw_only=True):
    """Why a container is waiting."""

    reason: str = ""
    message: str = ""


class TerminatedState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a container ended."""

    reason: str = ""
    exit_code: int = 0


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a container; with neither field set, it runs."""

    waiting: WaitingState | None = None
    terminated: TerminatedState | None = None


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One element of status.containerStatuses."""

    name: str
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()  # without init containers
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiObject, frozen=True, kw_only=True):
    """A Pod as the API server encodes it."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """Whether the pod is ready and not being deleted."""
        return self.has_condition("Ready") and self.metadata.deletion_timestamp is None

    @property
    def all_containers(self) -> tuple[ContainerStatus, ...]:
        """The status of each container, init containers first."""
        return (*self.status.init_container_statuses, *self.status.container_statuses)

    def has_condition(self, kind: str) -> bool:
        """Whether the pod has this condition with the status True."""
        return any(one.type == kind and one.status == "True" for one in self.status.conditions)

    @property
    def is_terminated(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def restart_count(self) -> int:
        """The sum over its containers, without init containers."""
        return sum(one.restart_count for one in self.status.container_statuses)

    @property
    def why_not_ready(self) -> str:
        """The reason in the words of Kubernetes; "" if the pod is ready."""
        if self.is_ready:
            return ""
        if self.metadata.deletion_timestamp is not None:
            return "is being deleted"
        return self._of_containers() or self._of_conditions() or self.status.phase or "has no status yet"

    def _of_containers(self) -> str:
        for one in self.all_containers:
            waiting, ended = one.state.waiting, one.last_state.terminated
            if waiting and waiting.reason not in ("", "PodInitializing", "ContainerCreating"):
                last = f", ended with status {ended.exit_code} before" if ended else ""
                return f"{one.name}: {waiting.reason}{last}"
        return ""

    def _of_conditions(self) -> str:
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready"):
            for one in self.status.conditions:
                if one.type == kind and one.status != "True" and (one.reason or one.message):
                    return ": ".join(part for part in (one.reason, one.message) if part)
        return ""


def list_unready_pods(pods: Sequence[Pod], *services: str) -> Iterator[str]:
    """Yield the unready pods of these services; also a service without any pod if others have pods."""
    named = {pod.metadata.labels.get(COMPONENT, ""): pod for pod in pods}
    for wiring in SERVICES:  # without NATS, which may run elsewhere
        if wiring.service in services and any(named) and wiring.service not in named:
            yield f"{wiring.service} has no pod"
    for pod in pods:
        service = pod.metadata.labels.get(COMPONENT, "")  # "": the pod runs all services
        if service in ("", *services) and not pod.is_terminated and pod.why_not_ready:
            yield f"pod {pod.name} is not ready: {pod.why_not_ready}"
