"""The Kubernetes objects around a Node: Events, watcher Lease, certificate request, pods, config. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from cli.cluster.certificate_signing_request import CertificateSigningRequest, find_newest
from cli.cluster.kube_events import EventSummary
from cli.cluster.kube_objects import COMPONENT
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.cluster.snapshot import ClusterSnapshot, ConfigFile
from cli.cluster.unavailable import Unavailable
from libs.common.contract.node import Node
from libs.common.contract.services import SERVICES


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """The objects around one Node; None for an object that was not read or does not exist."""

    events: tuple[EventSummary, ...] = ()  # on the Node, newest first
    cluster_events: tuple[EventSummary, ...] = ()  # on the whole cluster, newest first
    # the kubelet's newest request for a serving certificate
    request: CertificateSigningRequest | None = None
    lease: LeaseState | None = None  # that elects the watcher
    pods: tuple[Pod, ...] = ()
    file: str = ""  # --cloud-config of the chart, and its place
    file_source: str = ""
    unavailable_parts: tuple[str, ...] = ()  # parts that could not be read, with the reason

    def find_event(self, *reasons: str) -> EventSummary | None:
        """Return the newest Event with one of these reasons."""
        return next((told for told in self.events if told.reason in reasons), None)

    def describe_down_pods(self, *services: str) -> str:
        """Return the unready pods of these services if none is ready: in a rollout, other replicas work."""
        own = (pod for pod in self.pods if pod.metadata.labels.get(COMPONENT, "") in ("", *services))
        return "" if any(pod.is_ready for pod in own) else self.append_unready_pods("", *services)

    def append_unready_pods(self, text: str, *services: str) -> str:
        """Return the text, followed by the unready pods of these services."""
        return "; ".join(filter(None, (text, *self._list_unready_pods(services))))

    def _list_unready_pods(self, services: Sequence[str]) -> Iterator[str]:
        """Yield the unready pods; a service without any pod is reported, too, if other services have pods."""
        named = {pod.metadata.labels.get(COMPONENT, ""): pod for pod in self.pods}
        for wiring in SERVICES:  # without NATS, which may run elsewhere
            if wiring.service in services and any(named) and wiring.service not in named:
                yield f"{wiring.service} has no pod"
        for pod in self.pods:
            service = pod.metadata.labels.get(COMPONENT, "")  # "": the pod runs all services
            if service in ("", *services) and not pod.is_terminated and pod.why_not_ready:
                yield f"pod {pod.name} is not ready: {pod.why_not_ready}"


def make_context(
    snapshot: ClusterSnapshot, node: Node, events: tuple[EventSummary, ...] | Unavailable
) -> NodeContext:
    """Return the parts of the snapshot around one Node. `events` are those about the Node."""
    parts = {
        "Events of the Node": events,
        "Events of the cluster": snapshot.events,
        "certificate signing requests": snapshot.requests,
        "Lease": snapshot.lease,
        "pods of the chart": snapshot.pods,
        "--cloud-config of the chart": snapshot.config,
    }
    requests = () if isinstance(snapshot.requests, Unavailable) else snapshot.requests
    file = snapshot.config if isinstance(snapshot.config, ConfigFile) else ConfigFile(text="", source="")
    return NodeContext(
        events=() if isinstance(events, Unavailable) else events,
        cluster_events=() if isinstance(snapshot.events, Unavailable) else snapshot.events,
        request=find_newest(one for one in requests if one.node_name == node.name),
        lease=None if isinstance(snapshot.lease, Unavailable) else snapshot.lease,
        pods=() if isinstance(snapshot.pods, Unavailable) else snapshot.pods,
        file=file.text,
        file_source=file.source,
        unavailable_parts=tuple(
            f"{name}: {part.reason}" for name, part in parts.items() if isinstance(part, Unavailable)
        ),
    )
