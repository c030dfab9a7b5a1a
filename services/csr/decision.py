"""The possible decisions about a request, with their reasons and all checks."""

import msgspec

from services.csr.api_endpoint import ApiEndpoint


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a request and its result."""

    name: str  # a class of reasons, such as "addresses": label of metrics and part of the key of Events
    passed: bool | None  # None: it may pass later
    text: str  # the result, in words that an operator can act on
    nodes: frozenset[str] = frozenset()  # a change of one of these nodes can make it pass
    rivals: tuple[str, ...] = ()  # Nodes with the same claim, sorted


class Approve(msgspec.Struct, frozen=True, kw_only=True):
    """Written as condition Approved with this reason and message."""

    reason: str
    message: str
    # no machine attested the names and addresses (metadata runs without Talos)
    is_by_node_object_only: bool = False


class Deny(msgspec.Struct, frozen=True, kw_only=True):
    """Written as condition Denied with this reason and message."""

    reason: str
    message: str
    check: str  # name of the check that failed


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """csr writes nothing, and evaluates again when one of `nodes` or csr's data about the cluster changes."""

    reason: str  # name of the check that waits
    message: str
    nodes: frozenset[str]
    rivals: tuple[str, ...] = ()
    # seconds until it can pass without a change; None: it needs a change
    retry_after_seconds: float | None = None


class Ignore(msgspec.Struct, frozen=True, kw_only=True):
    """csr does not manage this request: it neither approves nor denies it."""

    reason: str


Decision = Approve | Deny | Wait | Ignore


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, and every check in the order of evaluation."""

    decision: Decision
    checks: tuple[Check, ...] = ()


class ApprovalPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's configuration for approvals, and csr's data about the cluster."""

    allowed_networks: tuple[str, ...] = ()  # CIDRs; for requests that no machine attests
    service_networks: tuple[str, ...] | None = None  # CIDRs of the cluster's Services; None: unknown
    has_service_cidrs: bool = True  # whether `service_networks` has those that ServiceCIDR objects added
    api_endpoint: ApiEndpoint = ApiEndpoint()  # of the Kubernetes API
    min_expiration_seconds: int | None = None
    max_expiration_seconds: int | None = None
