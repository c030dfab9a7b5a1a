"""Knows from the flow which Nodes have a providerID, and which joining Nodes will get it."""

from bisect import insort
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple, Self

from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import Event, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.instances import make_instance_key
from libs.common.contract.ip_addresses import list_node_ips, parse_ip
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.platforms import OUR_SCHEME, parse_scheme
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE
from libs.common.contract.system_uuid import normalize_uuid
from libs.common.contract.timestamp import parse_time
from services.labeler.core.blocker import WAITING_FOR_OTHER_NODES
from services.labeler.core.instance_metadata import InstanceMetadataIndex
from services.labeler.core.plan.plan import ClusterConfig, Plan, ProviderIDConflict
from services.labeler.core.plan.plan_node import withhold_provider_id
from services.labeler.core.plan.provider_id import find_native_provider_id
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.compilation import Rules, select_provider_id_rules

# The longest time from a plan to its result in the flow: 5 s in the queue of requests, 15 s for the request,
# and 9 s until the watcher publishes the Node.
SETTLE_SECONDS: Final = 30.0
# A machine that restarts is silent for some minutes, and returns.
_RESTART_PERIOD: Final = timedelta(minutes=10)
_MAX_NAMED: Final = 3  # Nodes in the text of a condition


class Claim(NamedTuple):
    """A joining Node; of several that will have the same providerID, the least gets it."""

    created_at: float  # Unix time, in seconds
    uid: str
    name: str

    @classmethod
    def of(cls, node: Node) -> Self:
        """Return the claim of that Node."""
        created = node.metadata.creation_timestamp
        return cls(created.timestamp() if created is not None else 0.0, node.uid, node.name)


class ProviderIDIndex:
    """The Nodes by the providerID that they have or will get.

    The first created of several joining Nodes with the same providerID gets it. Each replica has received all
    messages up to that of the Node that it plans. If two replicas plan two such Nodes at once, the one with
    the later message sees the other Node. So the younger Node waits for the older one. The older one waits
    until the flow shows a write for the younger one that may have been planned before its own message.
    """

    def __init__(
        self,
        stream_cache: StreamCache,
        config: Callable[[], ClusterConfig],
        clock: Callable[[], float],
        instance_metadata: InstanceMetadataIndex,
    ) -> None:
        """`config` returns the current settings; `clock` is monotonic, in seconds."""
        self._stream_cache = stream_cache
        self._config = config
        self._clock = clock
        self._instance_metadata = instance_metadata
        self.clear()

    def clear(self) -> None:
        """Forget all Nodes."""
        self._names: dict[str, set[str]] = {}  # key of a providerID -> Nodes that have it
        self._keys: dict[str, str] = {}  # the same by name
        # By name: a joining Node, and the key of its future providerID, "" while nothing gives one.
        self._joining: dict[str, tuple[Claim, str]] = {}
        self._claims: dict[str, list[Claim]] = {}  # key of a future providerID -> joining Nodes, in order
        self._changed: set[str] = set()  # joining Nodes whose key is to be derived
        self._waiting: dict[str, tuple[str, float]] = {}  # uid -> key, and since when a younger Node has it
        self._rules_of: ClusterConfig | None = None  # the settings of `_rules`
        self._rules = Rules()

    def apply(self, event: object) -> None:
        """Apply an event of the flow."""
        match event:
            case NodeObserved(node=node):
                self._store(node.name, make_instance_key(node.spec.provider_id))
            case NodeEnriched(node=node) | NodeUnreachable(node=node) if node.name not in self._keys:
                self._changed.add(node.name)
            case NodeGone(name=name, uid=uid):
                self._store(name, "")
                self._changed.discard(name)
                self._forget_joining(name)
                self._waiting.pop(uid, None)

    def withhold_from(self, plan: Plan, node: Node, facts: MachineFacts) -> Plan:
        """Return the plan, without its providerID or with a notice if another Node has it."""
        provider_id = plan.changes.provider_id
        conflict = self.find_conflict(node, facts, provider_id) if provider_id else None
        return withhold_provider_id(plan, node, conflict) if conflict else plan

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
        return self._find_joining_conflict(node, key) or self._find_unknown_nodes(node) or stale

    def _find_joining_conflict(self, node: Node, key: str) -> ProviderIDConflict | None:
        claims = self._claims.get(key, ())
        first = next((each for each in claims if each.name != node.name and self._is_joining(each)), None)
        if first is None:
            return None
        if first < Claim.of(node):
            return ProviderIDConflict(
                other=first.name, why_withheld="that Node was created first, and will have the same one"
            )
        now = self._clock()
        waits_for, since = self._waiting.get(node.uid, ("", now))
        if waits_for != key:
            since = now
        self._waiting[node.uid] = (key, since)
        if now - since >= SETTLE_SECONDS:
            return None
        return ProviderIDConflict(
            other=first.name,
            why_withheld=f"that Node will have the same one, and may get it within {SETTLE_SECONDS:.0f} s",
        )

    def _find_unknown_nodes(self, node: Node) -> ProviderIDConflict | None:
        """Return the other Nodes whose providerID is unknown, as one conflict; None without them."""
        names = sorted({*self._stream_cache.list_unknown(OBSERVED_NODE)} - {node.name})
        if not names:
            return None
        more = [f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
        return ProviderIDConflict(
            other=" or ".join(names[:_MAX_NAMED] + more),
            why_withheld="the last message about it is of a newer version, or of a former leader or stream",
            reason=WAITING_FOR_OTHER_NODES,
        )

    def _is_joining(self, claim: Claim) -> bool:
        observed = self._observed(claim.name)
        return observed is not None and observed.uid == claim.uid

    def _derive_changed(self, planned: Node, facts: MachineFacts, planned_key: str) -> None:
        """Derive the future providerIDs of Nodes whose facts, supplied metadata or rules have changed.

        The plan of `planned` has already derived its key from the same facts, unless it is a fallback.
        """
        is_native = parse_scheme(planned_key) != OUR_SCHEME
        config = self._config()
        if config is not self._rules_of:
            self._rules_of, self._rules = config, select_provider_id_rules(config.rules)
            self._changed.update(self._joining)
        self._changed |= self._instance_metadata.take_changed() & self._joining.keys()
        for name in self._changed:
            event = self._stream_cache.get_event(f"{ENRICHED_NODE}.{name}")
            self._forget_joining(name)
            if not isinstance(event, NodeEnriched):
                continue
            event = self._instance_metadata.complete(event)
            claim = Claim.of(event.node)
            if is_native and claim.uid == planned.uid and event.facts == facts:
                key = planned_key
            else:
                effects = apply_rules(self._rules, event.facts)
                future = find_native_provider_id(event.node, event.facts, effects, self._rules)
                key = make_instance_key(future) if isinstance(future, str) else ""
            self._joining[name] = claim, key
            if key:
                insort(self._claims.setdefault(key, []), claim)
        self._changed.clear()

    def _forget_joining(self, name: str) -> None:
        claim, key = self._joining.pop(name, (None, ""))
        if claim and key:
            claims = self._claims[key]
            claims.remove(claim)
            if not claims:
                del self._claims[key]

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
            self._changed.discard(name)

    def _observed(self, name: str) -> Node | None:
        event = self._stream_cache.get_event(f"{OBSERVED_NODE}.{name}")
        return event.node if isinstance(event, NodeObserved) else None


def judge_holder(node: Node, facts: MachineFacts, holder: Node, report: Event | None) -> str:
    """Return why the Node must not get the providerID that `holder` has; "" if `holder` is stale.

    `report` is metadata's last event about `holder`. Stale means that its machine no longer answers, or is
    the machine of `node`, which was reinstalled under a new name.
    """
    if isinstance(report, NodeEnriched) and report.node.uid == holder.uid:
        theirs = report.facts.node_name
        return "" if theirs == facts.node_name else f"machine {theirs} answers as that Node"
    fault = report.fault.kind if isinstance(report, NodeUnreachable) and report.node.uid == holder.uid else ""
    uuid, other_uuid = (normalize_uuid(each.status.node_info.system_uuid) for each in (node, holder))
    is_same_machine = bool(uuid) and uuid == other_uuid
    # Kubernetes notices only after 40 s or more that the former kubelet is gone. The systemUUID alone is no
    # proof, because each kubelet writes its own.
    has_its_address = parse_ip(facts.node_ip) in list_node_ips(holder.provided_node_ip)
    if is_same_machine and fault == "wrong_machine" and has_its_address:
        return ""
    ready = holder.find_condition("Ready")
    if ready is not None and ready.status == "True":
        return "the kubelet of that Node is Ready"
    if is_same_machine:
        return ""
    if not fault and holder.provided_node_ip:
        return "metadata has not reported on the machine of that Node yet"
    since = parse_time(ready.last_transition_time) if ready is not None else None
    if since is not None and facts.queried_at - since < _RESTART_PERIOD:
        return "the machine of that Node may only be restarting"
    return ""
