"""When a machine whose cloud reports nothing gets its fallback providerID: metadata's messages, planned."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from libs.common.contract.events import NodeEnriched, NodeGone, NodeObserved
from libs.common.contract.machine import SETTLING_PERIOD, MachineFacts
from libs.common.contract.node import Node
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.plan.plan_node import plan_node
from services.metadata.core.node_state import create_state
from services.metadata.core.node_step import PollMachine, decide_node_step
from services.metadata.core.object_state import (
    Observation,
    PollIntervals,
    Publication,
    Publish,
    Timing,
    make_observation,
)
from tests.builders import NOW, make_facts, make_message, make_node, make_node_observed

CREATED = NOW - timedelta(seconds=2)
INCOMPLETE_CAP = timedelta(seconds=30)


def created_node() -> Node:
    node = make_node()
    return replace(node, metadata=replace(node.metadata, creation_timestamp=CREATED))


def publish(
    node: Node, facts: MachineFacts, *, seconds: float, restart_at: float = -1.0, jitter: float = 0.5
) -> Iterator[NodeEnriched]:
    """Yield what metadata publishes about a Node whose machine always reports the same facts.

    The process restarts at `restart_at`; the stream has its last message.
    """
    observed = make_node_observed(node)
    observation: Observation[NodeObserved | NodeGone] = make_observation(
        make_message(observed, sequence=7), observed
    )
    state = create_state(observation, Publication(republish_at=0.0), now=0.0, prefer_ipv6=False)
    now = 0.0
    while now < seconds:
        timing = Timing(now=now, jitter=jitter, intervals=PollIntervals())
        if 0.0 <= restart_at <= now:
            restart_at = -1.0
            state = create_state(observation, state.publication, now=now, prefer_ipv6=False)
        step = decide_node_step(state, now=now, wall_time=NOW + timedelta(seconds=now))
        if isinstance(step, PollMachine):
            polled = replace(facts, queried_at=NOW + timedelta(seconds=now))
            state = state.polled(polled, None, all_nodes=[], began=now, timing=timing)
        elif isinstance(step, Publish):
            assert isinstance(step.event, NodeEnriched)
            yield step.event
            state = state.published(step.event, timing)
        else:
            now += 1.0


def is_initialized_by(event: NodeEnriched) -> bool:
    plan = plan_node(event.node, event.facts, event.verified_by, ClusterConfig())
    return plan.outcome == "initialized"


@pytest.mark.parametrize("platform", ["nocloud", "newer-than-we-are"])
@pytest.mark.parametrize("provider_id", ["", "metal3://1"])
@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("restart_at", [-1.0, 200.0, 297.0, 299.0])
def test_a_node_without_cloud_metadata_is_initialized_within_30_s_of_the_fifth_minute(
    platform: str, provider_id: str, jitter: float, restart_at: float
):
    node = created_node()
    node = replace(node, spec=replace(node.spec, provider_id=provider_id))
    events = publish(node, make_facts(platform=platform), seconds=600.0, restart_at=restart_at, jitter=jitter)
    first = next(event for event in events if is_initialized_by(event))
    waited = first.enriched_at - CREATED
    assert SETTLING_PERIOD <= waited <= SETTLING_PERIOD + INCOMPLETE_CAP


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.99])
def test_only_a_machine_without_cloud_metadata_costs_another_message_and_only_one(jitter: float):
    node, hour = created_node(), 3600.0
    healthy = list(publish(node, make_facts(platform="metal"), seconds=hour, jitter=jitter))
    native = list(publish(node, make_facts(platform="hcloud"), seconds=hour, jitter=jitter))
    late = list(publish(node, make_facts(platform="nocloud"), seconds=hour, jitter=jitter))
    assert len(native) == len(healthy)
    assert len(late) <= len(healthy) + 1
