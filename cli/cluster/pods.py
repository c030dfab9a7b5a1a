"""Pods: their state, whether they are ready, and why not."""

from collections.abc import Mapping

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.kube.objects import Resource, namespaced_resource


class _Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Waiting(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    reason: str = ""
    exit_code: int = 0


class _State(msgspec.Struct, frozen=True, kw_only=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One element of status.containerStatuses."""

    name: str
    ready: bool = False
    restart_count: int = 0
    state: _State = _State()
    last_state: _State = _State()


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[_Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A Pod as the API server encodes it."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_ready(self) -> bool:
        """Whether the pod is ready and not being deleted."""
        ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())
        return ready and self.metadata.deletion_timestamp is None

    @property
    def is_terminated(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def restart_count(self) -> int:
        """The sum over its containers, without init containers."""
        return sum(one.restart_count for one in self.status.container_statuses or ())

    @property
    def why_not_ready(self) -> str:
        """The reason in the words of Kubernetes; "" if the pod is ready."""
        if self.is_ready:
            return ""
        if self.metadata.deletion_timestamp is not None:
            return "is being deleted"
        return self._of_containers() or self._of_conditions() or self.status.phase or "has no status yet"

    def _of_containers(self) -> str:
        statuses = (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))
        for one in statuses:
            waiting, ended = one.state.waiting, one.last_state.terminated
            if waiting and waiting.reason not in ("", "PodInitializing", "ContainerCreating"):
                last = f", ended with status {ended.exit_code} before" if ended else ""
                return f"{one.name}: {waiting.reason}{last}"
        return ""

    def _of_conditions(self) -> str:
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready"):
            for one in self.status.conditions or ():
                if one.type == kind and one.status != "True" and (one.reason or one.message):
                    return ": ".join(part for part in (one.reason, one.message) if part)
        return ""


def pod_resource(namespace: str, labels: Mapping[str, str]) -> Resource[Pod]:
    """Return the kind restricted to the pods of a namespace with all these labels."""
    return namespaced_resource("pods", Pod, namespace, labels, page_size=100)
