"""The Kubernetes objects around a Node: Events, watcher Lease, certificate request, pods, config. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from cli.cluster.certificate_signing_request import CertificateSigningRequest
from cli.cluster.chart_labels import COMPONENT
from cli.cluster.kube_events import EventSummary
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
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
