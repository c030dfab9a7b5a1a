"""Defects of the services, which the observer of faults must find: each patches the process in which it runs.

A defect replaces a function of a service, and fails if that function is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import msgspec

import services.csr.core.decide
import services.ipam.allocator
import services.labeler.core.plan.addresses
import services.labeler.core.plan.keys
import services.lifecycle.core.decide
from libs.common.contract.services import LIFECYCLE_LEASE_NAME
from libs.common.service.leader_elector import LeaderElector
from libs.talos.credentials import CredentialStore
from services.csr.core.decision import Deny
from services.labeler.config_reloader import ConfigReloader
from services.labeler.core.plan.rejection import NO_REJECTION
from services.labeler.node_writer import NodeWriter
from services.lifecycle.core.evidence import Assessment
from services.lifecycle.deletion_budget import DeletionBudget
from tests.chaos.mutants import DEFECT

_Replacement = Callable[..., Any]
_replacements: dict[str, list[tuple[Any, str, _Replacement]]] = {}  # by name of the mutant


def install() -> None:
    """Give this process the defect of the mutant that its environment names."""
    for owner, name, replacement in _replacements[os.environ[DEFECT]]:
        setattr(owner, name, _bind(replacement, getattr(owner, name)))


def _bind(replacement: _Replacement, original: Any) -> _Replacement:
    return lambda *arguments, **named: replacement(original, *arguments, **named)


def replaces(mutant: str, owner: Any, name: str) -> Callable[[_Replacement], _Replacement]:
    """In that mutant, the function stands in for one of a module or class, and gets that one first."""

    def register(replacement: _Replacement) -> _Replacement:
        _replacements.setdefault(mutant, []).append((owner, name, replacement))
        return replacement

    return register


@replaces("labeler-removes-the-taint-first", NodeWriter, "apply")
async def apply_node_first(apply: Any, writer: Any, node: Any, planner: Any) -> Any:
    if node.is_initialized:
        return await apply(writer, node, planner)
    return await writer._patch_until_accepted(node, planner(node, NO_REJECTION), planner)


@replaces("labeler-trusts-an-empty-list-of-addresses", services.labeler.core.plan.addresses, "lacks_node_ips")
def lack_nothing(_: Any, ips: Any, facts: Any) -> bool:
    return False


@replaces("csr-ignores-failed-checks", services.csr.core.decide, "_make_decision")
def decide_without_checks(make: Any, checks: Any, enriched: Any) -> Any:
    return make((), enriched)


@replaces("csr-denies-what-must-wait", services.csr.core.decide, "_make_wait")
def deny(_: Any, checks: Any, request: Any) -> Any:
    return Deny(reason="Denied", message="", check=checks[0].name)


@replaces("ipam-writes-wider-blocks-than-it-has-claimed", services.ipam.allocator, "build_node_patch")
def build_wider(build: Any, node: Any, changes: Any) -> Any:
    wider = tuple(str(ip_network(cidr).supernet(2)) for cidr in changes.pod_cidrs)
    return build(node, msgspec.structs.replace(changes, pod_cidrs=wider))


@replaces("lifecycle-deletes-silent-nodes", services.lifecycle.core.decide, "assess_report")
@replaces("lifecycle-deletes-silent-nodes", services.lifecycle.core.decide, "assess_history")
@replaces("lifecycle-deletes-without-its-lease", services.lifecycle.core.decide, "assess_report")
@replaces("lifecycle-deletes-without-its-lease", services.lifecycle.core.decide, "assess_history")
def require_nothing(*_: Any, **__: Any) -> Assessment:
    return Assessment()


@replaces("lifecycle-deletes-without-its-lease", LeaderElector, "leading_since")
def lead_as_standby(leading_since: Any, elector: Any) -> Any:
    """Only the standby deletes: the leader could otherwise delete each Node first."""
    if elector.settings.lease_name != LIFECYCLE_LEASE_NAME:
        return leading_since(elector)
    return None if elector.clock() < elector.leading_until else elector.clock() - 60.0


@replaces("lifecycle-deletes-without-its-lease", DeletionBudget, "_spend")
async def spend_of_any_holder(spend: Any, budget: Any, node: str, limit: Any) -> Any:
    budget.holder = ""
    return await spend(budget, node, limit)


@replaces("labeler-removes-labels-of-others", services.labeler.core.plan.keys, "resolve_ownership")
def resolve_all(resolve: Any, state: Any) -> Any:
    found = resolve(state)
    others = {key: None for key in state.current.keys() - state.desired if "kubernetes.io" not in key}
    return msgspec.structs.replace(found, changes={**found.changes, **others})


@replaces("labeler-fetches-each-node-again-and-again", NodeWriter, "apply")
async def apply_after_fetches(apply: Any, writer: Any, node: Any, planner: Any) -> Any:
    for _ in range(20):
        await writer.get(node.name)
    return await apply(writer, node, planner)


@replaces("metadata-logs-its-first-talosconfig", CredentialStore, "_read")
def read_and_log(read: Any, store: Any, path: Any, stamp: Any) -> Any:
    if not hasattr(CredentialStore, "has_logged"):
        CredentialStore.has_logged = True  # type: ignore[attr-defined]
        os.write(2, path.read_bytes())
    return read(store, path, stamp)


@replaces("labeler-keeps-the-first-rules", ConfigReloader, "_accept")
def accept_without_effect(accept: Any, reloader: Any, config: Any, *, warnings: Any) -> None:
    current = reloader._current
    accept(reloader, config, warnings=warnings)
    reloader._current = current
