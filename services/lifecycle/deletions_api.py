"""Deletes a Node: asks again at that moment, counts it, asks once more, and tells before and after."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from libs.common import metrics
from libs.common.cloud_config.rule import Ownership
from libs.common.kube_api.errors import Conflict, KubeError, NotFound
from libs.common.node import Node
from services.lifecycle.decide import Case, Delete, Keep, not_ours
from services.lifecycle.evidence import shows_life
from services.lifecycle.known_nodes import KnownNodes
from services.lifecycle.node_events import NodeEvents
from services.lifecycle.record_api import Record

log = logging.getLogger(__name__)

FAILED_REST_SECONDS: Final = (
    600.0  # a failure, or a lost answer, is no reason to try again without all proofs
)
CAPPED_REST_SECONDS: Final = 30.0  # there is no room again that soon: nobody needs to be asked

Judge = Callable[[Case], Delete | Keep]


class Nodes(Protocol):
    """What is needed of `kube_api.KubeApi`."""

    async def get_node(self, name: str) -> Node: ...

    async def delete_node(self, name: str, *, uid: str, resource_version: str) -> None: ...


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    outcome: str  # "deleted", "would-delete", "kept" or "not-owned"
    reason: str


class Deletions:
    """One at a time; a dry run does all but the deletion."""

    def __init__(
        self,
        kube: Nodes,
        *,
        known: KnownNodes,
        record: Record,
        events: NodeEvents,
        ownership: Callable[[], Ownership],
        judge: Judge,
        dry: bool,
        clock: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._known = known
        self._record = record
        self._events = events
        self._ownership = ownership
        self._judge = judge
        self._dry = dry
        self._clock = clock
        self._failed: dict[str, tuple[str, float]] = {}  # name -> uid, when
        self._would: dict[str, str] = {}  # name -> uid, of those that a dry run has told
        self._capped: tuple[str, float] = ("", float("-inf"))  # why, until when

    async def delete(self, seen: Node, judged: Delete) -> Done:
        """Delete it, if that still holds. Raises KubeError if Kubernetes cannot be asked."""
        if self._would.get(seen.name) == seen.uid:
            return Done(outcome="would-delete", reason=judged.reason)
        if why := self._why_rests(seen):
            return Done(outcome="kept", reason=f"{judged.reason}; but {why}")
        try:
            node = await self._kube.get_node(seen.name)
        except NotFound:
            return Done(outcome="kept", reason="there is no such Node any more")
        refused = self._why_not(seen, node)
        if refused is not None:
            return refused
        if why := await self._record.spend(node.name):
            self._capped = (why, self._clock() + CAPPED_REST_SECONDS)
            metrics.LIFECYCLE_CAPPED.inc()
            log.warning("a Node is kept though its machine is gone", extra={"node": node.name, "reason": why})
            return Done(outcome="kept", reason=f"{judged.reason}; but {why}")
        refused = self._why_not(seen, node)  # that took a moment, in which much can be heard
        if refused is not None:
            return refused
        return self._tell(node, judged) if self._dry else await self._delete(node, judged)

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._failed.pop(name, None)
        self._would.pop(name, None)

    def _why_rests(self, node: Node) -> str:
        uid, at = self._failed.get(node.name, ("", 0.0))
        if uid == node.uid and self._clock() - at < FAILED_REST_SECONDS:
            return "its deletion failed a moment ago"
        why, until = self._capped
        return why if self._clock() < until else ""

    def _why_not(self, seen: Node, node: Node) -> Done | None:
        if node.uid != seen.uid or shows_life(seen, node):
            self._known.forget_history(node.name)
        if node.uid != seen.uid:
            return Done(outcome="kept", reason="another Node bears the name now")
        if why := not_ours(self._ownership(), node):
            return Done(outcome="not-owned", reason=why)
        judged = self._judge(self._known.case(node))
        return Done(outcome="kept", reason=judged.reason) if isinstance(judged, Keep) else None

    def _tell(self, node: Node, judged: Delete) -> Done:
        self._would[node.name] = node.uid
        self._events.would_delete(node, judged.reason)
        metrics.LIFECYCLE_DELETIONS.labels(judged.kind, "would-delete").inc()
        log.warning("dry run: the Node would be deleted", extra={"node": node.name, "reason": judged.reason})
        return Done(outcome="would-delete", reason=judged.reason)

    async def _delete(self, node: Node, judged: Delete) -> Done:
        self._events.deleting(node, judged.reason)
        self._known.forget_history(node.name)  # whatever comes of it, all proofs are needed anew
        self._failed[node.name] = (node.uid, self._clock())
        try:
            await self._kube.delete_node(
                node.name, uid=node.uid, resource_version=node.metadata.resource_version
            )
        except NotFound:
            return Done(outcome="deleted", reason=f"it is gone, by us or somebody else; {judged.reason}")
        except Conflict as error:
            return self._failure(node, judged, f"somebody wrote it meanwhile: {error}")
        except KubeError as error:
            return self._failure(node, judged, str(error))
        metrics.LIFECYCLE_DELETIONS.labels(judged.kind, "deleted").inc()
        log.warning("the Node is deleted", extra={"node": node.name, "reason": judged.reason})
        return Done(outcome="deleted", reason=judged.reason)

    def _failure(self, node: Node, judged: Delete, why: str) -> Done:
        self._events.failed(node, why)
        metrics.LIFECYCLE_DELETIONS.labels(judged.kind, "failed").inc()
        log.error("the Node could not be deleted", extra={"node": node.name, "error": why})
        return Done(outcome="kept", reason=f"its deletion failed: {why}")
