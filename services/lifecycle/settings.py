"""Settings of lifecycle."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

from libs.common.contract.services import LEASE_NAMESPACE as OUR_NAMESPACE
from libs.common.contract.services import LIFECYCLE_LEASE_NAME, WATCHER_LEASE_NAME
from libs.common.settings import flags
from libs.common.settings.cloud_config_reloader import CloudConfigSettings
from libs.common.settings.lease_times import validate_lease_times
from services.lifecycle.core.decide import DeletionPolicy

_DEFAULT_POLICY: Final = DeletionPolicy()
_duration = partial(flags.Flag, group=flags.LIFECYCLE, at_least=1.0)
_SPOT_KEPT_WARNING: Final = (
    "cloud-node-lifecycle keeps Nodes of preempted GCP spot machines, which the reference deletes: "
    "--delete-preempted-gcp-spot=true deletes them, =false keeps them without this warning"
)


class LifecycleSettings(CloudConfigSettings, frozen=True, kw_only=True):
    """Settings of lifecycle."""

    dry_run: Annotated[
        bool,
        flags.Flag(
            "lifecycle-dry-run",
            "Report by log, decision and Event which Nodes lifecycle would delete; delete and taint none.",
            flags.LIFECYCLE,
        ),
    ] = False
    max_deletions_per_hour: Annotated[
        int,
        flags.Flag(
            "lifecycle-max-deletions-per-hour",
            "Maximum number of Nodes deleted in any hour, counted across restarts and leaders.",
            flags.LIFECYCLE,
            at_least=0,
        ),
    ] = _DEFAULT_POLICY.max_deletions_per_hour
    # None: not set, so off with a warning, because the reference controller deletes these Nodes
    delete_preempted_gcp_spot: Annotated[bool | None, flags.DELETE_PREEMPTED_GCP_SPOT] = None
    not_ready_seconds: Annotated[
        float,
        _duration(
            "lifecycle-not-ready-time", "How long a Node must be not Ready before lifecycle may delete it."
        ),
    ] = _DEFAULT_POLICY.min_not_ready.total_seconds()
    evidence_seconds: Annotated[
        float,
        _duration(
            "lifecycle-evidence-time",
            "How long at least three polls must show the evidence, without a contradiction.",
        ),
    ] = _DEFAULT_POLICY.min_span.total_seconds()
    grace_seconds: Annotated[
        float,
        _duration(
            "lifecycle-start-grace",
            "How long lifecycle deletes nothing after its start, and after it became the leader.",
        ),
    ] = _DEFAULT_POLICY.startup_grace.total_seconds()
    requeue_interval_seconds: float = 5.0  # as the reference controller
    leader_elect: Annotated[bool, flags.LEADER_ELECT] = True
    lease_name: Annotated[
        str,
        flags.Flag(
            "lifecycle-lease-name",
            "Name of the Lease of lifecycle. Each instance on a cluster needs its own name, and a Role that "
            "allows it to update the Lease of that name.",
            flags.LEADER_ELECTION,
        ),
    ] = LIFECYCLE_LEASE_NAME
    lease_namespace: Annotated[str, flags.LEASE_NAMESPACE_FLAG] = OUR_NAMESPACE
    lease_duration_seconds: Annotated[float, flags.LEASE_DURATION] = 15.0
    # lifecycle also writes nothing after that long without Leading
    renew_deadline_seconds: Annotated[float, flags.RENEW_DEADLINE] = 10.0
    retry_period_seconds: Annotated[float, flags.RETRY_PERIOD] = 2.0

    @property
    def is_dry_run(self) -> bool:
        """Whether lifecycle writes no Node."""
        return self.dry_run or self.observe_only

    @property
    def uses_lease(self) -> bool:
        """Whether a Lease decides about leadership; in observe-only mode lifecycle does not write it."""
        return self.leader_elect and not self.observe_only

    @property
    def request_deadline_seconds(self) -> float:
        """The longest time of a request of the leader, with all retries: soon after it, another may lead."""
        return self.renew_deadline_seconds / 4

    @property
    def deletion_policy(self) -> DeletionPolicy:
        """The part that `decide` needs."""
        return DeletionPolicy(
            min_not_ready=timedelta(seconds=self.not_ready_seconds),
            min_span=timedelta(seconds=self.evidence_seconds),
            startup_grace=timedelta(seconds=self.grace_seconds),
            deletes_gcp_spot=bool(self.delete_preempted_gcp_spot),
            max_deletions_per_hour=self.max_deletions_per_hour,
        )

    def problems(self) -> tuple[str, ...]:
        """Return the invalid and contradictory settings, by the rules of client-go."""
        found = validate_lease_times(self)
        if self.lease_name in ("", WATCHER_LEASE_NAME):
            why = "the name of the watcher's Lease" if self.lease_name else "an empty name"
            found.append(f"--lifecycle-lease-name is {self.lease_name!r}, {why}")
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """Return the settings that weaken the evidence, and a difference to the reference controller."""
        return (
            *self._find_weakened_settings(),
            *(() if self.delete_preempted_gcp_spot is not None else (_SPOT_KEPT_WARNING,)),
        )

    def _find_weakened_settings(self) -> Iterator[str]:
        for flag, seconds, default in (
            ("not-ready-time", self.not_ready_seconds, _DEFAULT_POLICY.min_not_ready),
            ("evidence-time", self.evidence_seconds, _DEFAULT_POLICY.min_span),
            ("start-grace", self.grace_seconds, _DEFAULT_POLICY.startup_grace),
        ):
            if seconds < default.total_seconds():
                yield (
                    f"--lifecycle-{flag} is shorter than {default.total_seconds():g} s: weaker evidence "
                    "suffices"
                )
