"""The verification of a machine: facts of another machine are never used for a Node."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import AddressStatus, MachineFault
from libs.common.contract.node import NodeAddress
from libs.common.contract.system_uuid import normalize_uuid
from services.metadata.core.identity import MachineIdentity, verify
from tests.builders import make_facts, make_node

UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
SWAPPED = "44454c4c-3700-104b-8057-b2c04f4d4e31"
RENAMED = make_facts(node_name="talos-abc", uuid=UUID)


def test_the_node_name_decides():
    assert verify(make_node(), make_facts(), None) == MachineIdentity(
        method="nodename", reason="Talos at 10.0.0.5 reports node name web-1"
    )


def test_a_machine_without_a_node_name_is_not_verified_whatever_its_uuid():
    fault = verify(make_node(system_uuid=UUID), make_facts(node_name="", uuid=UUID), [])
    assert isinstance(fault, MachineFault)
    assert (fault.kind, fault.step) == ("not_found", "Nodename")


@pytest.mark.parametrize("kubelet_says", [UUID, UUID.upper(), SWAPPED, SWAPPED.upper()])
def test_a_renamed_node_is_verified_by_its_uuid_in_either_byte_order(kubelet_says):
    recognized = verify(make_node(system_uuid=kubelet_says), RENAMED, [make_node("web-2", ip="10.0.0.6")])
    assert isinstance(recognized, MachineIdentity)
    assert recognized.method == "system-uuid"
    assert "talos-abc" in recognized.reason
    assert "web-1" in recognized.reason


@pytest.mark.parametrize(
    ("other", "claim"),
    [
        (make_node("talos-abc", ip="10.0.0.9"), "Node talos-abc has its node name too"),
        (make_node("web-2", ip="10.0.0.9", system_uuid=SWAPPED), "Node web-2 has its systemUUID too"),
        (make_node("web-2", ip="10.0.0.5"), "Node web-2 has its address 10.0.0.5 too"),
        (
            make_node(
                "web-2", ip="10.0.0.9", addresses=(NodeAddress(type="ExternalIP", address="198.51.100.7"),)
            ),
            "Node web-2 has its address 198.51.100.7 too",
        ),
    ],
)
def test_a_machine_that_another_node_claims_is_not_verified(other, claim):
    facts = msgspec.structs.replace(
        RENAMED,
        addresses=(
            AddressStatus(address="10.0.0.5/24", link="eth0"),
            AddressStatus(address="198.51.100.7/32", link="external"),
        ),
    )
    fault = verify(make_node(system_uuid=UUID), facts, [make_node(system_uuid=UUID), other])
    assert isinstance(fault, MachineFault)
    assert fault.kind == "wrong_machine"
    assert "talos-abc" in fault.message
    assert "web-1" in fault.message
    assert claim in fault.message


def test_no_machine_is_verified_by_uuid_before_all_nodes_are_known():
    fault = verify(make_node(system_uuid=UUID), RENAMED, None)
    assert isinstance(fault, MachineFault)
    assert "not all Nodes are known yet" in fault.message


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "not a uuid",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "11111111-2222-1111-2222-111111111111",
        "4c4c4544-0037-4b10-8057-b2c04f4d4e3１",
    ],
)
def test_a_uuid_that_many_boards_share_verifies_no_machine(junk):
    assert not normalize_uuid(junk)
    facts = make_facts(node_name="talos-abc", uuid=junk or "x")
    assert isinstance(verify(make_node(system_uuid=junk), facts, []), MachineFault)


def test_without_smbios_only_the_name_counts():
    facts = make_facts(node_name="talos-abc")
    assert facts.system is None
    assert isinstance(verify(make_node(system_uuid=UUID), facts, []), MachineFault)


@given(st.uuids())
def test_both_byte_orders_of_a_uuid_are_equal(uuid):
    swapped = str(type(uuid)(bytes=uuid.bytes_le))
    assert normalize_uuid(str(uuid)) == normalize_uuid(swapped.upper())


NAMES = st.sampled_from(["web-1", "web-2", "talos-abc", ""])
UUIDS = st.sampled_from(["", UUID, SWAPPED, "9a5a5544-0000-4b10-8057-b2c04f4d4e31"])
NODES = st.builds(
    lambda name, uuid, ip: make_node(name, system_uuid=uuid, ip=ip),
    st.sampled_from(["web-1", "web-2", "talos-abc"]),
    UUIDS,
    st.sampled_from(["", "10.0.0.5", "10.0.0.6", "junk"]),
)


@given(NODES, NAMES, UUIDS, st.none() | st.lists(NODES, max_size=4))
def test_a_machine_is_verified_only_by_its_name_or_by_an_uncontested_uuid(node, name, uuid, others):
    found = verify(node, make_facts(node_name=name, uuid=uuid), others)
    if isinstance(found, MachineFault):
        assert name != node.name
        return
    if found.method == "nodename":
        assert name == node.name
        return
    assert name
    assert others is not None
    rest = [other for other in others if other.name != node.name]
    assert normalize_uuid(uuid) == normalize_uuid(node.status.node_info.system_uuid) != ""
    assert all(other.name != name and other.provided_node_ip != "10.0.0.5" for other in rest)
    assert all(normalize_uuid(other.status.node_info.system_uuid) != normalize_uuid(uuid) for other in rest)
