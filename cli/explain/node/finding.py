"""One thing that is wrong with a Node, in words that an operator can act on. Pure."""

import shlex
from datetime import datetime, timedelta
from typing import Final

import msgspec

from cli.explain.node.evidence import Evidence
from cli.explain.node.faults import FAULTS
from libs.common.machine import MachineFault
from libs.common.node_ips import parse_ip
from services.labeler.plan import Plan

UNINITIALIZED: Final = "not initialized"
UNASKED: Final = "initialized by nobody"
WITHOUT_POD_CIDR: Final = "without a pod CIDR"
_FROM_THE_FIRST: Final = frozenset({UNINITIALIZED, UNASKED, WITHOUT_POD_CIDR})
_DIALLING: Final = 'UNAVAILABLE: connection error: desc = "transport: Error while dialing: '
_DENIED: Final = "by Talos Cloud Controller Manager, Reason: "


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    fault: str  # a key of FAULTS
    what: str  # the Node is, or has, because of it
    since: datetime | None
    cause: str
    fix: str


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged."""

    evidence: Evidence
    plan: Plan | None
    why_not_ours: str  # the labeler's reason
    mismatch: str = ""  # of the providerID


def found(case: Case, fault: str, said: str, *, what: str, since: datetime | None = None) -> Finding:
    """In the words of FAULTS."""
    evidence, words = case.evidence, FAULTS[fault]
    request = evidence.around.request
    if since is None and what in _FROM_THE_FIRST:
        since = evidence.node.metadata.creation_timestamp
    given = {
        "node": evidence.node.name,
        "ip": address_of(evidence),
        "said": _brief(said),
        "namespace": evidence.namespace,
        "csr": shlex.quote(request.name) if request else "",  # whoever files it chooses its name
    }
    return Finding(
        fault=fault,
        what=what,
        since=since,
        cause=words.cause.format(**given),
        fix=words.fix.format(**given),
    )


def address_of(evidence: Evidence) -> str:
    """Where talosctl finds the machine, as its Node says: an address, since people run what they are told."""
    said = [each.address for each in evidence.node.status.addresses if each.type == "InternalIP"]
    said.append(evidence.node.provided_node_ip.partition(",")[0])
    return next((text for text in said if parse_ip(text) is not None and "%" not in text), evidence.node.name)


def time_of(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it; None for what is none."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _brief(said: str) -> str:
    """Without what Go and csr say before they come to the point."""
    head, found, reason = said.partition(_DIALLING)
    said = head + reason.replace('"', "") if found else said
    said = said.partition(_DENIED)[2] or said
    return said.strip().rstrip(".")


def of_fault(fault: MachineFault) -> str:
    """What was asked of whom, and what came of it."""
    where = f" at {fault.endpoint}" if fault.endpoint and fault.endpoint not in fault.message else ""
    return f"{fault.step}{where}: {fault.message}"


def and_pods(case: Case, said: str, *services: str) -> str:
    """That, and which pods of these services are not ready."""
    return "; ".join(filter(None, (said, *case.evidence.around.pods_not_ready(*services))))


def if_down(case: Case, *services: str) -> str:
    """Which pods of these services are not ready, where none of them is; "" where one is."""
    return and_pods(case, "", *services) if case.evidence.around.all_down(*services) else ""


def age(since: datetime | None, at: datetime) -> timedelta:
    """How long ago; without a time, very."""
    return at - since if since is not None else timedelta.max


def seconds(since: datetime, at: datetime) -> str:
    """The same in words."""
    return f"{max(0, (at - since).total_seconds()):.0f} s"
