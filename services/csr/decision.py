"""What can be decided about a request: values that carry their reason and all that was looked at."""

import msgspec

from services.csr.api_endpoint import ApiEndpoint


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str  # a class of reasons, such as "addresses": label of metrics and key of events
    passed: bool | None  # None: it may still become right
    text: str  # what was found, in words an operator can act on
    nodes: frozenset[str] = frozenset()  # whose change can make it right
    rivals: tuple[str, ...] = ()  # Nodes that claim the same, sorted


class Approve(msgspec.Struct, frozen=True, kw_only=True):
    """Written as condition Approved with this reason and message."""

    reason: str
    message: str
    is_by_node_object_only: bool = False  # no machine attested anything (metadata runs without Talos)


class Deny(msgspec.Struct, frozen=True, kw_only=True):
    """Written as condition Denied with this reason and message."""

    reason: str
    message: str
    check: str  # name of the check that failed


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is written; judged again when one of `nodes`, or what csr knows of the cluster, changes."""

    reason: str  # name of the check that waits
    message: str
    nodes: frozenset[str]
    rivals: tuple[str, ...] = ()
    retry_after_seconds: float | None = None  # by itself; None: it needs a change


class Ignore(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of ours: never written, not even denied."""

    reason: str


Decision = Approve | Deny | Wait | Ignore


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, and every check in the order in which it was made."""

    decision: Decision
    checks: tuple[Check, ...] = ()


class ApprovalPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator allows, and what is known of the cluster."""

    allowed_networks: tuple[str, ...] = ()  # CIDRs; for requests that no machine attests
    service_networks: tuple[str, ...] | None = None  # CIDRs of the cluster's Services; None: not known
    api_endpoint: ApiEndpoint = ApiEndpoint()  # of the Kubernetes API
    min_expiration_seconds: int | None = None
    max_expiration_seconds: int | None = None
