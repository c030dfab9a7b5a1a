"""Defects of the services: each function patches the process in which it runs.

The observer of faults must find every one of them. A defect wraps or replaces a function of a service, and
fails if that function is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import msgspec

import services.csr.decide
import services.ipam.allocator
import services.labeler.plan.addresses
import services.labeler.plan.labels
import services.lifecycle.decide
from libs.talos.credentials import CredentialStore
from services.csr.decision import Deny
from services.labeler.config_reloader import ConfigReloader
from services.labeler.node_writer import NodeWriter
from services.labeler.plan.rejection import NO_REJECTION
from services.lifecycle.deletion_budget import LeaseDeletionBudget
from services.lifecycle.evidence import assess_node
from services.lifecycle.leader_elector import LeaderElector
from tests.chaos.mutants import DEFECT


def install() -> None:
    """Give this process the defect that its environment names."""
    globals()[os.environ[DEFECT]]()


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of a module or class by what `make` returns for it."""
    setattr(owner, name, make(getattr(owner, name)))


def remove_the_taint_first() -> None:
    def make(apply: Any) -> Any:
        async def apply_node_first(writer: Any, node: Any, planner: Any) -> Any:
            if node.is_initialized:
                return await apply(writer, node, planner)
            return await writer._patch_until_accepted(node, planner.plan(node, NO_REJECTION), planner)

        return apply_node_first

    wrap(NodeWriter, "apply", make)


def trust_an_empty_list_of_addresses() -> None:
    wrap(services.labeler.plan.addresses, "lacks_node_ips", lambda _: lambda ips, facts: False)


def ignore_failed_checks() -> None:
    wrap(services.csr.decide, "_make_decision", lambda make: lambda checks, enriched: make((), enriched))


def deny_what_must_wait() -> None:
    wrap(
        services.csr.decide,
        "_make_wait",
        lambda _: lambda checks, request: Deny(reason="Denied", message="", check=checks[0].name),
    )


def write_wider_blocks_than_claimed() -> None:
    def make(build: Any) -> Any:
        def build_wider(node: Any, changes: Any) -> Any:
            wider = tuple(str(ip_network(cidr).supernet(2)) for cidr in changes.pod_cidrs)
            return build(node, msgspec.structs.replace(changes, pod_cidrs=wider))

        return build_wider

    wrap(services.ipam.allocator, "build_node_patch", make)


def delete_silent_nodes() -> None:
    def assess_silence(case: Any, policy: Any, *, now: Any, monotonic_now: float) -> Any:
        return assess_node(case.node, now, min_not_ready=policy.min_not_ready)

    wrap(services.lifecycle.decide, "assess_case", lambda _: assess_silence)


def delete_without_the_lease() -> None:
    """Only the standby deletes: the leader could otherwise delete each Node first."""

    def leads_as_standby(elector: Any) -> float | None:
        is_leading = elector.lock is not None and elector.lock.is_leading
        return None if is_leading else elector.clock() - 60.0

    def make(spend: Any) -> Any:
        async def spend_of_any_holder(budget: Any, node: str) -> Any:
            budget.holder = ""
            return await spend(budget, node)

        return spend_of_any_holder

    delete_silent_nodes()
    wrap(LeaderElector, "leading_since", lambda _: leads_as_standby)
    wrap(LeaseDeletionBudget, "_spend", make)


def remove_labels_of_others() -> None:
    def make(resolve: Any) -> Any:
        def resolve_all(state: Any) -> Any:
            found = resolve(state)
            others = {key: None for key in state.current.keys() - state.desired if "kubernetes.io" not in key}
            return msgspec.structs.replace(found, changes={**found.changes, **others})

        return resolve_all

    wrap(services.labeler.plan.labels, "resolve_ownership", make)


def fetch_each_node_again_and_again() -> None:
    def make(apply: Any) -> Any:
        async def apply_after_fetches(writer: Any, node: Any, planner: Any) -> Any:
            for _ in range(20):
                await writer.get(node.name)
            return await apply(writer, node, planner)

        return apply_after_fetches

    wrap(NodeWriter, "apply", make)


def log_the_first_talosconfig() -> None:
    first: list[bytes] = []

    def make(read: Any) -> Any:
        def read_and_log(source: Any, path: Any, stamp: Any) -> Any:
            if not first:
                first.append(path.read_bytes())
                os.write(2, first[0])
            return read(source, path, stamp)

        return read_and_log

    wrap(CredentialStore, "_read", make)


def keep_the_first_rules() -> None:
    def make(accept: Any) -> Any:
        def accept_without_effect(reloader: Any, config: Any, *, warnings: Any) -> None:
            current = reloader._current
            accept(reloader, config, warnings=warnings)
            reloader._current = current

        return accept_without_effect

    wrap(ConfigReloader, "_accept", make)
