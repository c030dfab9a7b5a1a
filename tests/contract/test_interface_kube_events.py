"""Events, conditions and decisions: reasons, components and names that dashboards and people search for."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.machine import FaultKind, ForeignNodeIP, MachineFault
from libs.common.kube.api import KubeApi
from services.csr.approval_writer import build_condition
from services.csr.decide import Approve, Deny, Wait, decide
from services.csr.node_event_recorder import NodeEventRecorder as CsrEvents
from services.ipam import node_event_recorder as ipam
from services.ipam.config_reloader import ConfigReloader as WatchPools
from services.ipam.settings import IpamSettings
from services.labeler import blocker
from services.labeler.config_reloader import ConfigReloader
from services.labeler.event_deduplicator import EventDeduplicator
from services.labeler.node_event_recorder import SYNCED
from services.labeler.node_event_recorder import NodeEventRecorder as LabelerEvents
from services.labeler.plan import ClusterConfig, plan_node
from services.labeler.plan.addresses import ProvidedNodeIPs, build_unusable_ip_notices
from services.labeler.plan.field_ownership import OwnershipConflict
from services.labeler.plan.notices import (
    Notice,
    build_conflict_notices,
    build_record_notices,
    build_skipped_notices,
)
from services.labeler.plan.ownership_record import OwnershipRecord
from services.labeler.plan.rejection import NO_REJECTION, build_rejection_notices, extend_rejection
from services.labeler.rules.effects import EffectKind, SkippedEntry
from services.labeler.settings import LabelerSettings
from services.labeler.uninitialized_nodes import build_foreign_notice
from services.lifecycle.node_event_recorder import NodeEventRecorder as LifecycleEvents
from tests.builders import NOW, make_csr_enriched, make_facts, make_node, make_node_enriched, make_request
from tests.bus_actors import run_during, wait_until
from tests.contract.interface_snapshot import assert_unchanged
from tests.csr_cases import CASES, FACTS, NODES, POLICY, make_metadata_events
from tests.kube_loopback import LoopbackServer, open_api
from tests.mounted_config_map import MountedConfigMap
from tests.recorded_requests import Document, RecordedRequests, without_texts
from tests.unit.services.csr.test_claim_index import claims_of

NODE = make_node()


@pytest.fixture
async def recorded() -> RecordedRequests:
    return RecordedRequests()


@pytest.fixture
async def kube(recorded: RecordedRequests, tmp_path: Path) -> AsyncIterator[KubeApi]:
    async with LoopbackServer.start() as server, open_api(server.url, tmp_path, instance="host-a") as api:
        server.answer = recorded.answer
        yield api


def test_the_reasons_for_which_a_node_waits():
    of_faults = {kind: fault_of(kind).reason for kind in get_args(FaultKind)}
    others = (
        blocker.block_on_bad_node_ip("x"),
        blocker.block_on_foreign_node_ip((ForeignNodeIP(address="10.0.0.5", node_name="db-1"),), "web-1"),
        blocker.block_on_missing_node_ip("10.0.0.5", "web-1"),
        blocker.block_on_incomplete_metadata("x"),
        blocker.block_on_failed_provider_id_rule("x"),
        blocker.block_on_missing_native_provider_id(("hcloud",)),
        blocker.block_on_machine_config_taint(),
        blocker.block_on_missing_facts(60.0),
        blocker.block_on_failed_write("x"),
        blocker.block_on_defect(ValueError("x")),
    )
    condition = blocker.build_condition(others[0])
    found = {
        "of_faults": of_faults,
        "others": sorted(each.reason for each in others),
        "condition": {"type": condition.type, "status": condition.status},
    }
    assert_unchanged("kubernetes_condition_reasons", found)


def fault_of(kind: FaultKind) -> blocker.Blocker:
    return blocker.block_on_fault(MachineFault(kind=kind, step="connect", message="x"))


def test_the_reasons_of_the_labelers_events():
    effects = {
        kind: [each.reason for each in build_skipped_notices((skipped(kind),))] for kind in effect_kinds()
    }
    foreign = make_node(provider_id="hcloud://7")
    aws = make_facts(platform="aws", provider_id="aws:///a/i-1")
    named = (
        SYNCED,
        *build_conflict_notices("label", (OwnershipConflict("k", "a", "b", was_ours=True),)),
        *build_record_notices(OwnershipRecord("unreadable", problem="x")),
        *build_unusable_ip_notices(ProvidedNodeIPs(usable=(), unusable=(address("10.0.0.5"),)), make_facts()),
        *build_rejection_notices(refused(("metadata.labels",))),
        *plan_node(make_node(provider_id="aws:///b/i-2"), aws, "system-uuid", ClusterConfig()).notices,
        *plan_node(NODE, make_facts(platform="metal", zone="no label"), "nodename", ClusterConfig()).notices,
        certain(build_foreign_notice(make_node(ip=""), None, ClusterConfig())),
        certain(build_foreign_notice(foreign, make_node_enriched(foreign, aws), ClusterConfig())),
    )
    found = {
        "skipped": effects,
        "others": {each.reason: "Warning" if each.is_warning else "Normal" for each in named},
    }
    assert_unchanged("kubernetes_event_reasons_of_labeler", found)


def effect_kinds() -> tuple[EffectKind, ...]:
    return (*get_args(EffectKind), "selector")


def skipped(kind: Any) -> SkippedEntry:
    return SkippedEntry("a rule", kind, "example.com/key", "value", "reason")


def address(text: str) -> Any:
    return parse_ip(text)


def refused(fields: tuple[str, ...]) -> Any:
    return extend_rejection(NO_REJECTION, fields, "refused")


def certain(notice: Notice | None) -> Notice:
    assert notice is not None
    return notice


async def test_the_events_of_the_labeler(kube: KubeApi, recorded: RecordedRequests):
    events = LabelerEvents(kube, EventDeduplicator(), now=lambda: NOW, idle_seconds=lambda: 0.0)
    assert await events.record_now(NODE, SYNCED)
    assert await events.record_now(NODE, Notice(reason="AReason", message="message"), particular="message")
    assert_unchanged("kubernetes_events_of_labeler", recorded.requests)


async def test_the_events_of_csr(kube: KubeApi, recorded: RecordedRequests):
    events = CsrEvents(kube, NODES.get, now=lambda: NOW, observe_only=False)
    events.record_denied(make_request(), "names", "message")
    events.record_waiting(make_request(), "addresses", "message", ("db-1", "db-2"))
    await events.flush()
    assert_unchanged("kubernetes_events_of_csr", without_texts(recorded.requests))


async def test_the_events_of_ipam(kube: KubeApi, recorded: RecordedRequests):
    events = ipam.NodeEventRecorder(
        kube,
        get_cluster_wide_reasons=tuple,
        is_foreign=lambda name: False,
        now=lambda: NOW,
        observe_only=False,
    )
    for reason in (
        ipam.NOT_AVAILABLE,
        ipam.ASSIGNMENT_FAILED,
        ipam.OTHER_ALLOCATOR,
        ipam.CONFLICT,
        ipam.ADDRESSES_IGNORED,
    ):
        events.record(NODE.name, NODE.uid, reason, "message")
    await events.flush()
    assert_unchanged("kubernetes_events_of_ipam", recorded.requests)


async def test_the_events_of_lifecycle(kube: KubeApi, recorded: RecordedRequests):
    events = LifecycleEvents(kube, now=lambda: NOW, observe_only=False)
    events.record_deleting(NODE, "message")
    events.record_failed(NODE, "message")
    events.record_would_delete(NODE, "message")
    await events.flush()
    # The reference has the words of the first two.
    *reference, dry_run = recorded.requests
    found = [*reference, without_hash(without_texts(dry_run))]
    assert_unchanged("kubernetes_events_of_lifecycle", found)


def without_hash(request: Document) -> Document:
    """The Event without the hash in its name, where the message is part of it."""
    body = request["body"]
    name, _, digest = body["metadata"]["name"].rpartition(".")
    assert len(digest) == 16
    return request | {"body": body | {"metadata": body["metadata"] | {"name": f"{name}.<hash>"}}}


async def test_the_events_about_the_cloud_config_file(
    kube: KubeApi, recorded: RecordedRequests, tmp_path: Path
):
    good, bad = "global: {}\n", "global: [\n"
    mounted = MountedConfigMap(tmp_path, good)
    given: dict[str, Any] = {"kube": kube, "now": lambda: NOW, "random": random.Random(1)}
    given |= {"on_change": lambda: None}
    labeler = ConfigReloader(
        LabelerSettings(cloud_config=mounted.path, cloud_config_poll_seconds=0.01), **given
    )
    pools = WatchPools(
        IpamSettings(cloud_config=mounted.path, cloud_config_poll_seconds=0.01),
        get_blocks_in_use=dict,
        **given,
    )
    watches: tuple[ConfigReloader | WatchPools, ...] = (labeler, pools)
    for watch in watches:
        async with run_during(watch.run()):
            for text in (bad, good):
                mounted.replace_text(text)
                await wait_until(one_more(recorded), "the Event is written")
    found = [without_hash(each) for each in without_texts(recorded.requests)]
    assert_unchanged("kubernetes_events_about_config", found)


def one_more(recorded: RecordedRequests) -> Callable[[], bool]:
    """Whether another request has come since."""
    before = len(recorded.requests)
    return lambda: len(recorded.requests) > before


def test_the_conditions_of_certificate_requests_and_the_names_of_checks():
    claims = claims_of(*NODES.values(), *make_metadata_events())
    conditions: set[tuple[str, str, str]] = set()
    checks: set[str] = set()
    for case in CASES:
        event = make_csr_enriched(case.request(), facts=FACTS["web-1"], node_uid="uid-web-1")
        judged = decide(event, claims, POLICY)
        checks.update(check.name for check in judged.checks)
        match judged.decision:
            case Approve() | Deny() as decision:
                condition = build_condition(decision)
                conditions.add((condition.type, condition.status, condition.reason))
            case Wait(reason=name):
                checks.add(name)
    found = {"conditions": sorted(conditions), "checks": sorted(checks)}
    assert_unchanged("kubernetes_csr_conditions", found)
