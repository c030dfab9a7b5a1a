"""The labeler's writes: a Node's status, the Node, and Events on it; none of them in observe-only mode."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from libs.common import metrics, telemetry
from libs.common.kube_api.errors import FenceFailed, Forbidden, Invalid, KubeError
from libs.common.kube_api.events import ObjectEvent
from libs.common.kube_api.transport import CONNECTIONS
from libs.common.node import CONDITION_BLOCKED, Node
from libs.common.patch import node_patch, status_patch
from services.labeler.already_said import AlreadySaid
from services.labeler.answers import Answers
from services.labeler.blocked import Blocked, condition
from services.labeler.node_events import NodeEvents
from services.labeler.plan import Notice, Plan, continued
from services.labeler.refused import (
    NOTHING_REFUSED,
    Refused,
    keeps_uninitialized,
    refused_with,
    why_it_waits,
)

# Requests for plans at once. Those that hang leave connections to what is said of the Nodes that wait.
_AT_ONCE: Final = CONNECTIONS - 4

PlanFor = Callable[[Node, Refused], Plan]  # for that Node, without what has been refused
IsForeign = Callable[[Node], bool]  # whether the file has that Node be another's by now


class Kubernetes(Protocol):
    """What the labeler may do there; `kube_api.KubeApi` does it."""

    async def get_node(self, name: str) -> Node: ...
    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node: ...
    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any], /) -> Node: ...
    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class _Room:
    """Lets so many requests for plans go at once, and knows for how long there has been none."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._wanted_by = 0
        self._quiet_since = float("-inf")

    def quiet_seconds(self) -> float:
        """For how long nobody has been in here, or waited to be."""
        return 0.0 if self._wanted_by else asyncio.get_running_loop().time() - self._quiet_since

    async def __aenter__(self) -> None:
        self._wanted_by += 1
        try:
            await self._room.acquire()
        except BaseException:
            self._wanted_no_more()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._room.release()
        self._wanted_no_more()

    def _wanted_no_more(self) -> None:
        self._wanted_by -= 1
        self._quiet_since = asyncio.get_running_loop().time()


class NodeApi:
    """Carries out plans, at most one patch for the status and one for the Node each."""

    def __init__(
        self,
        kube: Kubernetes,
        told: AlreadySaid,
        answers: Answers,
        *,
        now: Callable[[], datetime],
        observe_only: bool,
        is_foreign: IsForeign = lambda node: False,
    ) -> None:
        self._kube = kube
        self._room = _Room()
        self.events = NodeEvents(
            kube, told, now=now, quiet_seconds=self._room.quiet_seconds, is_foreign=is_foreign
        )
        self._answers = answers
        self._now = now
        self._observe_only = observe_only

    async def get(self, name: str) -> Node:
        """The Node as it is now. Raises NotFound."""
        async with self._room:
            return self._kept(await self._kube.get_node(name))

    def newest(self, node: Node) -> Node:
        """What we see of a Node, or what the API server has told us of it since."""
        return self._answers.newest(node)

    async def apply(self, node: Node, plan_for: PlanFor, is_foreign: IsForeign = lambda node: False) -> Plan:
        """Make the Node what the plan says: addresses first, so that nothing lands on it before it has them.

        `is_foreign` is asked before each write: waiting for its turn takes long when the API server is slow.
        Raises KubeError; FenceFailed means that the Node is not what it was planned for.
        """
        plan = plan_for(node, NOTHING_REFUSED)
        if self._observe_only:
            return plan
        unblocked = CONDITION_BLOCKED if plan.unblock else ""
        status = status_patch(node, addresses=plan.addresses, remove_condition=unblocked, now=self._now())
        if not status:
            return await self._patched(node, plan, plan_for, is_foreign)
        async with self._room:
            _check(node, is_foreign)
            node = self._kept(await self._kube.patch_node_status(node.name, status))
        rest = plan_for(node, NOTHING_REFUSED)
        return continued(plan, await self._patched(node, rest, plan_for, is_foreign))

    async def _patched(self, node: Node, plan: Plan, plan_for: PlanFor, is_foreign: IsForeign) -> Plan:
        """What of the plan is in the Node now: all, or all but what rules want and Kubernetes refuses."""
        refused, tried = NOTHING_REFUSED, [plan]
        while (error := await self._refusal(node, plan, is_foreign)) is not None:
            refused, plan = _with_less(node, tried, plan_for, refused, error)
            tried.append(plan)
        return plan

    async def _refusal(self, node: Node, plan: Plan, is_foreign: IsForeign) -> KubeError | None:
        """Write it; why the API server did not, if that may be for what rules want."""
        try:
            await self._patch(node, plan, is_foreign)
        except (Invalid, Forbidden) as error:
            return error
        return None

    async def _patch(self, node: Node, plan: Plan, is_foreign: IsForeign) -> None:
        operations = node_patch(node, plan.changes)
        if operations:
            async with self._room:
                _check(node, is_foreign)
                self._kept(await self._kube.patch_node(node.name, operations))

    def tell(self, node: Node, plan: Plan) -> None:
        """Measures and, behind the writes, Events of what has been written."""
        if self._observe_only:
            return
        if plan.outcome == "initialized":
            self._measure(node)
        self.events.tell(node, plan)

    async def block(self, node: Node, blocked: Blocked, *, with_event: bool) -> None:
        """Let the Node itself say why it waits. Raises KubeError."""
        if self._observe_only:
            return
        status = status_patch(node, set_condition=condition(blocked), now=self._now())
        if status:
            self._kept(await self._kube.patch_node_status(node.name, status))
        if with_event:
            await self.events.say(node, Notice(reason=blocked.reason, message=blocked.message))

    async def say(self, node: Node, notice: Notice) -> bool:
        """One Event on the Node; whether it was told (by us or, in the same minute, by another replica)."""
        return not self._observe_only and await self.events.say(node, notice)

    def _kept(self, answer: Node) -> Node:
        self._answers.keep(answer)
        return answer

    def _measure(self, node: Node) -> None:
        created = node.metadata.creation_timestamp
        if created is not None:
            seconds = (self._now() - created).total_seconds()
            metrics.TAINT_REMOVAL_DELAY.observe(seconds, telemetry.exemplar())
            metrics.INITIAL_SYNC_DELAY.observe(seconds)


def _with_less(
    node: Node, tried: Sequence[Plan], plan_for: PlanFor, refused: Refused, error: KubeError
) -> tuple[Refused, Plan]:
    """The next plan to try, with less of what rules want. Raises the error when there is none."""
    fields: tuple[str, ...] = tuple(cause.field for cause in error.causes)
    while (more := refused_with(refused, fields, str(error))) is not None:
        refused, fields = more, ()
        plan = plan_for(node, refused)
        if all(plan.changes != before.changes for before in tried):
            if keeps_uninitialized(node, refused):
                error.add_note(why_it_waits(tried[-1].changes.set_taints))
                break
            if isinstance(error, Forbidden) and node.initialized and not plan.node_writes:
                break  # perhaps a right is missing, and is granted soon: then it is tried again soon
            return refused, plan
    raise error


def _check(node: Node, is_foreign: IsForeign) -> None:
    if is_foreign(node):
        raise FenceFailed("by the --cloud-config file it is another's by now")
