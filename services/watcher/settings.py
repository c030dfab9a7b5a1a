"""Settings of the watcher."""

from typing import Annotated

import msgspec

from libs.common.bus.stream_limits import MAX_RESYNC_INTERVAL
from libs.common.contract.controllers import CSR_APPROVAL, NODE_ROUTE, SERVICE_LB, is_controller_selected
from libs.common.contract.services import LEASE_NAMESPACE as OUR_NAMESPACE
from libs.common.contract.services import WATCHER_LEASE_NAME as OUR_LEASE
from libs.common.settings import flags
from libs.common.settings.lease_times import validate_lease_times


class WatcherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the Lease, the resync and the concurrency."""

    leader_elect: Annotated[bool, flags.LEADER_ELECT] = True
    lease_name: Annotated[str, flags.LEASE_NAME_FLAG] = OUR_LEASE
    lease_namespace: Annotated[str, flags.LEASE_NAMESPACE_FLAG] = OUR_NAMESPACE
    lease_duration_seconds: Annotated[float, flags.LEASE_DURATION] = 15.0
    renew_deadline_seconds: Annotated[float, flags.RENEW_DEADLINE] = 10.0
    retry_period_seconds: Annotated[float, flags.RETRY_PERIOD] = 2.0
    resync_seconds: Annotated[float, flags.NODE_STATUS_UPDATE_FREQUENCY] = 300.0
    controllers: Annotated[tuple[str, ...], flags.CONTROLLERS] = ("*",)
    observe_only: Annotated[bool, flags.OBSERVE_ONLY] = False
    in_flight: Annotated[
        int,
        flags.Flag(
            "watcher-in-flight",
            "Objects of one kind published at the same time.",
            group="Nodes",
            at_least=1,
            at_most=1000,
        ),
    ] = 64

    @property
    def republish_seconds(self) -> float:
        """The interval in which every object is published again: before the last snapshot expires."""
        return min(self.resync_seconds, MAX_RESYNC_INTERVAL.total_seconds())

    @property
    def uses_lease(self) -> bool:
        """Whether a Lease elects the leader; an observe-only watcher writes nothing to Kubernetes."""
        return self.leader_elect and not self.observe_only

    @property
    def watches_requests(self) -> bool:
        """Whether the watcher watches CSRs: only if the approval controller that needs them is selected."""
        return is_controller_selected(self.controllers, CSR_APPROVAL)

    @property
    def watches_services(self) -> bool:
        """Whether the watcher watches Services: only if the controller of load balancers is selected."""
        return is_controller_selected(self.controllers, SERVICE_LB)

    @property
    def needs_network_condition(self) -> bool:
        """Whether Nodes are published with NetworkUnavailable: only for the controller of routes."""
        return is_controller_selected(self.controllers, NODE_ROUTE)

    def problems(self) -> tuple[str, ...]:
        """Return contradictory settings, by the rules of client-go."""
        return tuple(validate_lease_times(self))
