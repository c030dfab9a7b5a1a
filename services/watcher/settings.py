"""What the watcher can be told."""

from typing import Annotated

import msgspec

from libs.common.service.service_spec import LEASE_NAMESPACE as OUR_NAMESPACE
from libs.common.service.service_spec import WATCHER_LEASE_NAME as OUR_LEASE
from libs.common.settings.flags import (
    CONTROLLERS,
    LEADER_ELECT,
    LEASE_DURATION,
    LEASE_NAME_FLAG,
    LEASE_NAMESPACE_FLAG,
    NODE_STATUS_UPDATE_FREQUENCY,
    OBSERVE_ONLY,
    RENEW_DEADLINE,
    RETRY_PERIOD,
    Flag,
)
from libs.common.settings.lease_times import validate_lease_times
from libs.common.settings.reference_flags import CSR_APPROVAL, is_controller_selected

# client-go's factor: a pause may be a fifth longer than asked for, and one try must fit into the deadline.


class WatcherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The Lease, how often everything is said again, and how much at once."""

    leader_elect: Annotated[bool, LEADER_ELECT] = True
    lease_name: Annotated[str, LEASE_NAME_FLAG] = OUR_LEASE
    lease_namespace: Annotated[str, LEASE_NAMESPACE_FLAG] = OUR_NAMESPACE
    lease_duration_seconds: Annotated[float, LEASE_DURATION] = 15.0
    renew_deadline_seconds: Annotated[float, RENEW_DEADLINE] = 10.0
    retry_period_seconds: Annotated[float, RETRY_PERIOD] = 2.0
    resync_seconds: Annotated[float, NODE_STATUS_UPDATE_FREQUENCY] = 300.0
    controllers: Annotated[tuple[str, ...], CONTROLLERS] = ("*",)
    observe_only: Annotated[bool, OBSERVE_ONLY] = False
    in_flight: Annotated[
        int,
        Flag(
            "watcher-in-flight",
            "Observations published at the same time.",
            group="Nodes",
            at_least=1,
            at_most=1000,
        ),
    ] = 64

    @property
    def takes_lease(self) -> bool:
        """Whether Kubernetes decides who leads; observing only, nothing at all is written there."""
        return self.leader_elect and not self.observe_only

    @property
    def watches_requests(self) -> bool:
        """Whether CSRs are watched: for nobody, without the controller that judges them."""
        return is_controller_selected(self.controllers, CSR_APPROVAL)

    def problems(self) -> tuple[str, ...]:
        """What contradicts itself, as client-go would refuse it."""
        found = validate_lease_times(
            duration=self.lease_duration_seconds,
            renew_deadline=self.renew_deadline_seconds,
            retry_period=self.retry_period_seconds,
        )
        return tuple(found)
