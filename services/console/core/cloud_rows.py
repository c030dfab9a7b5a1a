"""What the page shows of cloud accounts and of the load balancers of Services. Pure."""

from typing import Literal

import msgspec

from libs.common.contract.events import AccountReport
from libs.common.contract.kube_service import KubeService

BalancerState = Literal["ready", "waiting", "blocked", "deleting"]  # waiting for an address


class AccountRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cloud account. Times are seconds since 1970."""

    report: AccountReport
    reported_at: float
    round_at: float  # end of the last query about an instance; 0 = the stream has none


class BalancerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The load balancer of a Service, as its status in Kubernetes says."""

    name: str  # with the namespace
    state: BalancerState
    addresses: tuple[str, ...] = ()
    reason: str = ""


def build_balancer_row(service: KubeService) -> BalancerRow:
    """Return the row of a Service."""
    addresses = tuple(each.ip or each.hostname for each in service.status.load_balancer.ingress)
    reason = service.blocked_condition.message if service.blocked_condition is not None else ""
    state: BalancerState = "blocked" if reason else "ready" if addresses else "waiting"
    if service.metadata.deletion_timestamp is not None:
        state = "deleting"
    name = f"{service.metadata.namespace}/{service.name}"
    return BalancerRow(name=name, state=state, addresses=addresses, reason=reason)
