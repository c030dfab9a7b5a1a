"""What was gathered of the flow: each part as it was told, or why it was not. Pure."""

from datetime import datetime

import msgspec

from cli.inside.flow_snapshot import CertificateSnapshot, FlowSnapshot, FlowUnavailable
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.pods import Pod
from services.ipam.pages import StoredPage


class KubeUnavailable(msgspec.Struct, frozen=True):
    """Kubernetes does not tell a part of it."""

    reason: str


class LeaseSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The watchers' Lease; times are its holder's and ours."""

    holder: str  # "" = nobody
    renewed_at: datetime | None = None
    duration_seconds: int = 15


class ClaimsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """ipam's pages before the Nodes were listed, and after."""

    before: tuple[StoredPage, ...]
    pages: tuple[StoredPage, ...]


class StatusEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. A Lease that is None does not exist."""

    at: datetime
    namespace: str = "kube-system"
    nodes: tuple[Node, ...] = ()
    requests: tuple[SigningRequest, ...] | KubeUnavailable = ()
    lease: LeaseSnapshot | KubeUnavailable | None = None
    pods: tuple[Pod, ...] | KubeUnavailable = ()
    claims: ClaimsSnapshot | KubeUnavailable = ClaimsSnapshot(before=(), pages=())
    flow: FlowSnapshot | FlowUnavailable
    certificates: tuple[CertificateSnapshot, ...] = ()  # of others than NATS

    @property
    def is_all_in_one(self) -> bool:
        """Whether all services run in one process, so that there are no messages to see."""
        return isinstance(self.flow, FlowUnavailable) and self.flow.is_all_in_one

    @property
    def flow_snapshot(self) -> FlowSnapshot | None:
        """What NATS told."""
        return self.flow if isinstance(self.flow, FlowSnapshot) else None
