"""Finds the requested addresses that the facts of a machine do not prove, so that metadata dials them."""

import ipaddress
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from cryptography import x509

from libs.common.contract.ip_addresses import canonical_ip, list_node_ips
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.pod_cidrs import PodCidrIndex
from libs.common.contract.public_addresses import counts, iterate_machine_addresses
from libs.common.contract.signing_request import SigningRequest

MAX_DIALLED: Final = 4  # per request


class ClaimingNode(Protocol):
    """A Node with the facts of its machine, as metadata or a command knows them."""

    @property
    def node(self) -> Node | None: ...

    @property
    def facts(self) -> MachineFacts | None: ...

    @property
    def last_known(self) -> MachineFacts | None: ...


class AddressClaimIndex:
    """The addresses that each Node claims: in its object, by its machine's facts, or by last known facts.

    A lookup updates the index for the Nodes that changed since the last lookup.
    """

    def __init__(self, nodes: Mapping[str, ClaimingNode]) -> None:
        self._nodes = nodes
        self._changed: set[str] = set()
        self._addresses: dict[str, frozenset[str]] = {}  # by Node name
        self._claimants: dict[str, tuple[str, ...]] = {}  # by address; nearly always one, in less than a set
        self._newly_contested: set[str] = set()  # Node names, until they are taken
        self._pod_cidrs = PodCidrIndex()
        self._has_new_pod_cidrs = False

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

    def is_in_other_pod_cidr(self, address: str, name: str) -> bool:
        """Return whether the address is in a podCIDR of a Node other than `name`."""
        self._refresh_changed()
        return bool(self._pod_cidrs.find_others(address, name))

    def list_node_ips(self, name: str) -> tuple[str, ...]:
        """Return the node IPs that the kubelet of that Node announces, without invalid ones."""
        state = self._nodes.get(name)
        return () if state is None or state.node is None else _select_dialable(_iter_node_ips(state.node))

    def take_newly_contested(self, requesting: Iterable[str] = ()) -> set[str]:
        """Return the Nodes with an address that another Node shares since the last call.

        If a podCIDR is new, also those of the `requesting` Nodes with a node IP in one of another Node.
        """
        self._refresh_changed()
        found, self._newly_contested = self._newly_contested, set()
        if self._has_new_pod_cidrs:
            self._has_new_pod_cidrs = False
            found.update(
                name
                for name in requesting
                if any(self.is_in_other_pod_cidr(ip, name) for ip in self.list_node_ips(name))
            )
        return found

    def _refresh_changed(self) -> None:
        while self._changed:
            self._refresh(self._changed.pop())

    def _refresh(self, name: str) -> None:
        state = self._nodes.get(name)
        node = state.node if state is not None else None
        pod_cidrs = node.spec.pod_cidrs if node is not None else ()
        self._has_new_pod_cidrs |= self._pod_cidrs.update(name, pod_cidrs)
        now = _collect_claimed_addresses(state) if state is not None else frozenset()
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
    """Return the requested addresses that csr may only approve if the machine answers there.

    First the node IPs that the machine lists on a virtual link only, or that are in a podCIDR of another
    Node. Then the addresses of the machine that another Node claims, too. Where the machine answered
    for these facts is excluded. The request is parsed only if there is such an address, which is rare.
    """
    name, answered = request.node_name, {facts.node_ip, *facts.answering_addresses}
    attested = {*_select_dialable(iterate_machine_addresses(facts))} - answered
    listed = {canonical_ip(status.address) for status in facts.addresses} - answered
    node_ips = [address for address in claims.list_node_ips(name) if address in listed]
    doubtful = [ip for ip in node_ips if ip not in attested or claims.is_in_other_pod_cidr(ip, name)]
    claimed = sorted(address for address in attested if claims.has_other_claimant(address, name))
    found = dict.fromkeys((*doubtful, *claimed))
    if not found:
        return ()
    requested = parse_requested_addresses(request)
    return tuple(address for address in found if address in requested)[:MAX_DIALLED]


def _collect_claimed_addresses(state: ClaimingNode) -> frozenset[str]:
    if state.node is None:
        return frozenset()
    texts = [written.address for written in state.node.status.addresses]
    texts.extend(_iter_node_ips(state.node))
    for facts in {id(one): one for one in (state.facts, state.last_known) if one is not None}.values():
        texts.extend(iterate_machine_addresses(facts))
    return frozenset(_select_dialable(texts))


def _iter_node_ips(node: Node) -> Iterator[str]:
    return map(str.strip, node.provided_node_ip.split(",")[:2])


def _select_dialable(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses in canonical form without prefix length, without invalid ones and repetitions."""
    return tuple(ip for ip in dict.fromkeys(map(canonical_ip, texts)) if list_node_ips(ip))


def lacks_requested_address(request: SigningRequest, facts: MachineFacts) -> bool:
    """Return whether the request contains an address that the machine does not have, or not yet."""
    reported = {canonical_ip(status.address) for status in facts.addresses if counts(status, facts)}
    return not parse_requested_addresses(request) <= reported


def parse_requested_addresses(request: SigningRequest) -> frozenset[str]:
    """Return the IP SANs in canonical form; none if the request cannot be parsed. Never raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual encodings; csr reports them
            extensions = x509.load_pem_x509_csr(request.spec.request).extensions
            names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found = names.get_values_for_type(x509.IPAddress)
    except Exception:  # noqa: BLE001 - hostile bytes: the parser raises more errors than it documents
        return frozenset()
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise  # a signal or the exit of the process
        return frozenset()  # PanicException: a failed assertion in the parser, which stays usable
    return frozenset(
        canonical_ip(str(ip)) for ip in found if isinstance(ip, ipaddress.IPv4Address | ipaddress.IPv6Address)
    )
