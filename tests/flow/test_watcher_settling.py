"""Changes of an object that is about to change again wait for each other, on the bus of the all-in-one."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from libs.common.contract.events import CsrObserved, NodeGone
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequestCondition
from services.watcher.kinds import CSR, NODE
from services.watcher.work_queue import COOLDOWN_SECONDS, compute_cooldown
from tests.builders import make_node, make_request
from tests.bus_actors import wait_until
from tests.watcher_actors import PublisherActor, run_publisher

APPROVED = SigningRequestCondition(type="Approved")


def joining(version: int, **fields: Any) -> Node:
    return make_node(resource_version=str(version), **fields)


def has_arrived(actor: PublisherActor, node: Node) -> Callable[[], bool]:
    return lambda: actor.flow.observed("web-1").node == node


async def assert_one_message(first: dict[str, Any], last: dict[str, Any]) -> None:
    """Change a joining Node to `first`, to `last`, and end its join: only the final state is published."""
    async with run_publisher(NODE, joining(100)) as actor:
        actor.put(joining(101, **first))
        await actor.wait_until_settling("web-1")
        actor.put(joining(102, **last))
        initialized = joining(103, taints=(), **last)
        actor.put(initialized)
        await wait_until(has_arrived(actor, initialized), "the end of its join")
        assert len(actor.flow.list_node_events("web-1")) == 2


async def test_the_changes_of_a_joining_node_are_one_message_once_it_is_initialized():
    labels = {"a": "kubelet's"}
    await assert_one_message({"labels": labels}, {"labels": labels, "provider_id": "talos://metal/10.0.0.5"})


async def test_a_node_that_nobody_initializes_is_published_soon():
    async with run_publisher(NODE, joining(100)) as actor:
        changed = joining(101, labels={"a": "b"})
        actor.put(changed)
        await wait_until(has_arrived(actor, changed), "it waits a second at most")


async def test_a_label_that_somebody_removes_during_the_wait_is_missing_in_the_message():
    await assert_one_message({"labels": {"a": "ours"}}, {"labels": {}})


async def test_the_deletion_of_a_settling_node_is_published_at_once():
    async with run_publisher(NODE, joining(100)) as actor:
        changed = joining(101, labels={"a": "b"})
        actor.put(changed)
        await actor.wait_until_settling("web-1")
        actor.remove(changed, 102)
        await wait_until(lambda: isinstance(actor.flow.last("web-1"), NodeGone))
        assert len(actor.flow.list_node_events("web-1")) == 2, "the state between was never published"


async def test_the_successor_of_a_settling_node_is_published_at_once():
    async with run_publisher(NODE, joining(100)) as actor:
        actor.put(joining(101, labels={"a": "b"}))
        await actor.wait_until_settling("web-1")
        successor = joining(102, uid="uid-2")
        actor.put(successor)
        await wait_until(has_arrived(actor, successor))
        assert len(actor.flow.list_node_events("web-1")) == 2


@pytest.mark.parametrize("is_issued", [True, False])
async def test_an_approval_and_its_certificate_are_one_message(is_issued: bool):
    async with run_publisher(CSR, make_request(resource_version="100")) as actor:
        actor.put(make_request(resource_version="101", conditions=(APPROVED,)))
        await actor.wait_until_settling("csr-1")
        if is_issued:
            actor.put(make_request(resource_version="102", conditions=(APPROVED,), certificate="pem"))
        await wait_until(lambda: len(actor.flow.list_request_events("csr-1")) > 1)
        [_, decided] = actor.flow.list_request_events("csr-1")
        assert isinstance(decided, CsrObserved)
        assert decided.request.status.issued is is_issued


async def test_the_first_node_of_a_burst_cools_down_as_long_as_the_others():
    crowd = 100
    async with run_publisher(NODE, joining(100)) as actor:
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in range(crowd):
            actor.put(make_node(f"crowd-{number}", uid=f"uid-{number}"))
        changed = joining(101, taints=())
        actor.put(changed)
        await wait_until(has_arrived(actor, changed))
        least = compute_cooldown(crowd, at_most=NODE.max_cooldown_seconds)
        assert clock() - began > (COOLDOWN_SECONDS + least) / 2


async def test_only_the_first_state_and_the_end_of_a_node_are_logged_by_default(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "services.watcher.observation_publisher")
    async with run_publisher(NODE, joining(100)) as actor:
        changed = joining(101, taints=())
        actor.put(changed)
        await wait_until(has_arrived(actor, changed))
        actor.remove(changed, 102)
        await wait_until(lambda: isinstance(actor.flow.last("web-1"), NodeGone))
    assert [record.__dict__["reason"] for record in caplog.records] == ["new to the stream", "deleted"]
