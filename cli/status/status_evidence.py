"""The evidence for `status`: each part, or the reason why it is unavailable. Pure."""

from datetime import datetime

import msgspec

from cli.cluster.kept_keys import KeptKeyReport
from cli.cluster.kube_events import EventSummary
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_snapshot import CertificateSnapshot, FlowSnapshot, FlowUnavailable
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from services.ipam.pages import StoredPage


class ClaimsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of ipam before and after the Nodes were listed."""

    before: tuple[StoredPage, ...]
    pages: tuple[StoredPage, ...]


class StatusEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered."""

    at: datetime
    namespace: str = "kube-system"
    nodes: tuple[Node, ...] = ()
    kept_keys: tuple[KeptKeyReport, ...] = ()
    config_file: str | Unavailable = ""  # the chart's --cloud-config
    requests: tuple[SigningRequest, ...] | Unavailable = ()
    lease: LeaseState | Unavailable = LeaseState()
    pods: tuple[Pod, ...] | Unavailable = ()
    claims: ClaimsSnapshot | Unavailable = ClaimsSnapshot(before=(), pages=())
    flow: FlowSnapshot | FlowUnavailable
    events: tuple[EventSummary, ...] | Unavailable = ()  # about the whole cluster, newest first
    certificates: tuple[CertificateSnapshot, ...] = ()  # certificates that NATS does not report

    @property
    def is_all_in_one(self) -> bool:
        """Whether all services run in one process, which publishes no visible messages."""
        return isinstance(self.flow, FlowUnavailable) and self.flow.is_all_in_one

    @property
    def flow_snapshot(self) -> FlowSnapshot | None:
        """The data from NATS, or None if it was not available."""
        return self.flow if isinstance(self.flow, FlowSnapshot) else None
