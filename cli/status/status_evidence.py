"""The evidence for `status`: each part, or the reason why it is unavailable. Pure."""

from datetime import datetime

import msgspec

from cli.inside.flow_snapshot import CertificateSnapshot, FlowSnapshot, FlowUnavailable
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.pods import Pod
from services.ipam.pages import StoredPage


class KubeUnavailable(msgspec.Struct, frozen=True):
    """A part that could not be read from Kubernetes, with the reason."""

    reason: str


class LeaseSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The watcher Lease. `renewed_at` is by the clock of its holder."""

    holder: str  # "" = no holder
    renewed_at: datetime | None = None
    duration_seconds: int = 15


class ClaimsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of ipam before and after the Nodes were listed."""

    before: tuple[StoredPage, ...]
    pages: tuple[StoredPage, ...]


class StatusEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered. `lease` is None if there is no Lease."""

    at: datetime
    namespace: str = "kube-system"
    nodes: tuple[Node, ...] = ()
    requests: tuple[SigningRequest, ...] | KubeUnavailable = ()
    lease: LeaseSnapshot | KubeUnavailable | None = None
    pods: tuple[Pod, ...] | KubeUnavailable = ()
    claims: ClaimsSnapshot | KubeUnavailable = ClaimsSnapshot(before=(), pages=())
    flow: FlowSnapshot | FlowUnavailable
    certificates: tuple[CertificateSnapshot, ...] = ()  # certificates that NATS does not report

    @property
    def is_all_in_one(self) -> bool:
        """Whether all services run in one process, which publishes no visible messages."""
        return isinstance(self.flow, FlowUnavailable) and self.flow.is_all_in_one

    @property
    def flow_snapshot(self) -> FlowSnapshot | None:
        """The data from NATS, or None if it was not available."""
        return self.flow if isinstance(self.flow, FlowSnapshot) else None
