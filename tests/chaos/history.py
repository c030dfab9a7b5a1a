"""What Kubernetes shows of one run: states of Nodes, writes, and certificate requests. Pure."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.testbed.control_plane.audit_log import WRITE_VERBS, AuditEntry, read_answered_requests
from libs.testbed.service_permissions import ALL_IN_ONE, get_account_user_name

# Prefixes of the user names of all processes.
_OUR_USERS = (ALL_IN_ONE, get_account_user_name(ALL_IN_ONE))
Address = tuple[str, str]  # type and address


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a Node, with the fields that an invariant needs."""

    name: str
    uid: str
    version: int  # the resourceVersion
    restores: int = 0  # of etcd before this state: versions are comparable between two restores
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Mapping[str, Any], ...] = ()
    addresses: tuple[Address, ...] = ()
    provider_id: str = ""
    pod_cidrs: tuple[str, ...] = ()
    conditions: frozenset[str] = frozenset()  # types of those with status True

    @property
    def is_initialized(self) -> bool:
        """Whether the uninitialized taint is gone."""
        return not any(taint["key"] == UNINITIALIZED_TAINT for taint in self.taints)


class SigningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a CertificateSigningRequest."""

    name: str
    uid: str
    version: int  # the resourceVersion
    restores: int = 0  # of etcd before this state
    user: str
    digest: str  # see `digest_request`; the workload knows it beforehand
    conditions: frozenset[str] = frozenset()
    is_issued: bool = False


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the observer has read, when a run is over."""

    states: tuple[NodeState, ...] = ()
    writes: tuple[AuditEntry, ...] = ()  # in the order of their answers
    requests: tuple[SigningRequest, ...] = ()  # versions in any order; a restore of etcd loses some
    request_counts: Mapping[str, int] = {}  # of our processes by "verb resource"; successful or not

    def nodes(self) -> dict[tuple[str, int], list[NodeState]]:
        """Each Node's states between two restores of etcd, in order and without repetition.

        The key is the uid and the number of restores before.
        """
        found: dict[tuple[str, int], dict[int, NodeState]] = defaultdict(dict)
        for state in self.states:
            found[state.uid, state.restores][state.version] = state
        return {key: [versions[number] for number in sorted(versions)] for key, versions in found.items()}

    def last_requests(self) -> list[SigningRequest]:
        """The last version of each request before each restore of etcd and at the end."""
        found: dict[tuple[str, int], SigningRequest] = {}
        for request in sorted(self.requests, key=lambda each: each.version):
            found[request.uid, request.restores] = request
        return list(found.values())

    def changes(self) -> Iterable[tuple[NodeState, NodeState]]:
        """Each state of a Node with the next one."""
        for states in self.nodes().values():
            yield from pairwise(states)


def read_node(node: Mapping[str, Any], restores: int = 0) -> NodeState:
    """The state in an API object, after that many restores of etcd."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    return NodeState(
        name=metadata["name"],
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        restores=restores,
        labels=metadata.get("labels", {}),
        annotations=metadata.get("annotations", {}),
        taints=tuple(spec.get("taints", ())),
        addresses=tuple((each["type"], each["address"]) for each in status.get("addresses", ())),
        provider_id=spec.get("providerID", ""),
        pod_cidrs=tuple(spec.get("podCIDRs", ())),
        conditions=frozenset(
            each["type"] for each in status.get("conditions", ()) if each["status"] == "True"
        ),
    )


def read_signing_request(request: Mapping[str, Any], restores: int = 0) -> SigningRequest:
    """The state in an API object, after that many restores of etcd."""
    metadata, spec, status = request["metadata"], request["spec"], request.get("status", {})
    return SigningRequest(
        name=metadata["name"],
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        restores=restores,
        user=spec.get("username", ""),
        digest=digest_request(spec["request"]),
        conditions=frozenset(each["type"] for each in status.get("conditions", ())),
        is_issued=bool(status.get("certificate")),
    )


def digest_request(encoded: str) -> str:
    """The digest of a request as `spec.request` has it: base64 of a PEM block."""
    return hashlib.sha256(encoded.encode()).hexdigest()[:16]


def is_ours(entry: AuditEntry) -> bool:
    """Whether a process of the services sent that request."""
    return entry.user.startswith(_OUR_USERS)


def read_audit_log(*parts: Iterable[bytes]) -> History:
    """Read the entries of a log at level RequestResponse. An incomplete last line is ignored.

    Between two parts of the log, etcd was restored.
    """
    states: list[NodeState] = []
    requests: list[SigningRequest] = []
    writes: list[AuditEntry] = []
    counts: Counter[str] = Counter()
    for restores, part in enumerate(parts):
        for entry in read_answered_requests(part):
            if is_ours(entry) and entry.target.resource != "leases":
                counts[f"{entry.verb} {entry.resource}"] += 1
            if entry.verb not in WRITE_VERBS:
                continue
            writes.append(entry)
            if not (isinstance(entry.answer, dict) and entry.succeeded):
                continue
            if entry.answer.get("kind") == "Node":
                states.append(read_node(entry.answer, restores))
            elif entry.answer.get("kind") == "CertificateSigningRequest":
                requests.append(read_signing_request(entry.answer, restores))
    writes.sort(key=lambda write: write.answered)
    return History(
        states=tuple(states), writes=tuple(writes), requests=tuple(requests), request_counts=counts
    )
