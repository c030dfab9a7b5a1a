"""Finds the addresses of a machine that other Nodes claim, so that metadata dials them."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from libs.common.contract.ip_addresses import CACHE_SIZE, canonical_ip
from libs.common.contract.machine import MachineFacts
from libs.common.contract.signing_request import SigningRequest
from services.metadata.machines.dial_targets import order_dial_targets
from services.metadata.nodes.node_state import NodeState
from services.metadata.requests.requested_addresses import parse_requested_addresses

MAX_DIALLED: Final = 4  # per request


class AddressClaimIndex:
    """The addresses that each Node claims: in its object, by its machine's facts, or by last known facts.

    A lookup updates the index for the Nodes that changed since the last lookup.
    """

    def __init__(self, nodes: Mapping[str, NodeState]) -> None:
        self._nodes = nodes
        self._changed: set[str] = set()
        self._addresses: dict[str, frozenset[str]] = {}  # by Node name
        self._claimants: dict[str, tuple[str, ...]] = {}  # by address; nearly always one, in less than a set
        self._newly_contested: set[str] = set()  # Node names, until they are taken

    def update(self, name: str) -> None:
        """Mark the Node as changed, or remove its claims if it has no state any more."""
        if name in self._nodes:
            self._changed.add(name)
        else:
            self._changed.discard(name)
            self._refresh(name)

    def has_other_claimant(self, address: str, name: str) -> bool:
        """Return whether a Node other than `name` claims the address."""
        self._refresh_changed()
        claimants = self._claimants.get(address, ())
        return len(claimants) > (name in claimants)

    def take_newly_contested(self) -> set[str]:
        """Return the Nodes with an address that another Node shares since the last call."""
        self._refresh_changed()
        found, self._newly_contested = self._newly_contested, set()
        return found

    def _refresh_changed(self) -> None:
        while self._changed:
            self._refresh(self._changed.pop())

    def _refresh(self, name: str) -> None:
        state = self._nodes.get(name)
        now = frozenset(_iter_claimed_addresses(state)) if state is not None else frozenset()
        before = self._addresses.pop(name, frozenset())
        if now:
            self._addresses[name] = now
        for address in before - now:
            others = tuple(each for each in self._claimants.pop(address) if each != name)
            if others:
                self._claimants[address] = others
        for address in now - before:
            claimants = self._claimants[address] = (*self._claimants.get(address, ()), name)
            if len(claimants) > 1:
                self._newly_contested.update(claimants)


def find_contested_addresses(
    request: SigningRequest, facts: MachineFacts, claims: AddressClaimIndex
) -> tuple[str, ...]:
    """Return the requested addresses that these facts attest, but that another Node claims too.

    The facts' node IP is excluded: it was dialled for the facts. The request is parsed only if another Node
    claims an address of the machine, which is rare.
    """
    attested = set(_iter_machine_addresses(facts)) - {facts.node_ip}
    claimed = sorted(address for address in attested if claims.has_other_claimant(address, request.node_name))
    if not claimed:
        return ()
    requested = parse_requested_addresses(request)
    return tuple(address for address in claimed if address in requested)[:MAX_DIALLED]


def _iter_claimed_addresses(state: NodeState) -> Iterator[str]:
    if state.node is None:
        return
    for written in state.node.status.addresses:
        yield from _parse_dialable(written.address)
    for text in state.node.provided_node_ip.split(",")[:2]:
        yield from _parse_dialable(text.strip())
    for facts in {id(one): one for one in (state.facts, state.last_known) if one is not None}.values():
        yield from _iter_machine_addresses(facts)


def _iter_machine_addresses(facts: MachineFacts) -> Iterator[str]:
    yield facts.node_ip
    for status in facts.addresses:
        yield from _parse_dialable(status.address)


def _parse_dialable(text: str) -> tuple[str, ...]:
    """Return the address in canonical form without prefix length; () if it is invalid or never dialled."""
    ip = canonical_ip(text)
    return (ip,) if ip and _is_dialable(ip) else ()


@lru_cache(maxsize=CACHE_SIZE)
def _is_dialable(ip: str) -> bool:
    return order_dial_targets(ip, prefer_ipv6=False) == (ip,)
