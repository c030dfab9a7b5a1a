"""Messages that the owner of the watcher's or metadata's key publishes in the name of that service."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import EnrichedNodeGone, Leading, NodeGone, NodeObserved, SnapshotComplete
from libs.common.contract.machine import ForeignMachine, MachineFault
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE, SNAPSHOT
from tests.builders import make_cluster_networks, make_unreachable
from tests.bus_actors import wait_for_value, wait_until
from tests.integration.hostile.attacked_cluster import NODES, VICTIM, VICTIM_IP
from tests.integration.hostile.attempts import Attempt
from tests.integration.hostile.stolen_keys import StolenKeys

CarryOut = Callable[[StolenKeys], Awaitable[None]]
RESYNC: Final = "until the watcher's next resync"
replace = msgspec.structs.replace


async def delete_observed(keys: StolenKeys) -> None:
    seen = await keys.read_observed()
    await keys.publish("watcher", _make_gone(seen, seen.order.resource_version))


async def delete_observed_in_future(keys: StolenKeys) -> None:
    """No later observation of this leader is newer: the next leader's epoch is."""
    seen = await keys.read_observed()
    await keys.publish("watcher", _make_gone(seen, 2**62))
    for _ in range(2):  # the first resync may have begun before
        await _wait_for_resync(keys)
    last = await keys.cluster.bus.get_last(f"{OBSERVED_NODE}.{VICTIM}")
    assert last is not None
    assert isinstance(last.event, NodeGone)
    services = keys.cluster.services
    await services.children["watcher"].stop()
    services.restart("watcher")
    await services.wait_until_ready()


async def _wait_for_resync(keys: StolenKeys) -> None:
    before = await keys.cluster.bus.get_last(SNAPSHOT)
    await wait_for_value(
        lambda: keys.cluster.bus.get_last(SNAPSHOT),
        lambda last: before is None or last.sequence > before.sequence,
        "the next resync is complete",
    )


def _make_gone(seen: NodeObserved, resource_version: int) -> NodeGone:
    order = replace(seen.order, resource_version=resource_version)
    return NodeGone(stream_id=seen.stream_id, order=order, name=VICTIM, uid=seen.node.uid, observed_at=_now())


async def invent_node(keys: StolenKeys) -> None:
    """A Node that Kubernetes does not have, at the address of another one's machine."""
    seen = await keys.read_observed()
    metadata = replace(seen.node.metadata, name="ghost", uid="ghost")
    ghost = replace(seen, node=replace(seen.node, metadata=metadata), observed_at=_now())
    await keys.publish("watcher", ghost)
    await wait_for_value(
        lambda: keys.cluster.bus.get_last(f"{ENRICHED_NODE}.ghost"), what="metadata has queried the machine"
    )
    assert (await keys.cluster.kubelets.request("GET", f"{NODES}/ghost")).status == 404


async def lead(keys: StolenKeys) -> None:
    leading = await keys.read_leading()
    epoch = 2**64  # greater than an integer of most languages
    await keys.publish("watcher", Leading(stream_id=leading.stream_id, epoch=epoch, holder="thief"))
    await wait_for_value(
        keys.read_leading, lambda leading: leading.epoch > epoch, "the leader takes a higher epoch"
    )


async def complete_snapshot(keys: StolenKeys) -> None:
    leading = await keys.read_leading()
    await keys.publish("watcher", SnapshotComplete(stream_id=leading.stream_id, epoch=leading.epoch, nodes=0))


async def replace_machine(keys: StolenKeys) -> None:
    """All that metadata would report of a replaced machine, of a Node that is Ready."""
    known = await keys.read_enriched()
    for attempt in range(1, 6):
        now = _now()
        foreign = ForeignMachine(
            address=VICTIM_IP,
            node_name="another",
            uuid="5f0c9b1e-6f0d-4d0b-9a76-1f6f8d0c2aff",
            queried_at=now,
        )
        forged = make_unreachable(
            known.node,
            stream_id=known.stream_id,
            observed_sequence=known.observed_sequence,
            fault=MachineFault(kind="wrong_machine", step="Nodename", message="forged"),
            attempt=attempt,
            foreign_machines=(foreign,),
            retry_at=now + timedelta(seconds=1),
            observed_at=known.observed_at,
            enriched_at=now,
        )
        await keys.publish("metadata", forged)
    await keys.cluster.wait_for_decision("lifecycle", "node", VICTIM, "Ready")


async def delete_enriched(keys: StolenKeys) -> None:
    known = await keys.read_enriched()
    gone = EnrichedNodeGone(
        stream_id=known.stream_id,
        observed_sequence=known.observed_sequence,
        name=VICTIM,
        uid=known.node.uid,
    )
    await keys.publish("metadata", gone)


async def report_networks(keys: StolenKeys) -> None:
    known = await keys.read_enriched()
    networks = make_cluster_networks(
        stream_id=known.stream_id,
        pod_cidrs=("10.0.0.0/8",),
        service_cidrs=("10.97.0.0/16",),
        observed_at=_now(),
    )
    await keys.publish("metadata", networks)


async def report_false_facts(keys: StolenKeys) -> None:
    """Another zone, providerID and address of the victim's machine; metadata publishes the true ones."""
    before = await keys.cluster.snapshot_victims()

    async def is_forged() -> bool:
        known = await keys.read_enriched()
        platform = replace(known.facts.platform, zone="forged", provider_id="aws:///forged/i-1")
        facts = replace(known.facts, platform=platform, node_ip="10.66.6.6")
        await keys.publish("metadata", replace(known, facts=facts, observed_sequence=2**62))
        return "forged" in (await keys.cluster.get_node(VICTIM))["metadata"]["labels"].values()

    await wait_until(is_forged, "the labeler writes the false zone")
    assert (await keys.cluster.snapshot_victims())[VICTIM]["spec"] == before[VICTIM]["spec"]
    await wait_for_value(
        keys.cluster.snapshot_victims, before.__eq__, "the labeler writes the true zone again"
    )


def _now() -> datetime:
    return datetime.now(UTC)


def make_attempt(user: str, tries: str, outcome: str, carry_out: CarryOut) -> Attempt[StolenKeys]:
    """The attempt with that user's key."""
    return Attempt(f"`{user}`: {tries}", outcome, carry_out)


FORGED_EVENTS: tuple[Attempt[StolenKeys], ...] = (
    make_attempt(
        "watcher",
        "the deletion of an existing Node",
        f"**services treat the Node as deleted** {RESYNC}; Kubernetes keeps it",
        delete_observed,
    ),
    make_attempt(
        "watcher",
        "the same with a version of the future",
        "**services treat the Node as deleted** until the watcher restarts; Kubernetes keeps it",
        delete_observed_in_future,
    ),
    make_attempt(
        "watcher", "a Node that does not exist", "metadata queries a machine; nothing is written", invent_node
    ),
    make_attempt("watcher", "a leader with a higher epoch", "the leader takes an even higher epoch", lead),
    make_attempt(
        "watcher",
        "a complete snapshot without Nodes and requests",
        f"**csr approves nothing** {RESYNC}; nothing is deleted",
        complete_snapshot,
    ),
    make_attempt(
        "metadata",
        "false facts of another node's machine",
        "**the labeler writes false labels** until metadata publishes again; providerID and pod CIDR stay",
        report_false_facts,
    ),
    make_attempt(
        "metadata",
        "another machine in the place of a Ready Node's",
        "lifecycle keeps the Node, because it is Ready",
        replace_machine,
    ),
    make_attempt(
        "metadata",
        "the end of an existing Node",
        "metadata publishes the Node again; Kubernetes keeps it",
        delete_enriched,
    ),
    make_attempt(
        "metadata",
        "other networks of the cluster",
        "Nodes keep their pod CIDRs; the flags of ipam and csr still count",
        report_networks,
    ),
)
