"""The search of targets: what Nodes do, what the process receives of it, and each rule left out.

A message that is lost makes the table incomplete until the next snapshot, which may never come.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from libs.clouds.balancers import Target
from libs.common.contract.node import Node
from services.cloud.core.balancers import select_targets as core
from services.cloud.core.balancers.select_targets import EXCLUDE_LABEL, TargetRules, TargetSelection
from tests.builders import make_node
from tests.model.clouds.core_patches import patch_core
from tests.model.search import Model, Step

NodeState = Literal["absent", "present", "excluded", "deleted", "unknown"]
MIN_STATES: Final = 200  # fewer: the model has lost steps
_NEXT: Final[Mapping[NodeState, tuple[NodeState, ...]]] = {
    "absent": ("present",),
    "present": ("excluded", "deleted"),
    "excluded": ("present", "deleted"),
}
_ENDED: Final = ("excluded", "deleted")
_RULES: Final = TargetRules(parse_provider_id=lambda text: text.partition("://")[2] or None)


class World(msgspec.Struct, frozen=True):
    """Two Nodes, what the process has received of them, and the targets of a load balancer by Node."""

    nodes: tuple[NodeState, ...] = ("present", "absent")
    seen: tuple[NodeState, ...] = ("absent", "absent")  # "unknown": the table lacks the Node
    is_complete: bool = True
    targets: frozenset[int] = frozenset()
    losses: int = 1
    violation: str = ""


@cache
def _make_node(number: int, state: NodeState) -> Node:
    labels = {EXCLUDE_LABEL: "true"} if state == "excluded" else {}
    return make_node(f"web-{number}", labels=labels, taints=(), provider_id=f"hcloud://{number}")


def _select(world: World) -> TargetSelection:
    by_state = [(state, _make_node(number, state)) for number, state in enumerate(world.seen)]
    return core.select_targets(
        [node for state, node in by_state if state in ("present", "excluded")],
        deleted=[node for state, node in by_state if state == "deleted"],
        is_complete=world.is_complete,
        selector=(),
        rules=_RULES,
    )


def _put(states: tuple[NodeState, ...], number: int, state: NodeState) -> tuple[NodeState, ...]:
    return (*states[:number], state, *states[number + 1 :])


def list_steps(world: World) -> Iterator[Step[World]]:
    """Yield what may happen next."""
    for number, (state, seen) in enumerate(zip(world.nodes, world.seen, strict=True)):
        for after in _NEXT.get(state, ()):
            yield Step(
                f"Node {number}: {after}", replace(world, nodes=_put(world.nodes, number, after)), False
            )
        if seen not in (state, "unknown"):
            yield Step(
                f"the process receives Node {number}",
                replace(world, seen=_put(world.seen, number, state)),
                True,
            )
        if world.losses and seen in ("present", "excluded"):
            lost = replace(world, seen=_put(world.seen, number, "unknown"), is_complete=False)
            yield Step(f"the message of Node {number} expires", replace(lost, losses=world.losses - 1), False)
    if not world.is_complete:
        yield Step("a snapshot arrives", replace(world, seen=world.nodes, is_complete=True), False)
    yield from _list_changes(world)


def _list_changes(world: World) -> Iterator[Step[World]]:
    present = {Target(instance_id=str(number)): number for number in world.targets}
    planned = {int(each.instance_id) for each in _select(world).plan(present)}
    for number in sorted(world.targets - planned):
        after = replace(world, targets=world.targets - {number})
        if world.nodes[number] == "present" and world.seen[number] not in _ENDED:
            after = replace(after, violation=f"Node {number} is no target, and should be one")
        yield Step(f"target {number} goes", after, True)
    for number in sorted(planned - world.targets):
        yield Step(f"target {number} comes", replace(world, targets=world.targets | {number}), True)


def find_unfinished(world: World) -> str:
    """Return which target is wrong where nothing happens by itself, also while the table is incomplete."""
    for number, state in enumerate(world.seen):
        if number in world.targets and state in _ENDED:
            return f"Node {number} is {state}, and stays a target"
        if number not in world.targets and state == "present":
            return f"Node {number} is no target"
    return ""


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The search with all rules, or with `patches` of the core."""

    violation: str = ""
    patches: Mapping[str, Any] = {}

    @contextmanager
    def open_model(self) -> Iterator[Model[World]]:
        """Yield the model to search."""
        with patch_core((core, TargetSelection), self.patches):
            yield Model(
                start=World(),
                list_steps=list_steps,
                build_key=lambda world: world,
                find_violation=lambda world: world.violation,
                find_unfinished=find_unfinished,
            )

    left_out = open_model


_select_targets, _plan = core.select_targets, TargetSelection.plan


def _forget_deleted(nodes: Any, **fields: Any) -> TargetSelection:
    return _select_targets(nodes, **fields | {"deleted": ()})


def _plan_as_complete(selection: TargetSelection, current: Any) -> tuple[Target, ...]:
    return _plan(replace(selection, is_complete=True), current)


def _plan_frozen(selection: TargetSelection, current: Any) -> tuple[Target, ...]:
    return tuple(current) if not selection.is_complete else _plan(selection, current)


def _nothing(_: Node) -> None:
    return None


SEARCHES: Final[Mapping[str, Search]] = {"a lost message": Search()}
RULES: Final[Mapping[str, Search]] = {
    "an incomplete table removes no target that it does not know": Search(
        violation="is no target, and should be one", patches={"plan": _plan_as_complete}
    ),
    "a Node that was seen deleted leaves an incomplete table, too": Search(
        violation="is deleted, and stays a target", patches={"select_targets": _forget_deleted}
    ),
    "an excluded Node leaves": Search(
        violation="is excluded, and stays a target", patches={"_explain_excluded": _nothing}
    ),
    "an incomplete table freezes only unknown targets": Search(
        violation="Node", patches={"plan": _plan_frozen}
    ),
}
