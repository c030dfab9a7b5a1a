"""What lifecycle can be told."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec

from libs.common.cloud_config.rule import CloudConfig
from libs.common.settings.flags import (
    CLOUD_CONFIG,
    DELETE_PREEMPTED_GCP_SPOT,
    LEADER_ELECT,
    LEADING,
    LEASE_DURATION,
    LEASE_NAMESPACE,
    LIFECYCLE,
    OBSERVE_ONLY,
    RENEW_DEADLINE,
    RETRY_PERIOD,
    Flag,
)
from libs.common.settings.lease_times import contradictions
from libs.common.wiring import LEASE_NAME, LIFECYCLE_LEASE_NAME
from libs.common.wiring import LEASE_NAMESPACE as OUR_NAMESPACE
from services.lifecycle.decide import Terms

_USUAL: Final = Terms()
_SPOT_KEPT: Final = (
    "cloud-node-lifecycle keeps Nodes of preempted GCP spot machines, which the reference deletes: "
    "--delete-preempted-gcp-spot=true deletes them, =false keeps them without this warning"
)


class LifecycleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion takes, how many there may be, and the Lease."""

    observe_only: Annotated[bool, OBSERVE_ONLY] = False
    dry_run: Annotated[
        bool,
        Flag(
            "lifecycle-dry-run",
            "Tell which Nodes would be deleted, by log, decision and Event, and delete and taint none.",
            LIFECYCLE,
        ),
    ] = False
    most_per_hour: Annotated[
        int,
        Flag(
            "lifecycle-max-deletions-per-hour",
            "Nodes that are deleted in any hour at most, restarts and other leaders included.",
            LIFECYCLE,
            at_least=0,
        ),
    ] = 10
    # None = nothing was said: off, with a warning, as the reference deletes them.
    delete_preempted_gcp_spot: Annotated[bool | None, DELETE_PREEMPTED_GCP_SPOT] = None
    not_ready_seconds: Annotated[
        float,
        Flag(
            "lifecycle-not-ready-time",
            "How long a Node must have been not Ready before it may be deleted.",
            LIFECYCLE,
            at_least=1.0,
        ),
    ] = _USUAL.not_ready_for.total_seconds()
    evidence_seconds: Annotated[
        float,
        Flag(
            "lifecycle-evidence-time",
            "For how long, and in three looks at least, the evidence must hold without a contrary word.",
            LIFECYCLE,
            at_least=1.0,
        ),
    ] = _USUAL.span.total_seconds()
    grace_seconds: Annotated[
        float,
        Flag(
            "lifecycle-start-grace",
            "How long nothing is deleted after the start, and after coming to lead.",
            LIFECYCLE,
            at_least=1.0,
        ),
    ] = _USUAL.grace.total_seconds()
    cloud_config: Annotated[Path | None, CLOUD_CONFIG] = None  # followed: whose Nodes are ours may change
    file: CloudConfig = CloudConfig()  # what it said at the start
    file_look_seconds: float = 1.0
    look_around_seconds: float = (
        5.0  # so often Nodes that are not Ready are looked at without news (reference)
    )
    leader_elect: Annotated[bool, LEADER_ELECT] = True
    lease_name: Annotated[
        str,
        Flag(
            "lifecycle-lease-name",
            "Name of the Lease of lifecycle. Each of several instances on one cluster needs its own, and a "
            "Role that lets it update the Lease of that name.",
            LEADING,
        ),
    ] = LIFECYCLE_LEASE_NAME
    lease_namespace: Annotated[str, LEASE_NAMESPACE] = OUR_NAMESPACE
    lease_duration_seconds: Annotated[float, LEASE_DURATION] = 15.0
    # Also: nothing is written while no watcher has been heard to lead for that long.
    renew_deadline_seconds: Annotated[float, RENEW_DEADLINE] = 10.0
    retry_period_seconds: Annotated[float, RETRY_PERIOD] = 2.0

    @property
    def dry(self) -> bool:
        """Whether no Node is written."""
        return self.dry_run or self.observe_only

    @property
    def takes_lease(self) -> bool:
        """Whether Kubernetes decides who leads; observing only, nothing at all is written there."""
        return self.leader_elect and not self.observe_only

    @property
    def terms(self) -> Terms:
        """What `decide` needs of it."""
        return Terms(
            not_ready_for=timedelta(seconds=self.not_ready_seconds),
            span=timedelta(seconds=self.evidence_seconds),
            grace=timedelta(seconds=self.grace_seconds),
            gcp_spot=bool(self.delete_preempted_gcp_spot),
        )

    def problems(self) -> tuple[str, ...]:
        """What contradicts itself, as client-go would refuse it."""
        found = contradictions(
            duration=self.lease_duration_seconds,
            renew_deadline=self.renew_deadline_seconds,
            retry_period=self.retry_period_seconds,
        )
        if self.lease_name in ("", LEASE_NAME):
            why = "which is the watcher's Lease" if self.lease_name else "which is no name"
            found.append(f"--lifecycle-lease-name is {self.lease_name!r}, {why}")
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """What is obeyed, and weakens the proof; and what the reference does and we do not."""
        return (*self._weakened(), *(() if self.delete_preempted_gcp_spot is not None else (_SPOT_KEPT,)))

    def _weakened(self) -> Iterator[str]:
        for flag, said, usual in (
            ("not-ready-time", self.not_ready_seconds, _USUAL.not_ready_for),
            ("evidence-time", self.evidence_seconds, _USUAL.span),
            ("start-grace", self.grace_seconds, _USUAL.grace),
        ):
            if said < usual.total_seconds():
                yield f"--lifecycle-{flag} is shorter than {usual.total_seconds():g} s: weaker proof suffices"
