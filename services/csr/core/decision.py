"""The possible decisions about a request, with their reasons and all checks."""

from functools import cached_property
from typing import Final, Literal

import msgspec

from libs.common.kube.server_identity import ServerIdentity

_SERVICE_NAME: Final = "kubernetes.default.svc"  # in-cluster clients verify this name


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a request and its result."""

    name: str  # a class of reasons, such as "addresses": label of metrics and part of the key of Events
    passed: bool | None  # None: it may pass later
    text: str  # the result, in words that an operator can act on
    nodes: frozenset[str] = frozenset()  # a change of one of these nodes can make it pass
    rivals: tuple[str, ...] = ()  # Nodes with the same claim, sorted


def make_undecided(check: str, text: str, *nodes: str) -> Check:
    """Return a check that a change of one of these nodes can make pass."""
    return Check(name=check, passed=None, text=text, nodes=frozenset(nodes))


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
    nodes: frozenset[str] = frozenset()
    rivals: tuple[str, ...] = ()
    # seconds until it can pass without a change; None: it needs a change
    retry_after_seconds: float | None = None


class Ignore(msgspec.Struct, frozen=True, kw_only=True):
    """csr does not answer this request: it neither approves nor denies it."""

    reason: str
    # "settled": the message needs no further processing; the other outcomes are published as decisions
    outcome: Literal["ignored", "not-ours", "superseded", "settled"] = "ignored"


Decision = Approve | Deny | Wait | Ignore


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, and every check in the order of evaluation."""

    decision: Decision
    checks: tuple[Check, ...] = ()


class ApiEndpoint(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The endpoint of the Kubernetes API; unknown while it has no identities."""

    identities: tuple[ServerIdentity, ...] = ()
    fault: str = ""  # why the last attempt to read a certificate failed

    @property
    def is_api_server(self) -> bool:
        """Whether a certificate is kube-apiserver's own, not that of a proxy that terminates TLS."""
        return self.has_name(_SERVICE_NAME)

    @cached_property
    def cluster_domains(self) -> frozenset[str]:
        """The domains of the cluster's Services, such as "cluster.local"."""
        prefix = f"{_SERVICE_NAME}."
        names = (name for each in self.identities for name in each.names)
        return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def has_name(self, dns: str) -> bool:
        """Whether a certificate contains that DNS name, in any case."""
        return any(dns.lower() in each.names for each in self.identities)

    def has_address(self, ip: str) -> bool:
        """Whether a certificate contains that address, in canonical form."""
        return any(ip in each.addresses for each in self.identities)


class ApprovalPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's configuration for approvals, and csr's data about the cluster."""

    allowed_networks: tuple[str, ...] = ()  # CIDRs; for requests that no machine attests
    service_networks: tuple[str, ...] | None = None  # CIDRs of the cluster's Services; None: unknown
    has_service_cidrs: bool = True  # whether `service_networks` has those that ServiceCIDR objects added
    api_endpoint: ApiEndpoint = ApiEndpoint()  # of the Kubernetes API
    min_expiration_seconds: int | None = None
    max_expiration_seconds: int | None = None
