"""Events that only report the labeler's own writes are not planned; all others are."""

from typing import Any

import msgspec
import pytest

from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node, NodeCondition, Taint
from services.labeler.core.mutation_cache import ENTRY_TTL_SECONDS
from services.labeler.core.plan import ClusterConfig
from services.labeler.core.write_echoes import WriteEchoes
from tests.builders import UNINITIALIZED, make_facts, make_node, make_node_enriched
from tests.manual_clock import ManualClock

CONFIG = ClusterConfig()
OBSERVED = 7  # the sequence of the observation behind the written plan


def version(number: int, **fields: Any) -> Node:
    return make_node(resource_version=str(number), **fields)


def enriched(node: Node, *, facts: MachineFacts | None = None, observed: int = OBSERVED + 1) -> NodeEnriched:
    return make_node_enriched(node, facts or make_facts(), observed_sequence=observed)


@pytest.fixture
def echoes(clock: ManualClock) -> WriteEchoes:
    """A write that left version 102, planned from an event about version 100."""
    echoes = WriteEchoes(clock)
    echoes.record(version(102), enriched(version(100), observed=OBSERVED), CONFIG)
    return echoes


def test_the_echo_of_a_write_is_not_planned_and_the_next_event_is(echoes: WriteEchoes):
    assert echoes.take(enriched(version(102)), version(102), CONFIG)
    assert not echoes.take(enriched(version(102), observed=9), version(102), CONFIG)


def test_a_state_from_before_the_write_is_not_planned_and_the_echo_still_is_not(echoes: WriteEchoes):
    assert echoes.take(enriched(version(101)), version(102), CONFIG)
    assert echoes.take(enriched(version(102), observed=9), version(102), CONFIG)


@pytest.mark.parametrize(
    "change",
    [{"labels": {}}, {"taints": ()}, {"provider_id": "talos://other"}, {"ip": "10.0.0.6"}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_after_the_write_is_planned(echoes: WriteEchoes, change: dict[str, Any]):
    changed = version(103, **change)
    assert not echoes.take(enriched(changed), changed, CONFIG)
    assert not echoes.take(enriched(version(104), observed=9), version(104), CONFIG), "it no longer counts"


def test_a_change_that_the_event_does_not_report_yet_is_planned(echoes: WriteEchoes):
    assert not echoes.take(enriched(version(102)), version(103, labels={}), CONFIG)


@pytest.mark.parametrize(
    "change",
    [
        {"conditions": (NodeCondition(type="Ready", status="True"),)},
        {"taints": (UNINITIALIZED, Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"))},
        {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        {"pod_cidrs": ("10.244.1.0/24",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_fields_that_nobody_plans_from_is_not_planned(
    echoes: WriteEchoes, change: dict[str, Any]
):
    changed = version(103, **change)
    assert echoes.take(enriched(changed), changed, CONFIG)


def test_a_node_of_the_same_name_is_planned(echoes: WriteEchoes):
    successor = version(102, uid="uid-2")
    assert not echoes.take(enriched(successor), successor, CONFIG)


@pytest.mark.parametrize(
    "facts", [make_facts(region="elsewhere"), make_facts(platform="hcloud", provider_id="hcloud://7")]
)
def test_other_facts_are_planned(echoes: WriteEchoes, facts: MachineFacts):
    assert not echoes.take(enriched(version(102), facts=facts), version(102), CONFIG)


def test_the_same_facts_of_a_later_query_are_not_planned(echoes: WriteEchoes, clock: ManualClock):
    later = msgspec.structs.replace(make_facts(), queried_at=clock.now())
    assert echoes.take(enriched(version(102), facts=later), version(102), CONFIG)


def test_another_recognition_of_the_machine_is_planned(echoes: WriteEchoes):
    event = msgspec.structs.replace(enriched(version(102)), verified_by="system-uuid")
    assert not echoes.take(event, version(102), CONFIG)


def test_changed_settings_are_planned(echoes: WriteEchoes):
    assert not echoes.take(enriched(version(102)), version(102), ClusterConfig(cluster_name="other"))


def test_the_periodic_message_about_a_known_observation_is_planned(echoes: WriteEchoes):
    assert not echoes.take(enriched(version(100), observed=OBSERVED), version(102), CONFIG)


def test_a_write_expires(echoes: WriteEchoes, clock: ManualClock):
    clock.advance(ENTRY_TTL_SECONDS + 1)
    assert not echoes.take(enriched(version(102)), version(102), CONFIG)


def test_expired_writes_to_other_nodes_take_no_memory(echoes: WriteEchoes, clock: ManualClock):
    clock.advance(ENTRY_TTL_SECONDS + 1)
    echoes.record(version(5, name="web-2"), enriched(version(4, name="web-2")), CONFIG)
    assert list(echoes._writes) == ["web-2"]


def test_a_deleted_node_is_forgotten(echoes: WriteEchoes):
    echoes.forget("web-1")
    assert not echoes.take(enriched(version(102)), version(102), CONFIG)
