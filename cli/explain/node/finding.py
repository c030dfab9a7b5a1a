"""One problem of a Node: cause, start and fix, in words an operator can act on. Pure."""

import re
import shlex
from datetime import datetime, timedelta
from typing import Final

import msgspec

from cli.cluster.kube_objects import CHART, COMPONENT, INSTANCE, NAME
from cli.cluster.pods import list_unready_pods
from cli.cluster.unavailable import list_known
from cli.explain.layout import Finding
from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.fault_texts import (
    FAULT_TEXTS,
    NO_INITIALIZER,
    UNINITIALIZED,
    WITHOUT_POD_CIDR,
    fill_fault_text,
)
from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.signing_request import strip_prefix
from services.labeler.core.plan.plan import Plan

_FROM_THE_FIRST: Final = frozenset({UNINITIALIZED, NO_INITIALIZER, WITHOUT_POD_CIDR})
_COMPONENT_SELECTOR: Final = re.compile(rf"{re.escape(COMPONENT)}=[a-z0-9-]+")


class NodeFinding(Finding, frozen=True, kw_only=True):
    """One problem of a Node."""

    fault: str  # a key of FAULT_TEXTS
    since: datetime | None


class NodeCase(msgspec.Struct, frozen=True, kw_only=True):
    """The Node to judge, with the labeler's plan and reasons."""

    evidence: NodeEvidence
    plan: Plan | None
    not_managed_reason: str  # why the labeler does not manage the Node
    mismatch: str = ""  # the mismatch of the providerID


def make_finding(
    case: NodeCase,
    fault: str,
    detail: str = "",
    since: datetime | None = None,
    *,
    release: str = "",
    **of_cloud: str,
) -> NodeFinding:
    """Return the finding with the texts of FAULT_TEXTS; `detail` is the reported detail.

    `release` and `of_cloud` are what faults of a cloud account add.
    """
    evidence, words = case.evidence, FAULT_TEXTS[fault]
    request, pods = evidence.request, list_known(evidence.snapshot.pods)
    unready = list_unready_pods(pods, words.service) if words.service else ()
    filled = fill_fault_text(
        fault,
        is_initialized=evidence.node.is_initialized,
        release=release,
        node=evidence.node.name,
        ip=get_talosctl_address(evidence),
        detail="; ".join(filter(None, (strip_prefix(detail).strip().rstrip("."), *unready))),
        namespace=evidence.snapshot.query.namespace,
        csr=shlex.quote(request.name) if request else "",  # quoted: the requester chooses the name
        **of_cloud,
    )
    if since is None and filled.what in _FROM_THE_FIRST:
        since = evidence.node.metadata.creation_timestamp
    fix = _select_pods(evidence, filled.fix)
    return NodeFinding(fault=fault, what=filled.what, since=since, cause=filled.cause, fix=fix)


def _select_pods(evidence: NodeEvidence, fix: str) -> str:
    """Let the commands select the pods of a process that runs all services: these have no component."""
    if not evidence.snapshot.is_all_in_one:
        return fix
    release = evidence.snapshot.query.release
    selector = f"{INSTANCE}={release}" if release else f"{NAME}={CHART}"
    return _COMPONENT_SELECTOR.sub(selector, fix)


def get_talosctl_address(evidence: NodeEvidence) -> str:
    """Return the InternalIP or provided node IP for a talosctl command, else the Node name.

    Only a valid address is returned, because people run the suggested command.
    """
    addresses = [each.address for each in evidence.node.status.addresses if each.type == "InternalIP"]
    addresses.append(evidence.node.provided_node_ip.partition(",")[0])
    return next(
        (text for text in addresses if parse_ip(text) is not None and "%" not in text), evidence.node.name
    )


def compute_age(since: datetime | None, at: datetime) -> timedelta:
    """Return the time since then; timedelta.max if the time is unknown."""
    return at - since if since is not None else timedelta.max
