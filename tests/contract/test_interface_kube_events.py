"""Events, conditions and decisions: reasons, components and names that dashboards and people search for."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from libs.common.kube_api.api import KubeApi
from libs.common.machine import FaultKind, ForeignAnswer, MachineFault
from libs.common.node_ips import parse_ip
from services.csr.approvals_api import condition_of
from services.csr.decide import Approve, Deny, Wait, decide
from services.csr.node_events import NodeEvents as CsrEvents
from services.ipam import node_events as ipam
from services.ipam.settings import IpamSettings
from services.ipam.watch_config import WatchConfig as WatchPools
from services.labeler import blocked
from services.labeler.already_said import AlreadySaid
from services.labeler.announced import Announced, of_unusable
from services.labeler.node_events import SYNCED
from services.labeler.node_events import NodeEvents as LabelerEvents
from services.labeler.notices import Notice, of_record, of_skipped, of_theirs
from services.labeler.owned import Record
from services.labeler.plan import Global, plan_node
from services.labeler.refused import NOTHING_REFUSED, notices_of, refused_with
from services.labeler.rules.effects import EffectKind, Skipped
from services.labeler.settings import LabelerSettings
from services.labeler.waiting import not_ours_for_certain
from services.labeler.watch_config import WatchConfig
from services.labeler.whose_key import Theirs
from services.lifecycle.node_events import NodeEvents as LifecycleEvents
from tests.builders import NOW, a_node, a_request, csr_enriched, enriched, some_facts
from tests.bus_actors import doing, eventually
from tests.contract.interface_snapshot import assert_unchanged
from tests.csr_cases import CASES, FACTS, NODES, POLICY, words_of_metadata
from tests.kube_loopback import Loopback, api_of
from tests.mounted_config_map import MountedConfigMap
from tests.recorded_requests import Document, RecordedRequests, without_texts
from tests.unit.test_csr_claims import claims_of

NODE = a_node()


@pytest.fixture
async def recorded() -> RecordedRequests:
    return RecordedRequests()


@pytest.fixture
async def kube(recorded: RecordedRequests, tmp_path: Path) -> AsyncIterator[KubeApi]:
    async with Loopback.start() as server, api_of(server.url, tmp_path, instance="host-a") as api:
        server.answer = recorded.answer
        yield api


def test_the_reasons_for_which_a_node_waits():
    of_faults = {kind: fault_of(kind).reason for kind in get_args(FaultKind)}
    others = (
        blocked.by_bad_node_ip("x"),
        blocked.by_foreign_answer((ForeignAnswer(address="10.0.0.5", node_name="db-1"),), "web-1"),
        blocked.by_missing_node_ip("10.0.0.5", "web-1"),
        blocked.by_waiting_for_metadata("x"),
        blocked.by_rule_without_provider_id("x"),
        blocked.by_native_format(("hcloud",)),
        blocked.by_taint_of_talos(),
        blocked.by_silence(60.0),
        blocked.by_failed_write("x"),
        blocked.by_defect(ValueError("x")),
    )
    condition = blocked.condition(others[0])
    found = {
        "of_faults": of_faults,
        "others": sorted(each.reason for each in others),
        "condition": {"type": condition.type, "status": condition.status},
    }
    assert_unchanged("kubernetes_condition_reasons", found)


def fault_of(kind: FaultKind) -> blocked.Blocked:
    return blocked.by_fault(MachineFault(kind=kind, step="connect", message="x"))


def test_the_reasons_of_the_labelers_events():
    effects = {kind: [each.reason for each in of_skipped((skipped(kind),))] for kind in effect_kinds()}
    foreign = a_node(provider_id="hcloud://7")
    aws = some_facts(platform="aws", provider_id="aws:///a/i-1")
    named = (
        SYNCED,
        *of_theirs("label", (Theirs("k", "a", "b", was_ours=True),)),
        *of_record(Record("unreadable", problem="x")),
        *of_unusable(Announced(usable=(), unusable=(address("10.0.0.5"),)), some_facts()),
        *notices_of(refused(("metadata.labels",))),
        *plan_node(a_node(provider_id="aws:///b/i-2"), aws, "system-uuid", Global()).notices,
        *plan_node(NODE, some_facts(platform="metal", zone="no label"), "nodename", Global()).notices,
        certain(not_ours_for_certain(a_node(ip=""), None, Global())),
        certain(not_ours_for_certain(foreign, enriched(foreign, aws), Global())),
    )
    found = {
        "skipped": effects,
        "others": {each.reason: "Warning" if each.warning else "Normal" for each in named},
    }
    assert_unchanged("kubernetes_event_reasons_of_labeler", found)


def effect_kinds() -> tuple[EffectKind, ...]:
    return (*get_args(EffectKind), "selector")


def skipped(kind: Any) -> Skipped:
    return Skipped("a rule", kind, "example.com/key", "value", "reason")


def address(text: str) -> Any:
    return parse_ip(text)


def refused(fields: tuple[str, ...]) -> Any:
    return refused_with(NOTHING_REFUSED, fields, "refused")


def certain(notice: Notice | None) -> Notice:
    assert notice is not None
    return notice


async def test_the_events_of_the_labeler(kube: KubeApi, recorded: RecordedRequests):
    events = LabelerEvents(kube, AlreadySaid(), now=lambda: NOW, quiet_seconds=lambda: 0.0)
    assert await events.say(NODE, SYNCED)
    assert await events.say(NODE, Notice(reason="AReason", message="message"), particular="message")
    assert_unchanged("kubernetes_events_of_labeler", recorded.requests)


async def test_the_events_of_csr(kube: KubeApi, recorded: RecordedRequests):
    events = CsrEvents(kube, NODES.get, now=lambda: NOW, observe_only=False)
    events.denied(a_request(), "names", "message")
    events.waits(a_request(), "addresses", "message", ("db-1", "db-2"))
    await events.last_words()
    assert_unchanged("kubernetes_events_of_csr", without_texts(recorded.requests))


async def test_the_events_of_ipam(kube: KubeApi, recorded: RecordedRequests):
    events = ipam.NodeEvents(
        kube, everybodys=tuple, is_foreign=lambda name: False, now=lambda: NOW, observe_only=False
    )
    for reason in (
        ipam.NOT_AVAILABLE,
        ipam.ASSIGNMENT_FAILED,
        ipam.OTHER_ALLOCATOR,
        ipam.CONFLICT,
        ipam.ADDRESSES_IGNORED,
    ):
        events.tell(NODE.name, NODE.uid, reason, "message")
    await events.last_words()
    assert_unchanged("kubernetes_events_of_ipam", recorded.requests)


async def test_the_events_of_lifecycle(kube: KubeApi, recorded: RecordedRequests):
    events = LifecycleEvents(kube, now=lambda: NOW, observe_only=False)
    events.deleting(NODE, "message")
    events.failed(NODE, "message")
    events.would_delete(NODE, "message")
    await events.last_words()
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
    file: dict[str, Any] = {"cloud_config": mounted.path, "file_look_seconds": 0.01}
    given |= {"changed": lambda: None}
    labeler = WatchConfig(LabelerSettings(**file), **given)
    pools = WatchPools(IpamSettings(**file), in_use=dict, **given)
    watches: tuple[WatchConfig | WatchPools, ...] = (labeler, pools)
    for watch in watches:
        async with doing(watch.run()):
            for text in (bad, good):
                mounted.swap(text)
                await eventually(one_more(recorded), "the Event is written")
    found = [without_hash(each) for each in without_texts(recorded.requests)]
    assert_unchanged("kubernetes_events_about_config", found)


def one_more(recorded: RecordedRequests) -> Callable[[], bool]:
    """Whether another request has come since."""
    before = len(recorded.requests)
    return lambda: len(recorded.requests) > before


def test_the_conditions_of_certificate_requests_and_the_names_of_checks():
    claims = claims_of(*NODES.values(), *words_of_metadata())
    conditions: set[tuple[str, str, str]] = set()
    checks: set[str] = set()
    for case in CASES:
        event = csr_enriched(case.request(), facts=FACTS["web-1"], node_uid="uid-web-1")
        judged = decide(event, claims, POLICY)
        checks.update(check.name for check in judged.checks)
        match judged.decision:
            case Approve() | Deny() as decision:
                condition = condition_of(decision)
                conditions.add((condition.type, condition.status, condition.reason))
            case Wait(reason=name):
                checks.add(name)
    found = {"conditions": sorted(conditions), "checks": sorted(checks)}
    assert_unchanged("kubernetes_csr_conditions", found)
