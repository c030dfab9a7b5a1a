"""Knows from the flow which Nodes have a providerID, and which joining Nodes will get it."""

from bisect import insort
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.ownership import parse_scheme
from libs.common.contract.events import NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.instances import make_instance_key
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.platforms import OUR_SCHEME
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.plan.provider_id import derive_future_provider_id
from services.labeler.core.plan.provider_id_conflict import Claim, ProviderIDConflict, judge_holder
from services.labeler.core.rules.compilation import Rules, select_provider_id_rules

# The longest time from a plan to its result in the flow: 5 s in the queue of requests, 15 s for the request,
# and 9 s until the watcher publishes the Node.
SETTLE_SECONDS: Final = 30.0


class _JoiningNode(msgspec.Struct, frozen=True):
    claim: Claim
    key: str  # of its future providerID; "" while nothing gives one
    arrival: int  # number of the message that gave it; replayed ones, whose order is not known, share one


class ProviderIDIndex:
    """The Nodes by the providerID that they have or will get.

    The first created of several joining Nodes with the same providerID gets it. Each replica has received all
    messages up to that of the Node that it plans. If two replicas plan two such Nodes at once, the one with
    the later message sees the other Node. So the younger Node waits for the older one. The older one waits
    until the flow shows a write for the younger one that was planned before its own message.
    """

    def __init__(
        self,
        stream_cache: StreamCache,
        config: Callable[[], ClusterConfig],
        clock: Callable[[], float],
    ) -> None:
        """`config` returns the current settings; `clock` is monotonic, in seconds."""
        self._stream_cache = stream_cache
        self._config = config
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """Forget all Nodes."""
        self._names: dict[str, set[str]] = {}  # key of a providerID -> Nodes that have it
        self._keys: dict[str, str] = {}  # the same by name
        self._joining: dict[str, _JoiningNode] = {}  # by name
        self._claims: dict[str, list[Claim]] = {}  # key of a future providerID -> joining Nodes, in order
        self._changed: dict[str, int] = {}  # joining Nodes whose key is to be derived -> arrival
        self._arrivals = 0
        self._waiting: dict[str, tuple[str, float]] = {}  # uid -> key, and since when a younger Node has it
        self._rules_of: ClusterConfig | None = None  # the settings of `_rules`
        self._rules = Rules()

    def apply(self, event: object) -> None:
        """Apply an event of the flow."""
        match event:
            case NodeObserved(node=node):
                self._store(node.name, make_instance_key(node.spec.provider_id))
            case NodeEnriched(node=node) | NodeUnreachable(node=node) if node.name not in self._keys:
                self._arrivals += not self._stream_cache.is_replaying
                self._changed[node.name] = self._arrivals
            case NodeGone(name=name, uid=uid):
                self._store(name, "")
                self._changed.pop(name, None)
                self._forget_joining(name)
                self._waiting.pop(uid, None)

    def find_conflict(self, node: Node, facts: MachineFacts, provider_id: str) -> ProviderIDConflict | None:
        """Return a Node that keeps this one from getting the providerID, else a stale one, else None."""
        key, stale = make_instance_key(provider_id), None
        for name in sorted(self._names.get(key, ())):
            holder = self._observed(name)
            if name == node.name or holder is None or make_instance_key(holder.spec.provider_id) != key:
                continue
            report = self._stream_cache.get_event(f"{ENRICHED_NODE}.{name}")
            found = ProviderIDConflict(other=name, why_withheld=judge_holder(node, facts, holder, report))
            if found.why_withheld:
                return found
            stale = found
        self._derive_changed(node, facts, key)
        return self._find_joining_conflict(node, key) or stale

    def _find_joining_conflict(self, node: Node, key: str) -> ProviderIDConflict | None:
        claims = self._claims.get(key, ())
        others = (each.name for each in claims if each.name != node.name and self._is_joining(each))
        first = next(others, None)  # of a thousand Nodes with the same providerID, most end here
        if first is None:
            return None
        if self._joining[first].claim < Claim.of(node):
            return ProviderIDConflict(
                other=first, why_withheld="that Node was created first, and will have the same one"
            )
        earlier = next((each for each in (first, *others) if self._may_be_planned_without(node, each)), None)
        if earlier is None:
            return None
        now = self._clock()
        waits_for, since = self._waiting.get(node.uid, ("", now))
        if waits_for != key:
            since = now
        self._waiting[node.uid] = (key, since)
        if now - since >= SETTLE_SECONDS:
            return None
        return ProviderIDConflict(
            other=earlier,
            why_withheld=f"that Node will have the same one, and may get it within {SETTLE_SECONDS:.0f} s",
        )

    def _may_be_planned_without(self, node: Node, other: str) -> bool:
        """Return whether a replica may have planned `other` before the message about `node`."""
        ours = self._joining.get(node.name)
        return ours is None or ours.claim.uid != node.uid or self._joining[other].arrival <= ours.arrival

    def _is_joining(self, claim: Claim) -> bool:
        observed = self._observed(claim.name)
        return observed is not None and observed.uid == claim.uid

    def _derive_changed(self, planned: Node, facts: MachineFacts, planned_key: str) -> None:
        """Derive the future providerIDs of Nodes whose facts or rules have changed.

        The plan of `planned` has already derived its key from the same facts, unless it is a fallback.
        """
        is_native = parse_scheme(planned_key) != OUR_SCHEME
        config = self._config()
        if config is not self._rules_of:
            self._rules_of, self._rules = config, select_provider_id_rules(config.rules)
            self._changed = dict.fromkeys(self._joining, self._arrivals) | self._changed
        for name, arrival in self._changed.items():
            event = self._stream_cache.get_event(f"{ENRICHED_NODE}.{name}")
            before = self._joining.get(name)
            self._forget_joining(name)
            if not isinstance(event, NodeEnriched):
                continue
            claim = Claim.of(event.node)
            if is_native and claim.uid == planned.uid and event.facts == facts:
                key = planned_key
            else:
                key = make_instance_key(derive_future_provider_id(event.node, event.facts, self._rules))
            is_same = before is not None and (before.claim, before.key) == (claim, key)
            self._joining[name] = before if before and is_same else _JoiningNode(claim, key, arrival)
            if key:
                insort(self._claims.setdefault(key, []), claim)
        self._changed = {}

    def _forget_joining(self, name: str) -> None:
        if (joining := self._joining.pop(name, None)) and joining.key:
            claims = self._claims[joining.key]
            claims.remove(joining.claim)
            if not claims:
                del self._claims[joining.key]

    def _store(self, name: str, key: str) -> None:
        if before := self._keys.pop(name, ""):
            names = self._names[before]
            names.discard(name)
            if not names:
                del self._names[before]
        if key:
            self._keys[name] = key
            self._names.setdefault(key, set()).add(name)
            self._forget_joining(name)
            self._changed.pop(name, None)

    def _observed(self, name: str) -> Node | None:
        event = self._stream_cache.get_event(f"{OBSERVED_NODE}.{name}")
        return event.node if isinstance(event, NodeObserved) else None
