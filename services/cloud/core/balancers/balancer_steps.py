"""The steps of one load balancer, and the reasons to wait. The shell executes one step and reads again."""

from datetime import datetime
from typing import Generic

import msgspec

from libs.clouds.balancers import ChangeT, DesiredT, Ingress, InvalidField, RejectionKind, Target
from libs.clouds.instances import Unanswered
from libs.common.contract.instances import InstanceAnchor
from services.cloud.core.balancers.balancer_record import BalancerRecord

# ---- why nothing can be done now


class WaitReason(msgspec.Struct, frozen=True):
    """Why nothing can be done now. By default it passes by itself, and nothing is reported."""

    @property
    def condition_reason(self) -> str:
        """The reason of the Service's condition; "" changes no condition."""
        return ""

    def explain(self) -> str:
        """Return it in words for the Service's owner; "" = nothing is reported."""
        return ""


class NotSelected(WaitReason, frozen=True):
    """The Service does not select this account, and no record says that the account has its balancer."""


class ListedLate(WaitReason, frozen=True):
    """The cloud still lists what it does not find by id."""


class ListedSoon(WaitReason, frozen=True):
    """The next listing shows the balancers of many Services that have changed."""


class Busy(WaitReason, frozen=True):
    """Another change of the balancer runs.

    `stuck_since` is its start, if it has run for longer than clouds need.
    """

    balancer_id: str
    stuck_since: datetime | None = None

    def explain(self) -> str:
        if self.stuck_since is None:
            return ""
        since = f"{self.stuck_since:%Y-%m-%dT%H:%M:%SZ}"
        return (
            f"load balancer {self.balancer_id} has been busy since {since}, and the cloud accepts no change: "
            "ask the operator of the cloud to end the change that runs"
        )


class LeaseTooShort(WaitReason, frozen=True):
    """The Lease may expire before a write ends."""


class WriteUnsettled(WaitReason, frozen=True):
    """A write whose result is unknown may still take effect."""


class LeftOutTarget(msgspec.Struct, frozen=True):
    """A target that the cloud rejects; its addition is retried after the pause."""

    target: Target
    reason: str

    def __str__(self) -> str:
        return f"{self.target.instance_id or self.target.address} ({self.reason})"


class Settled(WaitReason, frozen=True, kw_only=True):
    """The balancer has the desired state; settings that an invalid field describes are not changed."""

    balancer_id: str
    desired: object
    targets: tuple[Target, ...]  # without those left out
    left_out: tuple[LeftOutTarget, ...] = ()
    warnings: tuple[str, ...] = ()
    invalid: tuple[InvalidField, ...] = ()

    @property
    def condition_reason(self) -> str:
        return "InvalidField" if self.invalid else ""

    def explain(self) -> str:
        return (
            f"the load balancer keeps its former values: {_list_fields(self.invalid)}" if self.invalid else ""
        )


class InvalidFields(WaitReason, frozen=True):
    """Nothing is created while a field is invalid."""

    fields: tuple[InvalidField, ...]

    @property
    def condition_reason(self) -> str:
        return "InvalidField"

    def explain(self) -> str:
        return f"no load balancer is created: {_list_fields(self.fields)}"


class Unready(WaitReason, frozen=True):
    """The cloud did not answer."""

    answer: Unanswered

    @property
    def condition_reason(self) -> str:
        return "CredentialRejected" if self.answer.outcome in ("unauthorized", "forbidden") else ""

    def explain(self) -> str:
        return f"the cloud does not answer: {self.answer.reason}"


class AnchorUnknown(WaitReason, frozen=True):
    """A create is recorded with the project's anchor: without it, nothing proves later what became of it."""

    reason: str  # why the look for the anchor has no result; "": it has not ended yet

    def explain(self) -> str:
        return f"the cloud does not show the anchor of the project: {self.reason}" if self.reason else ""


class Rejected(WaitReason, frozen=True):
    """The cloud has rejected the write, or its result is unknown; it is repeated after the pause."""

    kind: RejectionKind | None  # None: unknown
    reason: str

    @property
    def condition_reason(self) -> str:
        if self.kind == "unauthorized":
            return "CredentialRejected"
        return "" if self.kind in (None, "busy", "held_back") else "CloudRejected"

    def explain(self) -> str:
        return f"the cloud does not accept a change: {self.reason}"


class BalancerFailed(WaitReason, frozen=True):
    """The cloud refuses changes of a balancer that may have served, or is not proven to be new."""

    balancer_id: str

    @property
    def condition_reason(self) -> str:
        return "CloudRejected"

    def explain(self) -> str:
        return (
            f"load balancer {self.balancer_id} has failed, and the cloud accepts no change: let the cloud "
            "repair it (failover), or delete it there, and another one is created"
        )


class BuildsFailed(WaitReason, frozen=True):
    """The cloud could not build balancers; the next one is created after the pause."""

    count: int

    @property
    def condition_reason(self) -> str:
        return "CloudRejected"

    def explain(self) -> str:
        return f"the cloud has failed to build {self.count} load balancers in a row, will retry"


class NoWitness(WaitReason, frozen=True, kw_only=True):
    """What the cloud does not find may exist: the credential may be another project's."""

    anchor: InstanceAnchor | None  # the recorded one, which the credential does not find either

    @property
    def condition_reason(self) -> str:
        return "ProjectNotProven"

    def explain(self) -> str:
        anchor = self.anchor
        if anchor is None:
            return "the cloud does not find the load balancer, and no recorded anchor proves the project"
        return (
            f"the cloud finds neither the load balancer nor the recorded {anchor.kind} {anchor.id}: the "
            "credential may be another project's"
        )


class ForeignController(WaitReason, frozen=True):
    """Another controller has a balancer for the Service, or has changed ours."""

    reason: str

    @property
    def condition_reason(self) -> str:
        return "OtherController"

    def explain(self) -> str:
        return self.reason


class OtherAccount(WaitReason, frozen=True):
    """Another account has the Service's balancer, and ends it first."""

    account: str

    def explain(self) -> str:
        return f"account {self.account} has its load balancer, and must delete it first"


def _list_fields(fields: tuple[InvalidField, ...]) -> str:
    return "; ".join(map(str, sorted(fields, key=lambda each: each.is_unknown)))


# ---- steps


class BlockedCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Why this controller cannot do what the Service asks for. The Service has it only then."""

    reason: str
    message: str


class Wait(msgspec.Struct, frozen=True):
    """Do nothing until then, or until Service, Nodes or credential change. None = only until a change."""

    until: datetime | None
    reason: WaitReason


class ListBalancers(msgspec.Struct, frozen=True):
    """List all balancers of this cluster. Services that need it at the same time share one listing.

    Without `reads_parts`, parts that can outlive their balancer may be those of an earlier listing.
    """

    reads_parts: bool = True


class ReadBalancer(msgspec.Struct, frozen=True):
    """Read one balancer by id."""

    balancer_id: str


class ReadAnchor(msgspec.Struct, frozen=True):
    """Read the recorded anchor by id."""

    anchor: InstanceAnchor


class RecordBalancer(msgspec.Struct, frozen=True):
    """Add the finalizer and write the record in one patch of the Service, fenced by its resourceVersion."""

    record: BalancerRecord


class ReleaseService(msgspec.Struct, frozen=True):
    """Remove finalizer and record in one patch, fenced by the resourceVersion.

    The finalizer stays if `handed_back` or `left_to` is set, because another controller needs it.
    """

    abandoned: str = ""  # the id that an operator gave up: the balancer may still exist
    kept: str = ""  # the recorded id, if that balancer has other tags: it stays
    handed_back: str = ""  # the id that the cloud's own controller has again: the finalizer is its own, too
    left_to: str = ""  # the account that has a balancer of the Service; this account has none


class WriteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Write addresses and condition into the Service's status, fenced by the resourceVersion."""

    ingress: tuple[Ingress, ...] | None  # None: the addresses are not changed
    condition: BlockedCondition | None  # None: the Service loses it


class CreateBalancer(msgspec.Struct, Generic[DesiredT], frozen=True, kw_only=True):
    """Create the balancer. The record has the deadline."""

    desired: DesiredT
    targets: tuple[Target, ...]


class ChangeBalancer(msgspec.Struct, Generic[ChangeT], frozen=True, kw_only=True):
    """Make one change. `is_release`: the balancer has to stay, and ours goes from it."""

    balancer_id: str
    change: ChangeT
    is_release: bool = False
    kept: tuple[str, ...] = ()  # with `is_release`: what outlives it, too


class DeleteBalancer(msgspec.Struct, frozen=True):
    """Delete a balancer of this Service."""

    balancer_id: str
    is_double: bool = False
    keeps_address: bool = False  # whether an address that can outlive it stays
    has_failed: bool = False  # before it was ready: another one follows
    kept: tuple[str, ...] = ()  # what outlives it, named for operators


CloudRead = ListBalancers | ReadBalancer | ReadAnchor
CloudWrite = CreateBalancer[DesiredT] | ChangeBalancer[ChangeT] | DeleteBalancer
KubeWrite = RecordBalancer | ReleaseService | WriteStatus
Step = Wait | CloudRead | KubeWrite | CreateBalancer[DesiredT] | ChangeBalancer[ChangeT] | DeleteBalancer
