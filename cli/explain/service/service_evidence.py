"""What is known of a Service of type LoadBalancer, and the accounts that may have it. Pure."""

from datetime import datetime

import msgspec

from cli.cluster.balancer_accounts import AccountProcess
from cli.cluster.kube_events import EventSummary
from cli.cluster.lease_state import LeaseState
from cli.cluster.unavailable import NOT_QUERIED, Unavailable
from libs.common.contract.kube_service import KubeService
from libs.common.contract.node import Node


class ServiceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The Service as the API server has it now; other parts may be unavailable."""

    service: KubeService
    at: datetime
    accounts: tuple[AccountProcess, ...] | Unavailable
    events: tuple[EventSummary, ...] | Unavailable = NOT_QUERIED  # newest first
    nodes: tuple[Node, ...] | Unavailable = NOT_QUERIED
    lease: LeaseState | Unavailable = NOT_QUERIED  # of the account's process
