"""Which addresses of a machine other Nodes lay claim to: there we dial and see who answers."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from libs.common.machine import MachineFacts
from libs.common.node_ips import parse_ip
from libs.common.signing_request import SigningRequest
from services.metadata.known import Known
from services.metadata.links import dial_order
from services.metadata.requested_addresses import requested_addresses

MOST_DIALLED: Final = 4  # per request


class Claims:
    """Who claims which address, by whatever is known of each Node: written, attested, or last known.

    It is brought up to date when it is asked, and only where something has changed since.
    """

    def __init__(self, known: Callable[[str], Known | None]) -> None:
        self._known = known
        self._changed: set[str] = set()
        self._addresses: dict[str, frozenset[str]] = {}  # of each Node
        self._claimants: dict[str, set[str]] = {}  # of each address

    def changed(self, name: str) -> None:
        """Something else is known of that Node, or nothing any more."""
        if self._known(name) is not None:
            self._changed.add(name)
        else:
            self._changed.discard(name)
            self._bring_up_to_date(name)

    def others(self, address: str, name: str) -> bool:
        """Whether another Node than that one claims the address."""
        while self._changed:
            self._bring_up_to_date(self._changed.pop())
        claimants = self._claimants.get(address, ())
        return len(claimants) > (name in claimants)

    def _bring_up_to_date(self, name: str) -> None:
        known = self._known(name)
        now = frozenset(_claimed(known)) if known is not None else frozenset()
        before = self._addresses.pop(name, frozenset())
        if now:
            self._addresses[name] = now
        for address in before - now:
            self._claimants[address].discard(name)
            if not self._claimants[address]:
                del self._claimants[address]
        for address in now - before:
            self._claimants.setdefault(address, set()).add(name)


def contested_addresses(request: SigningRequest, facts: MachineFacts, claims: Claims) -> tuple[str, ...]:
    """Addresses that are asked for, attested by these facts, not dialled yet, and claimed by another Node.

    The request is read only if there may be one: of most machines nobody else claims anything.
    """
    attested = set(_addresses(facts)) - {facts.node_ip}
    claimed = sorted(address for address in attested if claims.others(address, request.node_name))
    if not claimed:
        return ()
    asked_for = requested_addresses(request)
    return tuple(address for address in claimed if address in asked_for)[:MOST_DIALLED]


def _claimed(known: Known) -> Iterator[str]:
    if known.node is None:
        return
    for written in known.node.status.addresses:
        yield from _may_be_dialled(written.address)
    for text in known.node.provided_node_ip.split(",")[:2]:
        yield from _may_be_dialled(text.strip())
    for facts in {id(one): one for one in (known.facts, known.last_known) if one is not None}.values():
        yield from _addresses(facts)


def _addresses(facts: MachineFacts) -> Iterator[str]:
    yield facts.node_ip
    for status in facts.addresses:
        yield from _may_be_dialled(status.address)


@lru_cache(maxsize=8192)
def _may_be_dialled(text: str) -> tuple[str, ...]:
    """The address in its one spelling, without prefix length; () for what is none or dialled by nobody."""
    ip = parse_ip(text.split("/", maxsplit=1)[0])
    found = dial_order(str(ip), prefer_ipv6=False) if ip is not None else ()
    return found if isinstance(found, tuple) else ()
