"""What lifecycle can be told."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec

from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.services import LEASE_NAMESPACE as OUR_NAMESPACE
from libs.common.contract.services import LIFECYCLE_LEASE_NAME, WATCHER_LEASE_NAME
from libs.common.settings.flags import (
    CLOUD_CONFIG,
    DELETE_PREEMPTED_GCP_SPOT,
    LEADER_ELECT,
    LEADER_ELECTION,
    LEASE_DURATION,
    LEASE_NAMESPACE_FLAG,
    LIFECYCLE,
    OBSERVE_ONLY,
    RENEW_DEADLINE,
    RETRY_PERIOD,
    Flag,
)
from libs.common.settings.lease_times import validate_lease_times
from services.lifecycle.decide import DeletionPolicy

_DEFAULT_POLICY: Final = DeletionPolicy()
_SPOT_KEPT_WARNING: Final = (
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
    max_deletions_per_hour: Annotated[
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
    ] = _DEFAULT_POLICY.min_not_ready.total_seconds()
    evidence_seconds: Annotated[
        float,
        Flag(
            "lifecycle-evidence-time",
            "For how long, and in three looks at least, the evidence must hold without a contrary word.",
            LIFECYCLE,
            at_least=1.0,
        ),
    ] = _DEFAULT_POLICY.min_span.total_seconds()
    grace_seconds: Annotated[
        float,
        Flag(
            "lifecycle-start-grace",
            "How long nothing is deleted after the start, and after coming to lead.",
            LIFECYCLE,
            at_least=1.0,
        ),
    ] = _DEFAULT_POLICY.startup_grace.total_seconds()
    cloud_config: Annotated[Path | None, CLOUD_CONFIG] = None  # followed: whose Nodes are ours may change
    file: CloudConfig = CloudConfig()  # what it said at the start
    cloud_config_poll_seconds: float = 1.0
    requeue_interval_seconds: float = (
        5.0  # so often Nodes that are not Ready are looked at without news (reference)
    )
    leader_elect: Annotated[bool, LEADER_ELECT] = True
    lease_name: Annotated[
        str,
        Flag(
            "lifecycle-lease-name",
            "Name of the Lease of lifecycle. Each of several instances on one cluster needs its own, and a "
            "Role that lets it update the Lease of that name.",
            LEADER_ELECTION,
        ),
    ] = LIFECYCLE_LEASE_NAME
    lease_namespace: Annotated[str, LEASE_NAMESPACE_FLAG] = OUR_NAMESPACE
    lease_duration_seconds: Annotated[float, LEASE_DURATION] = 15.0
    # Also: nothing is written while no watcher has been heard to lead for that long.
    renew_deadline_seconds: Annotated[float, RENEW_DEADLINE] = 10.0
    retry_period_seconds: Annotated[float, RETRY_PERIOD] = 2.0

    @property
    def is_dry_run(self) -> bool:
        """Whether no Node is written."""
        return self.dry_run or self.observe_only

    @property
    def uses_lease(self) -> bool:
        """Whether Kubernetes decides who leads; observing only, nothing at all is written there."""
        return self.leader_elect and not self.observe_only

    @property
    def deletion_policy(self) -> DeletionPolicy:
        """What `decide` needs of it."""
        return DeletionPolicy(
            min_not_ready=timedelta(seconds=self.not_ready_seconds),
            min_span=timedelta(seconds=self.evidence_seconds),
            startup_grace=timedelta(seconds=self.grace_seconds),
            deletes_gcp_spot=bool(self.delete_preempted_gcp_spot),
        )

    def problems(self) -> tuple[str, ...]:
        """What contradicts itself, as client-go would refuse it."""
        found = validate_lease_times(
            duration=self.lease_duration_seconds,
            renew_deadline=self.renew_deadline_seconds,
            retry_period=self.retry_period_seconds,
        )
        if self.lease_name in ("", WATCHER_LEASE_NAME):
            why = "which is the watcher's Lease" if self.lease_name else "which is no name"
            found.append(f"--lifecycle-lease-name is {self.lease_name!r}, {why}")
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """What is obeyed, and weakens the proof; and what the reference does and we do not."""
        return (
            *self._find_weakened_settings(),
            *(() if self.delete_preempted_gcp_spot is not None else (_SPOT_KEPT_WARNING,)),
        )

    def _find_weakened_settings(self) -> Iterator[str]:
        for flag, said, usual in (
            ("not-ready-time", self.not_ready_seconds, _DEFAULT_POLICY.min_not_ready),
            ("evidence-time", self.evidence_seconds, _DEFAULT_POLICY.min_span),
            ("start-grace", self.grace_seconds, _DEFAULT_POLICY.startup_grace),
        ):
            if said < usual.total_seconds():
                yield f"--lifecycle-{flag} is shorter than {usual.total_seconds():g} s: weaker proof suffices"
