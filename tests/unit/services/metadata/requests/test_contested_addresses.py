"""The contested addresses that are dialled: few, and only harmless ones."""

import msgspec
import pytest
from cryptography import x509

from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import NodeAddress
from services.metadata.core.contested_addresses import (
    MAX_DIALLED,
    AddressClaimIndex,
    find_contested_addresses,
    parse_requested_addresses,
)
from services.metadata.core.node_state import NodeState
from tests.builders import make_facts, make_node, make_request
from tests.metadata_csr_flow import make_request_pem
from tests.unit.services.metadata.nodes.test_node_state import joined


def known(name: str, ip: str, *, attested: tuple[str, ...] = (), written: tuple[str, ...] = ()) -> NodeState:
    addresses = tuple(NodeAddress(type="InternalIP", address=each) for each in written)
    node = make_node(name, uid=name, ip=ip, addresses=addresses)
    fresh = joined(node)
    return msgspec.structs.replace(fresh, last_known=facts_of(name, ip, *attested) if attested else None)


def facts_of(name: str, ip: str, *addresses: str) -> MachineFacts:
    statuses = tuple(AddressStatus(address=f"{each}/24", link="eth0") for each in (ip, *addresses))
    return make_facts(node_name=name, node_ip=ip, addresses=statuses)


def claims_of(*nodes: NodeState) -> tuple[AddressClaimIndex, dict[str, NodeState]]:
    held = {node.node.name: node for node in nodes if node.node is not None}
    claims = AddressClaimIndex(held)
    for name in held:
        claims.update(name)
    return claims, held


MINE = facts_of("web-1", "10.0.0.5", "10.9.0.5")


@pytest.mark.parametrize(
    "rival",
    [
        known("web-2", "10.9.0.5"),
        known("web-2", "10.0.0.6,fd00::6", written=("10.9.0.5",)),
        known("web-2", "10.0.0.6", attested=("10.9.0.5",)),
    ],
    ids=["provided", "written", "last known"],
)
def test_an_address_that_another_node_claims_in_any_way_is_contested(rival):
    claims, _ = claims_of(known("web-1", "10.0.0.5"), rival)
    request = make_request(pem=make_request_pem("10.0.0.5", "10.9.0.5"))
    assert find_contested_addresses(request, MINE, claims) == ("10.9.0.5",)


def test_only_requested_attested_and_contested_addresses_are_dialled():
    claims, _ = claims_of(known("web-1", "10.0.0.5", attested=("10.9.0.5",)), known("web-2", "10.9.0.5"))
    assert find_contested_addresses(make_request(pem=make_request_pem("10.0.0.5")), MINE, claims) == ()
    elsewhere = facts_of("web-1", "10.0.0.5", "10.7.0.5")
    assert (
        find_contested_addresses(
            make_request(pem=make_request_pem("10.9.0.5", "10.7.0.5")), elsewhere, claims
        )
        == ()
    )


def test_the_polled_address_is_not_dialled_again():
    claims, _ = claims_of(known("web-2", "10.0.0.5"))
    assert find_contested_addresses(make_request(pem=make_request_pem("10.0.0.5")), MINE, claims) == ()


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "::1", "fe80::1"]
)
def test_no_address_of_another_kind_is_ever_dialled(address):
    facts = facts_of("web-1", "10.0.0.5", address)
    claims, _ = claims_of(known("web-2", "10.0.0.6", written=(address,), attested=(address,)))
    assert find_contested_addresses(make_request(pem=make_request_pem(address)), facts, claims) == ()


def test_the_number_of_dialled_addresses_is_limited():
    many = tuple(f"10.9.0.{i}" for i in range(1, 20))
    claims, _ = claims_of(known("web-2", "10.0.0.6", attested=many))
    facts = facts_of("web-1", "10.0.0.5", *many)
    assert (
        len(find_contested_addresses(make_request(pem=make_request_pem(*many)), facts, claims)) == MAX_DIALLED
    )


def test_a_claim_ends_when_its_node_is_gone_or_loses_the_address():
    claims, held = claims_of(known("web-2", "10.9.0.5"))
    assert claims.has_other_claimant("10.9.0.5", "web-1")
    assert not claims.has_other_claimant("10.9.0.5", "web-2")
    held["web-2"] = known("web-2", "10.0.0.6")
    claims.update("web-2")
    assert not claims.has_other_claimant("10.9.0.5", "web-1")
    assert claims.has_other_claimant("10.0.0.6", "web-1")
    del held["web-2"]
    claims.update("web-2")
    assert not claims.has_other_claimant("10.0.0.6", "web-1")
    assert not claims._claimants


def test_each_node_whose_address_gets_another_claimant_is_returned_once():
    claims, held = claims_of(known("web-1", "10.0.0.5", attested=("10.9.0.5",)), known("web-2", "10.0.0.6"))
    assert claims.take_newly_contested() == set()
    held["web-2"] = known("web-2", "10.0.0.6", written=("10.9.0.5",))
    claims.update("web-2")
    assert claims.has_other_claimant("10.9.0.5", "web-1")  # a lookup in between loses nothing
    assert claims.take_newly_contested() == {"web-1", "web-2"}
    claims.update("web-2")
    assert claims.take_newly_contested() == set()


def test_the_index_keeps_nothing_about_removed_nodes():
    claims, held = claims_of(known("web-2", "10.9.0.5"))
    held.clear()
    claims.update("web-2")
    assert not claims._changed
    assert not claims._addresses


def test_addresses_are_parsed_to_their_canonical_form():
    request = make_request(pem=make_request_pem("10.0.0.5", "::ffff:10.0.0.6", "fd00:0:0::5"))
    assert parse_requested_addresses(request) == {"10.0.0.5", "10.0.0.6", "fd00::5"}


def test_a_panic_of_the_parser_is_caught_and_the_end_of_the_process_is_not(
    monkeypatch: pytest.MonkeyPatch,
):
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    def refuse(_: bytes) -> None:
        raise panic("assertion failed")

    monkeypatch.setattr(x509, "load_pem_x509_csr", refuse)
    assert parse_requested_addresses(make_request(pem=b"x")) == frozenset()
    panic.__module__ = "elsewhere"
    with pytest.raises(panic):
        parse_requested_addresses(make_request(pem=b"x"))
