"""Rules that change while the labeler runs: valid ones reach every Node within seconds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.node import BLOCKED_CONDITION, Node
from libs.common.contract.subjects import DEAD_LETTERS, OBSERVED_NODE
from libs.common.kube.errors import Forbidden, Invalid
from libs.common.observability import metrics
from libs.testbed.child_process import HANG_SECONDS
from services.labeler.core.own_writes import ROLLOUT_SECONDS
from services.labeler.service import LabelerService
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes, run_labeler, wait_until_rolled_out
from tests.service_flow import MountedConfigMap

BAD_YAML = "transformations: [{nam: one}]\n"
BAD_TEMPLATE = 'transformations:\n- name: team\n  labels:\n    team: "{{ .Zone "\n'


def team(value: str, *, on: str = "") -> str:
    """A file with one rule that sets the label `team`, on machines with that hostname or on all."""
    one = f"\n  nodeSelector: [{{matchExpressions: [{{key: hostname, operator: In, values: [{on}]}}]}}]"
    return f"transformations:\n- name: team{one if on else ''}\n  labels: {{team: {value}}}\n"


def fleet(count: int) -> list[Node]:
    return [make_node(f"n{number}", uid=f"uid-{number}") for number in range(count)]


@pytest.fixture
def mounted(tmp_path: Path) -> MountedConfigMap:
    folder = tmp_path / "config"
    folder.mkdir()
    return MountedConfigMap(folder, "")


@asynccontextmanager
async def a_ruled_fleet(
    flow: FlowActor, mounted: MountedConfigMap, nodes: list[Node]
) -> AsyncIterator[tuple[LabelerService, InMemoryNodes]]:
    """A labeler with the mounted file has initialized these Nodes."""
    kube = InMemoryNodes(*nodes)
    async with ruled(flow, kube, mounted) as labeler:
        await joined(flow, nodes)
        yield labeler, kube


@asynccontextmanager
async def ruled(
    flow: FlowActor, kube: InMemoryNodes, mounted: MountedConfigMap, **settings: Any
) -> AsyncIterator[LabelerService]:
    """Run a labeler that polls its file without a pause and starts a rollout without a delay."""
    file = parse_cloud_config(mounted.path.read_text(), str(mounted.path))
    quick = {"cloud_config_poll_seconds": 0.01, "rollout_spread_seconds": 0.0}
    running = run_labeler(flow.url, kube, cloud_config=mounted.path, file=file, **(quick | settings))
    async with running as labeler:
        yield labeler


async def joined(flow: FlowActor, nodes: list[Node]) -> None:
    """Enrich the Nodes and wait until they are initialized and all messages are handled."""
    for node in nodes:
        await flow.enrich(node, make_facts(node_name=node.name, hostname=node.name))
    for node in nodes:
        await flow.wait_for_decision(node.name, "initialized", "updated")
    await flow.wait_until_handled()


def says(kube: InMemoryNodes, value: str | None, *nodes: Node) -> Callable[[], bool]:
    return lambda: {kube.node(node.name).labels.get("team") for node in nodes} == {value}


async def seen_by(flow: FlowActor, kube: InMemoryNodes, nodes: list[Node], *labelers: LabelerService) -> None:
    """Publish the current Nodes as the watcher and wait until the labelers have received them."""
    places = {node.name: await flow.publish_node(kube.node(node.name)) for node in nodes}

    def all_heard() -> bool:
        heard = [
            (labeler._stream_cache.get(f"{OBSERVED_NODE}.{name}"), place)
            for labeler in labelers
            for name, place in places.items()
        ]
        return all(message and message.sequence == place for message, place in heard)

    await wait_until(all_heard, "the labelers receive it")


# ---- a good file


async def test_a_decision_names_the_rules_that_match(flow: FlowActor, mounted: MountedConfigMap):
    mounted.replace_text(team("red", on="n1"))
    async with a_ruled_fleet(flow, mounted, fleet(2)):
        rules = {name: await flow.get_decision(name) for name in ("n0", "n1")}
    assert {name: decided and decided.rules for name, decided in rules.items()} == {"n0": (), "n1": ("team",)}


async def test_changed_rules_reach_every_node_and_only_those_that_they_change_are_written(
    flow: FlowActor, mounted: MountedConfigMap
):
    nodes = fleet(30)
    mounted.replace_text(team("red"))
    async with a_ruled_fleet(flow, mounted, nodes) as (labeler, kube):
        assert says(kube, "red", *nodes)()
        await wait_until_rolled_out(labeler)
        before = len(kube.list_patches())
        mounted.replace_text(team("red") + team("blue", on="n7").partition("\n")[2])
        await wait_until(says(kube, "blue", nodes[7]), "the new rule is obeyed")
        await wait_until_rolled_out(labeler)
        assert says(kube, "red", *nodes[:7], *nodes[8:])()
        assert kube.list_patches()[before:] == ["nodes"]
        mounted.replace_text("")
        await wait_until(says(kube, None, *nodes), "what the rules had set is taken away")
        await wait_until_rolled_out(labeler)
    assert len(kube.list_patches()) == before + 1 + len(nodes)


async def test_other_comments_write_nothing_and_say_nothing(flow: FlowActor, mounted: MountedConfigMap):
    nodes = fleet(5)
    mounted.replace_text(team("red"))
    async with a_ruled_fleet(flow, mounted, nodes) as (labeler, kube):
        await wait_until_rolled_out(labeler)
        before, said = kube.list_patches(), [await flow.get_decision_sequence(node.name) for node in nodes]
        old = labeler._config_reloader.current()
        mounted.replace_text("# a comment, so that every line is another one\n" + team("red"))
        await wait_until(lambda: labeler._config_reloader.current() is not old, "the file is read")
        await wait_until_rolled_out(labeler)
        assert kube.list_patches() == before
        assert [await flow.get_decision_sequence(node.name) for node in nodes] == said


async def test_a_labeler_that_starts_with_another_file_obeys_it_on_nodes_that_nobody_speaks_of(
    flow: FlowActor, mounted: MountedConfigMap
):
    nodes = fleet(3)
    async with a_ruled_fleet(flow, mounted, nodes) as (_, kube):
        pass
    mounted.replace_text(team("red"))
    async with ruled(flow, kube, mounted):
        await wait_until(says(kube, "red", *nodes), "the rules of the start are obeyed")


async def test_rules_that_change_while_a_change_is_carried_out_are_the_ones_that_hold_in_the_end(
    flow: FlowActor, mounted: MountedConfigMap
):
    nodes = fleet(40)
    kube = InMemoryNodes(*nodes)
    held, release = asyncio.Event(), asyncio.Event()

    async def hold(_resource: str, _name: str, _patch: Any) -> None:
        held.set()
        await release.wait()

    async with ruled(flow, kube, mounted) as labeler:
        await joined(flow, nodes)
        await wait_until_rolled_out(labeler)
        before = len(kube.list_patches())
        kube.admit = hold  # an API server that takes its time
        mounted.replace_text(team("red"))
        await asyncio.wait_for(held.wait(), HANG_SECONDS)
        red = labeler._config_reloader.current()
        mounted.replace_text(team("blue"))
        await wait_until(lambda: labeler._config_reloader.current() is not red, "the second change is read")
        release.set()
        await wait_until(says(kube, "blue", *nodes), "the second change is obeyed")
        await wait_until_rolled_out(labeler)
    assert len(kube.list_patches()) - before <= len(nodes) + 16  # twice only those that were in flight


# ---- a file with mistakes


@pytest.mark.parametrize(
    ("bad", "mistake"),
    [
        (BAD_YAML, 'line 1: transformations[0] has no key "nam"'),
        (BAD_TEMPLATE, 'line 4: transformations[0].labels["team"] is not a valid template'),
    ],
    ids=["yaml", "template"],
)
async def test_a_bad_file_is_told_everywhere_and_what_the_last_good_one_said_stays(
    flow: FlowActor, mounted: MountedConfigMap, bad: str, mistake: str
):
    [node] = nodes = fleet(1)
    kube = InMemoryNodes(node)
    mounted.replace_text(team("red"))
    success = metrics.RULES_RELOAD_SUCCESS.labels("labeler")
    errors = metrics.RULES_RELOAD_ERRORS.labels("labeler")
    before = errors._value.get()
    async with ruled(flow, kube, mounted) as labeler:
        await joined(flow, nodes)
        assert success._value.get() == 1
        mounted.replace_text(bad)
        await wait_until(lambda: bool(labeler.problems()), "it is not ready")
        [problem] = labeler.problems()
        assert mistake in problem
        assert "the configuration of 2026-03-01T12:00:00Z stays in use" in problem
        await wait_until(lambda: bool(kube.list_event_reasons("kube-system")), "it is reported")
        event = next(event for event in kube.events if event.regarding.kind == "Namespace")
        assert (event.reason, event.type) == ("CloudConfigRejected", "Warning")
        assert mistake in event.message
        assert (success._value.get(), errors._value.get()) == (0, before + 1)
        await flow.enrich(kube.node("n0"), make_facts(node_name="n0", hostname="n0"))
        await flow.wait_until_handled()
        assert says(kube, "red", node)()
        mounted.replace_text(team("blue"))
        await wait_until(says(kube, "blue", node), "the next good one is obeyed")
        assert (labeler.problems(), success._value.get()) == ((), 1)
        await wait_until(
            lambda: kube.list_event_reasons("kube-system")[-1] == "CloudConfigAccepted",
            "the return is reported",
        )


async def test_observe_only_tells_mistakes_to_everybody_but_kubernetes(
    flow: FlowActor, mounted: MountedConfigMap
):
    kube = InMemoryNodes()
    async with ruled(flow, kube, mounted, observe_only=True) as labeler:
        mounted.replace_text(BAD_YAML)
        await wait_until(lambda: bool(labeler.problems()), "it is not ready")
        mounted.replace_text("")
        await wait_until(lambda: not labeler.problems(), "it is ready again")
    assert kube.requests == []


# ---- trouble


async def test_rules_that_change_while_kubernetes_is_down_are_obeyed_when_it_is_back(
    flow: FlowActor, mounted: MountedConfigMap
):
    nodes = fleet(10)
    async with a_ruled_fleet(flow, mounted, nodes) as (_, kube):
        kube.failing = {"nodes": Forbidden("no right", status=403)}
        before = len(kube.requests)
        mounted.replace_text(team("red"))
        await wait_until(lambda: len(kube.requests) >= before + 2 * len(nodes), "each is tried again")
        kube.failing.clear()
        await wait_until(says(kube, "red", *nodes), "the rules are obeyed")


async def test_a_node_that_kubernetes_refuses_for_good_is_put_aside_and_stops_nobody(
    flow: FlowActor, mounted: MountedConfigMap
):
    nodes = fleet(3)
    kube = InMemoryNodes(*nodes)

    async def refuse_one(resource: str, name: str, _patch: Any) -> None:
        if (resource, name) == ("nodes", "n1"):
            raise Invalid("metadata.labels: Invalid value", status=422)

    async with ruled(flow, kube, mounted) as labeler:
        await joined(flow, [nodes[0], nodes[2]])
        kube.admit = refuse_one  # an admission webhook against one Node
        mounted.replace_text(team("red"))
        await flow.enrich(nodes[1], make_facts(node_name="n1", hostname="n1"))
        await wait_until(says(kube, "red", nodes[0], nodes[2]), "the others are written")
        await flow.wait_until_handled()
        await wait_until_rolled_out(labeler)
        letter = await flow.bus.get_last(f"{DEAD_LETTERS}.labeler.node.n1")
    assert letter is not None
    assert "metadata.labels: Invalid value" in str(letter.event)


async def test_a_node_waits_and_says_why_while_the_taint_of_a_rule_is_forbidden(
    flow: FlowActor, mounted: MountedConfigMap
):
    [node] = fleet(1)
    kube, clock = InMemoryNodes(node), ManualClock()
    accept, refusals = kube.admit, 0

    async def refuse_apart(resource: str, _name: str, patch: Any) -> None:
        nonlocal refusals
        if resource == "nodes" and "apart" in list_added_taints(patch):
            refusals += 1
            raise Forbidden("admission webhook says no", status=403)

    kube.admit = refuse_apart
    mounted.replace_text(team("red") + "  taints: {apart: 'yes:NoExecute'}\n")
    facts = make_facts(node_name="n0", hostname="n0")
    async with ruled(flow, kube, mounted, clock=clock) as labeler:
        await flow.publish_node(node)
        await flow.enrich(node, facts)

        async def says_why() -> bool:
            clock.advance(1.0)
            await flow.publish_leading()
            await labeler._uninitialized_node_monitor.check_nodes()
            condition = kube.node("n0").find_condition(BLOCKED_CONDITION)
            if condition is None or condition.reason != "NodeWriteFailed":
                return False
            return "taints of rules (apart:NoExecute)" in condition.message

        await wait_until(says_why, "the Node says why it waits")
        before, writes = refusals, kube.list_writes().count("nodes/status")
        await flow.enrich(kube.node("n0"), facts)
        await wait_until(lambda: refusals > before, "it is tried again")
        assert kube.list_writes().count("nodes/status") == writes, "the condition stays as it is"
        assert not kube.node("n0").is_initialized
        kube.admit = accept
        await joined(flow, [kube.node("n0")])
        assert "apart" in {taint.key for taint in kube.node("n0").spec.taints}
        await flow.enrich(kube.node("n0"), facts)
        await wait_until(
            lambda: kube.node("n0").find_condition(BLOCKED_CONDITION) is None, "the condition goes"
        )


def list_added_taints(json_patch: Any) -> list[str]:
    added = (each for each in json_patch if each["op"] == "add" and each["path"] == "/spec/taints/-")
    return [each["value"]["key"] for each in added]


async def test_nothing_is_written_while_nobody_leads_and_all_of_it_afterwards(
    flow: FlowActor, mounted: MountedConfigMap
):
    nodes = fleet(3)
    kube, clock = InMemoryNodes(*nodes), ManualClock()
    async with ruled(flow, kube, mounted, clock=clock) as labeler:
        await joined(flow, nodes)
        await wait_until_rolled_out(labeler)
        before = kube.list_patches()
        clock.advance(10.5)
        old = labeler._config_reloader.current()
        mounted.replace_text(team("red"))
        await wait_until(lambda: labeler._config_reloader.current() is not old, "the file is read")
        assert labeler._flow.list_pause_reasons()
        assert kube.list_patches() == before
        await flow.publish_leading()
        await wait_until(says(kube, "red", *nodes), "the rules are obeyed")


async def test_two_replicas_write_each_node_once(flow: FlowActor, mounted: MountedConfigMap):
    nodes = fleet(20)
    kube = InMemoryNodes(*nodes)
    async with (
        ruled(flow, kube, mounted, seed=1) as first,
        ruled(flow, kube, mounted, seed=2) as second,
    ):
        await joined(flow, nodes)
        for labeler in (first, second):
            await wait_until_rolled_out(labeler)
        await seen_by(flow, kube, nodes, first, second)
        before = kube.list_writes().count("nodes")
        # The second one starts when the watcher has told what the first one did, as after a random while.
        flow_of_second, list_reasons = second._flow, second._flow.list_pause_reasons
        flow_of_second.list_pause_reasons = lambda: ("hindered",)  # type: ignore[method-assign]
        mounted.replace_text(team("red"))
        await wait_until(says(kube, "red", *nodes), "the rules are obeyed")
        await seen_by(flow, kube, nodes, second)
        await wait_until(second._rollout._requested.is_set, "the second one wants to")
        flow_of_second.list_pause_reasons = list_reasons  # type: ignore[method-assign]
        await wait_until_rolled_out(second)
    assert kube.list_writes().count("nodes") == before + len(nodes)


async def test_replicas_that_read_a_change_at_different_times_do_not_undo_each_others_writes(
    flow: FlowActor, mounted: MountedConfigMap, tmp_path: Path
):
    [node] = nodes = fleet(1)
    kube, clock = InMemoryNodes(node), ManualClock()
    folder = tmp_path / "late"
    folder.mkdir()
    late = MountedConfigMap(folder, team("red"))
    mounted.replace_text(team("red"))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ruled(flow, kube, mounted, seed=1, clock=clock))
        await joined(flow, nodes)
        # By its first rollout, the second one has applied its rules to the Node, too.
        second = await stack.enter_async_context(ruled(flow, kube, late, seed=2, clock=clock))
        for labeler in (first, second):
            await wait_until_rolled_out(labeler)
        clock.advance(ROLLOUT_SECONDS + 1)
        await flow.publish_leading()
        mounted.replace_text(team("blue"))
        await wait_until(says(kube, "blue", node), "the first one obeys")
        before = kube.list_writes().count("nodes")
        for _ in range(12):  # whichever gets the word
            now = kube.node("n0")
            await flow.enrich(now, make_facts(node_name="n0", hostname="n0"))
            await flow.wait_until_handled()
            assert says(kube, "blue", node)()
        assert kube.list_writes().count("nodes") == before
        red = second._config_reloader.current()
        late.replace_text(team("blue"))
        await wait_until(lambda: second._config_reloader.current() is not red, "the second one reads it, too")
        await wait_until_rolled_out(second)
        assert kube.list_writes().count("nodes") == before
