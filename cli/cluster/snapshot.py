"""One snapshot of the cluster, which every command reads: each part, or why it is unavailable. Pure."""

from datetime import datetime
from typing import Final

import msgspec

from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_objects import CertificateSigningRequest
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.cluster.query import ClusterQuery
from cli.cluster.unavailable import NOT_QUERIED, Unavailable
from cli.inside.flow_snapshot import CertificateSnapshot, FlowSnapshot, FlowUnavailable
from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig, Ownership
from libs.common.contract.node import Node
from libs.common.kube.objects import ConfigMap

_PART_NAMES: Final = {
    "requests": "CSRs",
    "lease": "Lease",
    "pods": "pods of the chart",
    "claims": "pod CIDR claims",
    "events": "Events of the cluster",
    "config": "--cloud-config of the chart",
}


class ClaimPages(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of ipam before and after the Nodes were listed.

    If a claim is in `before` and its Node is not listed, the Node is deleted. If ipam allocated a podCIDR of
    a listed Node, its claim is in `after`.
    """

    before: tuple[ConfigMap, ...] = ()
    after: tuple[ConfigMap, ...] = ()


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A --cloud-config and its place, for messages."""

    text: str
    source: str


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster: the parts that a command has asked for."""

    at: datetime  # when it was read, by the API server's clock
    query: ClusterQuery = ClusterQuery()
    nodes: tuple[Node, ...] | Unavailable = NOT_QUERIED  # with their managedFields
    requests: tuple[CertificateSigningRequest, ...] | Unavailable = NOT_QUERIED  # for serving certificates
    lease: LeaseState | Unavailable = NOT_QUERIED  # that elects the watcher
    pods: tuple[Pod, ...] | Unavailable = NOT_QUERIED  # of the chart, including those of NATS
    events: tuple[KubeEvent, ...] | Unavailable = NOT_QUERIED  # about the whole cluster, newest first
    config: ConfigFile | Unavailable | None = NOT_QUERIED  # in the chart's ConfigMap
    claims: ClaimPages | Unavailable = NOT_QUERIED
    flow: FlowSnapshot | FlowUnavailable = FlowUnavailable(reason=NOT_QUERIED.reason)
    certificates: tuple[CertificateSnapshot, ...] = ()  # of services; those of NATS are in `flow`

    @property
    def unavailable_parts(self) -> tuple[str, ...]:
        """Return the parts that a command has asked for and that could not be read, with the reason."""
        return self.list_unavailable_parts(*_PART_NAMES)

    def list_unavailable_parts(self, *fields: str) -> tuple[str, ...]:
        """Return those of these parts that could not be read, with the reason."""
        parts = ((_PART_NAMES[field], getattr(self, field)) for field in fields)
        return tuple(
            f"{name}: {part.reason}"
            for name, part in parts
            if isinstance(part, Unavailable) and part is not NOT_QUERIED
        )

    @property
    def flow_problem(self) -> str:
        """Return why the flow could not be read; "" if it was, or if it has no messages to read."""
        if not isinstance(self.flow, FlowUnavailable) or self.is_all_in_one:
            return ""
        reason = self.flow.reason
        return reason if reason.startswith("NATS") else f"NATS: {reason}"

    @property
    def is_all_in_one(self) -> bool:
        """Whether all services run in one process, which publishes no visible messages."""
        return isinstance(self.flow, FlowUnavailable) and self.flow.is_all_in_one

    @property
    def cloud_config(self) -> CloudConfig:
        """Return the content of the file as far as it can be parsed; empty without a file."""
        if not isinstance(self.config, ConfigFile):
            return CloudConfig()
        try:
            return parse_cloud_config(self.config.text, self.config.source)
        except CloudConfigError as error:
            return error.read or CloudConfig()

    def get_ownership(self, controller: str) -> Ownership:
        """Return the Nodes of a controller by the file; all Nodes if it does not say."""
        return self.cloud_config.ownership.for_controller(controller)

    @property
    def flow_snapshot(self) -> FlowSnapshot | None:
        """The data from NATS, or None if it was not available."""
        return self.flow if isinstance(self.flow, FlowSnapshot) else None
