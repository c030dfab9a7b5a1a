"""The machines that name an instance of this cloud, and when to ask for its metadata."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from libs.clouds.instances import Deleted, Instance, NotFound, Unanswered
from libs.common.bus.delivery import exponential_step
from libs.common.contract.events import EnrichedNodeGone, InstanceMetadata, NodeEnriched
from libs.common.contract.instance_metadata import find_named_instance
from services.cloud.core.judge_round import Query

# A Node that waits is asked for again, each time after twice the time: its machine may get another address.
_RETRY_SECONDS: Final = 60.0
_RETRY_IF_REACHED_SECONDS: Final = 10.0  # if metadata has reached it since: the labeler needs a later query
_MAX_RETRY_SECONDS: Final = 600.0


class NamedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One Node, and the instance that its machine names."""

    name: str
    uid: str
    provider_id: str  # of the instance
    instance_id: str
    reached_at: datetime  # when metadata last reached the machine
    is_waiting: bool  # the Node has no providerID


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    event: InstanceMetadata
    count: int  # of answers about this Node and instance
    received_at: float  # monotonic seconds


class NamedMachines:
    """The machines by the name of their Node, each with the last answer about its instance."""

    def __init__(self, provider: str, parse_provider_id: Callable[[str], str | None]) -> None:
        """`parse_provider_id` is that of the account's cloud."""
        self._provider = provider
        self._parse_provider_id = parse_provider_id
        self._machines: dict[str, NamedMachine] = {}
        self._answers: dict[str, _Answer] = {}

    def apply(self, event: object) -> None:
        """Apply an event of metadata. A machine that does not answer now keeps what it has named."""
        match event:
            case NodeEnriched(node=node, facts=facts):
                provider_id = find_named_instance(self._provider, facts)
                instance_id = self._parse_provider_id(provider_id)
                if instance_id is None:
                    self._machines.pop(node.name, None)
                    return
                self._machines[node.name] = NamedMachine(
                    name=node.name,
                    uid=node.uid,
                    provider_id=provider_id,
                    instance_id=instance_id,
                    reached_at=facts.queried_at,
                    is_waiting=not node.spec.provider_id,
                )
            case EnrichedNodeGone(name=name):
                self._machines.pop(name, None)
                self._answers.pop(name, None)

    def clear(self) -> None:
        """Forget everything: of another stream."""
        self._machines.clear()
        self._answers.clear()

    def is_current(self, event: InstanceMetadata) -> bool:
        """Return whether the event is about a Node and the instance that its machine names now."""
        machine = self._machines.get(event.name)
        return machine is not None and _is_about(event, machine)

    def list_named(self, instance_ids: frozenset[str]) -> list[NamedMachine]:
        """Return the machines that name one of these instances."""
        return [machine for machine in self._machines.values() if machine.instance_id in instance_ids]

    def select_due(self, now: float) -> list[NamedMachine]:
        """Return the machines whose instance is to be asked for."""
        return [machine for machine in self._machines.values() if self._is_due(machine, now)]

    def record(self, machine: NamedMachine, event: InstanceMetadata, now: float) -> bool:
        """Record the answer. Return whether to publish it: a Node waits for it, or it is another one."""
        before = self._find_answer(machine)
        count = before.count + 1 if before else 1
        self._answers[machine.name] = _Answer(event=event, count=count, received_at=now)
        return machine.is_waiting or before is None or _without_times(before.event) != _without_times(event)

    def _find_answer(self, machine: NamedMachine) -> _Answer | None:
        known = self._answers.get(machine.name)
        return known if known is not None and _is_about(known.event, machine) else None

    def _is_due(self, machine: NamedMachine, now: float) -> bool:
        known = self._find_answer(machine)
        if known is None or not machine.is_waiting:
            return known is None
        is_reached = known.event.asked_at < machine.reached_at
        base = _RETRY_IF_REACHED_SECONDS if is_reached else _RETRY_SECONDS
        return now - known.received_at >= exponential_step(known.count, first=base, cap=_MAX_RETRY_SECONDS)


def build_metadata(
    machine: NamedMachine,
    found: Instance | Deleted | NotFound | Unanswered,
    query: Query,
    *,
    account: str,
    stream_id: str,
    network: str,
) -> InstanceMetadata:
    """Return what the cloud answers for that exact instance.

    `network` is the private network in which the machines are reached, "" if it is none. Addresses of other
    private networks are left out, because a machine elsewhere may have them, too.
    """
    answer = InstanceMetadata(
        stream_id=stream_id,
        account=account,
        name=machine.name,
        node_uid=machine.uid,
        provider_id=machine.provider_id,
        asked_at=query.asked_at,
        answered_at=query.answered_at,
        credential_loaded_at=query.credential.loaded_at,
    )
    if isinstance(found, Unanswered):
        return msgspec.structs.replace(answer, why_withheld=found.reason)
    if not isinstance(found, Instance) or found.id != machine.instance_id:
        return msgspec.structs.replace(answer, why_withheld=f"it has no instance {machine.instance_id}")
    if found.is_shut_down:  # so it is not the machine that answers, which may have its address
        return msgspec.structs.replace(answer, why_withheld=f"instance {machine.instance_id} is shut down")
    return msgspec.structs.replace(
        answer,
        region=found.region,
        zone=found.zone,
        instance_type=found.instance_type,
        addresses=tuple(each.address for each in found.addresses if each.network in {"", network}),
    )


def _is_about(event: InstanceMetadata, machine: NamedMachine) -> bool:
    return (event.node_uid, event.provider_id) == (machine.uid, machine.provider_id)


def _without_times(event: InstanceMetadata) -> InstanceMetadata:
    at = event.credential_loaded_at
    return msgspec.structs.replace(event, stream_id="", asked_at=at, answered_at=at)
