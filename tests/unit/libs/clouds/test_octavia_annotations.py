"""Each annotation and each key of cloud.conf is read as cloud-provider-openstack reads it, or rejected."""

import re
from pathlib import Path
from typing import Any

import pytest

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import BalancerRequest, ParsedRequest, Port
from libs.clouds.openstack.balancers.annotations import CONFIG_KEYS, INTERNAL, PREFIX, ROWS, parse_annotations
from libs.clouds.openstack.balancers.desired import DesiredBalancer, read_request, set_reserved_address
from libs.clouds.openstack.balancers.documents import FloatingIp
from libs.clouds.openstack.balancers.octavia_balancers import OctaviaBalancers
from libs.clouds.openstack.cloud_file import read_balancer_sections
from libs.clouds.openstack.openstack_api import OpenStackApi
from tests.builders import NOW

ROOT = Path(__file__).parents[4]
ID = "5c1a7b4e-0000-4000-8000-000000000001"
PLACE = {"subnet-id": ID, "floating-network-id": ID}
UID = "5c1a7b4e-0000-4000-8000-000000000002"


def read(
    annotations: dict[str, str] | None = None,
    keys: dict[str, str] | None = None,
    ports: tuple[Port, ...] = (Port(name="http", protocol="TCP", port=80, node_port=30080),),
    **fields: Any,
) -> ParsedRequest[DesiredBalancer]:
    request = BalancerRequest(
        namespace="default", name="web", uid=UID, annotations=annotations or {}, ports=ports, **fields
    )
    return read_request(request, {"": PLACE if keys is None else keys})


def reasons(parsed: ParsedRequest[DesiredBalancer]) -> list[str]:
    return [str(each).removeprefix(PREFIX) for each in parsed.invalid]


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("proxy-protocol", "true", "proxy_protocol", "PROXY"),
        ("proxy-protocol", "v2", "proxy_protocol", "PROXYV2"),
        ("proxy-protocol", "false", "proxy_protocol", ""),
        ("lb-method", "source_ip_port", "lb_method", "SOURCE_IP_PORT"),
        ("connection-limit", "-1", "connection_limit", -1),
        ("connection-limit", "10", "connection_limit", 10),
        ("timeout-tcp-inspect", "0", "timeout_tcp_inspect", 0),
        ("health-monitor-delay", "7", "health_monitor_delay", 7),
        ("port-id", ID, "port_id", ID),
        ("keep-floatingip", "true", "keep_floatingip", True),
    ],
)
def test_a_value_has_its_native_meaning(name: str, text: str, field: str, value: object):
    parsed = parse_annotations({PREFIX + name: text}, {})
    assert (parsed.invalid, getattr(parsed.values, field)) == ((), value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("proxy-protocol", "v3", '"v3" is not one of true, false, v1, v2'),
        ("lb-method", "random", '"random" is not one of round_robin, least_connections, source_ip, '),
        ("connection-limit", "many", '"many" is not a number from 1 to 2147483647'),
        ("floating-network-id", "public", '"public" is not the id of an object'),
        ("floating-subnet-tags", "a", "it is not supported"),
        ("default-tls-container-ref", "https://barbican", "it is not supported"),
        ("load-balancer-id", ID, "it is not supported: name an existing load balancer"),
        ("health-monitor-max-retries", "11", '"11" is not a number from 1 to 10'),
    ],
)
def test_an_unknown_or_unenforceable_value_blocks_the_creation(name: str, text: str, reason: str):
    parsed = read({PREFIX + name: text})
    assert any(each.startswith(f"{name}: {reason}") for each in reasons(parsed)), reasons(parsed)
    assert not parsed.desired.may_open_ports


def test_an_invalid_value_freezes_its_own_part_only():
    parsed = read({PREFIX + "timeout-client-data": "soon", PREFIX + "connection-limit": "3"})
    assert parsed.desired.frozen == {"timeout_client_data"}
    assert parsed.desired.annotations.connection_limit == 3


def test_the_file_has_defaults_a_class_wins_over_them_and_an_annotation_over_both():
    sections = read_balancer_sections(
        "[Global]\nauth-url = https://keystone\n[LoadBalancer]\nlb-method=SOURCE_IP\nmonitor-delay = 10s\n"
        "create-monitor\nuse-octavia = true\nmanage-security-groups = false\nlb-version = v2\n"
        "container-store = barbican\ningress-hostname-suffix = nip.io\n"
        '[LoadBalancerClass "edge"]\nmonitor-delay = 20\n[LoadBalancerClass "core"]\nmonitor-delay = 30\n'
    )
    plain = parse_annotations({}, sections)
    assert plain.invalid == ()
    assert (plain.values.lb_method, plain.values.health_monitor_delay) == ("SOURCE_IP", 10)
    edge = {PREFIX + "class": "edge"}
    assert parse_annotations(edge, sections).values.health_monitor_delay == 20
    annotated = parse_annotations(edge | {PREFIX + "health-monitor-delay": "4"}, sections)
    assert annotated.values.health_monitor_delay == 4
    [unknown] = parse_annotations({PREFIX + "class": "other"}, sections).invalid
    assert unknown.reason == 'cloud.conf has no class "other"; it has core, edge'


def test_no_annotation_makes_a_load_balancer_public_where_the_file_allows_internal_ones_only():
    sections = read_balancer_sections("[LoadBalancer]\ninternal-lb = true\n")
    parsed = parse_annotations({INTERNAL: "false"}, sections)
    assert parsed.values.internal
    [invalid] = parsed.invalid
    assert str(invalid) == f"{INTERNAL}: cloud.conf [LoadBalancer] internal-lb allows no public load balancer"
    assert parsed.frozen == {"floating_ip", "status"}
    assert parse_annotations({INTERNAL: "true"}, sections).invalid == ()
    assert parse_annotations({INTERNAL: "false"}, {}).invalid == ()
    for unreadable in (
        parse_annotations({INTERNAL: "false"}, {}, is_complete=False),
        parse_annotations({INTERNAL: "false"}, {"": {"internal-lb": "yes"}}),
    ):
        assert {"floating_ip", "status"} <= unreadable.frozen


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("manage-security-groups = true", ": remove it"),
        ("floating-subnet-tags = x", "; did you mean cloud.conf [LoadBalancer] floating-subnet-id?"),
        ("new-key = 1", ": remove it"),
    ],
)
def test_a_key_of_the_file_that_cannot_be_enforced_blocks(key: str, fix: str):
    [invalid] = parse_annotations({}, read_balancer_sections(f"[LoadBalancer]\n{key}\n")).invalid
    assert str(invalid) == f"cloud.conf [LoadBalancer] {key.partition(' ')[0]}: it is not supported{fix}"


async def test_a_section_that_cannot_be_read_makes_no_service_public(tmp_path: Path):
    file = tmp_path / "cloud.conf"
    file.write_text("[Global]\nauth-url = https://keystone\n[LoadBalancer]\ninternal-lb = true\n= broken\n")
    api = OpenStackApi(AccountOptions(credential=file, user_agent="talos-ccm/test"))
    balancers = OctaviaBalancers(api, {})
    port = Port(name="http", protocol="TCP", port=80, node_port=30080)
    annotations = {PREFIX + name: text for name, text in PLACE.items()}
    parsed = balancers.read_request(
        BalancerRequest(namespace="default", name="web", uid=UID, annotations=annotations, ports=(port,))
    )
    await balancers.close()
    await api.close()
    assert [each.reason for each in parsed.invalid] == ["cloud.conf: line 5 is not key = value"]
    assert {"floating_ip", "status", "member_subnet", "monitors"} <= parsed.desired.frozen
    assert not parsed.desired.may_open_ports


def test_a_clouds_yaml_has_no_sections():
    assert read_balancer_sections("clouds: {}\n") == {}


def test_a_balancer_needs_a_network_and_an_external_one_unless_it_is_internal():
    assert reasons(read(keys={})) == [
        "floating-network-id: it is not set, nor is it in cloud.conf, and the Service is not internal",
        "subnet-id: it is not set, nor is network-id or port-id, also not in cloud.conf",
    ]
    assert reasons(read({INTERNAL: "true"}, keys={"network-id": ID})) == []
    assert reasons(read({INTERNAL: "true", PREFIX + "port-id": ID}, keys={})) == []
    assert reasons(read({PREFIX + "port-id": ID})) != []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"source_ranges": ("192.0.2.0/24", "everybody")}, "spec.loadBalancerSourceRanges"),
        ({"ip_families": ("IPv6",)}, "spec.ipFamilies"),
        ({"load_balancer_ip": "2001:db8::1"}, "spec.loadBalancerIP"),
        ({"ports": (Port(name="s", protocol="SCTP", port=80, node_port=30080),)}, "spec.ports[s].protocol"),
        ({"ports": (Port(name="s", protocol="TCP", port=80, node_port=0),)}, "spec.ports[s].nodePort"),
        ({"ports": ()}, "spec.ports"),
    ],
)
def test_a_field_that_octavia_cannot_enforce_is_invalid(fields: dict[str, Any], field: str):
    parsed = read(**fields)
    assert [each.field for each in parsed.invalid] == [field]
    assert not parsed.desired.may_open_ports


def test_an_unreadable_wish_to_keep_the_address_keeps_it():
    assert read({PREFIX + "keep-floatingip": "sure"}).keeps_address
    assert not read().keeps_address


def make_address(**fields: Any) -> FloatingIp:
    defaults: dict[str, Any] = {
        "id": ID,
        "project_id": "p",
        "floating_ip_address": "203.0.113.7",
        "floating_network_id": ID,
        "port_id": None,
        "description": "",
        "created_at": NOW,
        "revision_number": 1,
    }
    return FloatingIp(**(defaults | fields))


OTHER = f"talos-ccm/cluster={ID} talos-ccm/service-uid={ID} talos-ccm/account=prod"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (make_address(floating_ip_address="203.0.113.8"), "is no floating address of the project"),
        (make_address(port_id=ID), f"is used by port {ID}"),
        (make_address(description=OTHER), "belongs to another Service"),
        (make_address(revision_number=None), "has no revision"),
        (make_address(description="x" * 200), "has a description that leaves no room"),
    ],
)
def test_a_reserved_address_that_is_not_free_blocks(address: FloatingIp, reason: str):
    parsed = set_reserved_address(read(load_balancer_ip="203.0.113.7"), (address,))
    [invalid] = parsed.invalid
    assert invalid.reason.startswith(f"203.0.113.7 {reason}")
    assert parsed.desired.reserved_id == ""
    assert "floating_ip" in parsed.desired.frozen


def test_the_page_has_every_annotation_and_every_key():
    page = (ROOT / "docs" / "openstack-load-balancers.md").read_text()
    rows = [line.split("|")[1:] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall("`(.*?)`", row[0])}
    assert named == {INTERNAL if each == "internal" else each.replace("_", "-") for each in ROWS}
    assert {name for row in rows for name in re.findall("`(.*?)`", row[2])} == CONFIG_KEYS
