"""What was gathered of the flow: each part as it was told, or why it was not. Pure."""

from datetime import datetime

import msgspec

from cli.inside.seen import CertificateSeen, FlowSeen, Unknown
from libs.common.kube_api.pods import Pod
from libs.common.node import Node
from libs.common.signing_request import SigningRequest
from services.ipam.pages import StoredPage


class Untold(msgspec.Struct, frozen=True):
    """Kubernetes does not tell a part of it."""

    reason: str


class LeaseSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The watchers' Lease; times are its holder's and ours."""

    holder: str  # "" = nobody
    renewed_at: datetime | None = None
    duration_seconds: int = 15


class ClaimsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """ipam's pages before the Nodes were listed, and after."""

    before: tuple[StoredPage, ...]
    pages: tuple[StoredPage, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. A Lease that is None does not exist."""

    at: datetime
    namespace: str = "kube-system"
    nodes: tuple[Node, ...] = ()
    requests: tuple[SigningRequest, ...] | Untold = ()
    lease: LeaseSeen | Untold | None = None
    pods: tuple[Pod, ...] | Untold = ()
    claims: ClaimsSeen | Untold = ClaimsSeen(before=(), pages=())
    flow: FlowSeen | Unknown
    certificates: tuple[CertificateSeen, ...] = ()  # of others than NATS

    @property
    def all_in_one(self) -> bool:
        """Whether all services run in one process, so that there are no messages to see."""
        return isinstance(self.flow, Unknown) and self.flow.all_in_one

    @property
    def flow_seen(self) -> FlowSeen | None:
        """What NATS told."""
        return self.flow if isinstance(self.flow, FlowSeen) else None
