"""Each annotation of Thalassa's own controller is read as that reads it, or rejected; no ACL becomes open."""

import re
from pathlib import Path
from typing import Any

import pytest

from libs.clouds.balancers import BalancerRequest, ParsedRequest, Port
from libs.clouds.thalassa.balancers.annotations import PREFIX, ROWS, parse_annotations
from libs.clouds.thalassa.balancers.desired import (
    CreationTimes,
    DesiredBalancer,
    FileDefaults,
    read_file_defaults,
    read_request,
)
from libs.clouds.thalassa.balancers.documents import HealthCheck
from libs.clouds.thalassa.config_file import ThalassaConfig, read_config

ROOT = Path(__file__).parents[4]
FILE_DEFAULTS = FileDefaults(vpc="vpc-1")
HTTP = Port(name="http", protocol="TCP", port=80, node_port=30080)
HTTPS = Port(name="https", protocol="TCP", port=443, node_port=30443)
ACL, OTHER = "192.0.2.0/24", "198.51.100.0/24"
CONFIG = """
organisation: acme
vpcIdentity: vpc-1
cloudCredentials: {personalAccessToken: t}
"""


def read(
    annotations: dict[str, str] | None = None,
    ports: tuple[Port, ...] = (HTTP, HTTPS),
    defaults: FileDefaults = FILE_DEFAULTS,
    **fields: Any,
) -> ParsedRequest[DesiredBalancer]:
    given = {PREFIX + name: text for name, text in (annotations or {}).items()}
    request = BalancerRequest(
        namespace="default", name="web", uid="5c1a-7b", annotations=given, ports=ports, **fields
    )
    return read_request(request, defaults)


def reasons(parsed: ParsedRequest[DesiredBalancer]) -> list[str]:
    return [str(each).removeprefix(PREFIX) for each in parsed.invalid]


def sources(parsed: ParsedRequest[DesiredBalancer]) -> list[tuple[str, ...]]:
    return [each.sources for each in parsed.desired.listeners]


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("subnet", "subnet-1", "subnet", "subnet-1"),
        ("internal", "true", "internal", True),
        ("security-groups", "sg-2, sg-1", "security_groups", ("sg-1", "sg-2")),
        ("reserved-ip", "ip-1", "reserved_ip", "ip-1"),
        ("reserved-ip", "", "reserved_ip", ""),
        ("acl-allowed-sources", f"{OTHER}, {ACL}", "acl_allowed_sources", (ACL, OTHER)),
        ("acl-allowed-sources", "192.0.2.7/24", "acl_allowed_sources", (ACL,)),
        ("acl-allowed-sources", "2001:DB8::/32", "acl_allowed_sources", ("2001:db8::/32",)),
        ("acl-port-http", ACL, "acl_ports", (("http", (ACL,)),)),
        ("loadbalancing-policy", "MAGLEV", "loadbalancing_policy", "MAGLEV"),
        ("enable-proxy-protocol", "true", "enable_proxy_protocol", True),
        ("idle-connection-timeout", "60", "idle_connection_timeout", 60),
        ("max-connections", "7", "max_connections", 7),
        ("health-check-interval", "300", "health_check_interval", 300),
        ("health-check-down-threshold", "10", "health_check_down_threshold", 10),
    ],
)
def test_a_value_has_its_native_meaning(name: str, text: str, field: str, value: object):
    parsed = parse_annotations({PREFIX + name: text})
    assert (parsed.invalid, getattr(parsed.values, field)) == ((), value)


def test_the_defaults_are_those_of_the_native_controller():
    [listener, _] = read().desired.listeners
    assert (listener.sources, listener.max_connections, listener.idle_timeout) == ((), 10_000, 6000)
    assert (listener.group.policy, listener.group.proxy_protocol) == ("ROUND_ROBIN", False)
    assert (listener.group.target_port, listener.group.health_check) == (30080, None)
    check = {"health-check-enabled": "true", "health-check-port": "8080"}
    assert read(check).desired.listeners[0].group.health_check == HealthCheck(
        protocol="http",
        port=8080,
        path="/healthz",
        period_seconds=10,
        timeout_seconds=5,
        healthy_threshold=2,
        unhealthy_threshold=3,
    )
    assert read({"type": "public", "create-security-group": "false"}).invalid == ()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (
            "type",
            "internal",
            '"internal" is not public, which is its only value: use the annotation internal',
        ),
        ("create-security-group", "true", '"true" is not supported: each port has its own ACL'),
        ("subnet", "no such/one", '"no such/one" is not the identity of an object'),
        ("security-groups", "", '"" is not a list'),
        ("loadbalancing-policy", "LEAST", '"LEAST" is not one of round_robin, random, maglev'),
        ("idle-connection-timeout", "60s", '"60s" is not a number'),
        ("max-connections", "0", '"0" is not a number'),
        ("health-check-interval", "4", '"4" is not a number from 5 to 300'),
        ("health-check-path", "healthz", '"healthz" is not a path'),
        ("health-check-protocol", "https", '"https" is not one of http, tcp'),
        ("node-selector", "a=b", "it is not supported"),
        ("acl", ACL, "it is not supported"),
        ("acl-port-8080", ACL, "the Service has no such port"),
    ],
)
def test_an_unknown_or_unenforceable_value_blocks_the_creation(name: str, text: str, reason: str):
    parsed = read({name: text})
    assert any(each.startswith(f"{name}: {reason}") for each in reasons(parsed)), reasons(parsed)
    assert not parsed.desired.may_open_ports


@pytest.mark.parametrize("name", ["acl-allowed-sources", "acl-port-http", "acl-port-80"])
@pytest.mark.parametrize(
    "text", ["", " ", ",", "192.0.2.7", f"{ACL},", f"{ACL},me", "192.0.2.0/33", "all", "/0"]
)
def test_an_acl_without_readable_networks_opens_nothing(name: str, text: str):
    """The API reads an empty list as all addresses."""
    parsed = read({name: text})
    assert len(parsed.invalid) == 1
    assert not parsed.desired.may_open_ports
    assert "sources" in parsed.desired.frozen


def test_the_acl_of_a_port_is_added_to_that_of_all_ports():
    assert sources(read({"acl-allowed-sources": ACL, "acl-port-http": OTHER})) == [(ACL, OTHER), (ACL,)]
    assert sources(read({"acl-port-http": ACL, "acl-port-80": OTHER})) == [(ACL, OTHER), ()]


def test_ranges_of_the_service_restrict_each_port_and_exclude_an_acl():
    assert sources(read(source_ranges=(ACL, " 10.0.0.0/8"))) == [("10.0.0.0/8", ACL)] * 2
    for name in ("acl-allowed-sources", "acl-port-http"):
        for text in (ACL, "unreadable"):
            parsed = read({name: text}, source_ranges=(OTHER,))
            assert "spec.loadBalancerSourceRanges" in {each.field for each in parsed.invalid}
    for ranges in (("10.0.0.0/8", "me"), ("",), ("192.0.2.7",)):
        parsed = read(source_ranges=ranges)
        assert "sources" in parsed.desired.frozen
        assert not parsed.desired.may_open_ports


def test_tcp_and_udp_of_one_port_collide():
    udp = Port(name="dns-udp", protocol="UDP", port=80, node_port=30053)
    parsed = read(ports=(HTTP, udp, HTTPS))
    assert reasons(parsed) == [
        f"spec.ports[{name}].port: 80 is there twice, and a load balancer has one port for TCP and UDP"
        for name in ("http", "dns-udp")
    ]
    assert [each.port for each in parsed.desired.listeners] == [443]
    assert "ports" in parsed.desired.frozen


@pytest.mark.parametrize(
    ("ports", "fields", "field"),
    [
        ((Port(name="", protocol="SCTP", port=80, node_port=30080),), {}, "spec.ports[80].protocol"),
        ((Port(name="", protocol="TCP", port=80, node_port=0),), {}, "spec.ports[80].nodePort"),
        ((), {}, "spec.ports"),
        ((HTTP,), {"load_balancer_ip": "203.0.113.7"}, "spec.loadBalancerIP"),
    ],
)
def test_a_field_that_the_cloud_cannot_enforce_is_invalid(
    ports: tuple[Port, ...], fields: dict[str, Any], field: str
):
    assert [each.field for each in read(ports=ports, **fields).invalid] == [field]


def test_udp_has_no_proxy_protocol():
    udp = Port(name="dns", protocol="UDP", port=53, node_port=30053)
    parsed = read({"enable-proxy-protocol": "true"}, ports=(udp,))
    assert reasons(parsed) == ["enable-proxy-protocol: spec.ports[dns] is UDP, which has no PROXY protocol"]


def test_local_traffic_is_checked_at_kube_proxy_also_if_checks_are_off():
    [listener] = read(ports=(HTTP,), health_check_node_port=30100).desired.listeners
    check = listener.group.health_check
    assert check is not None
    assert (check.protocol, check.port, check.path) == ("http", 30100, "/healthz")
    given = {"health-check-port": "8080", "health-check-path": "/up", "health-check-protocol": "tcp"}
    [listener] = read(given, ports=(HTTP,), health_check_node_port=30100).desired.listeners
    check = listener.group.health_check
    assert check is not None
    assert (check.protocol, check.port, check.path) == ("http", 8080, "/up")


def test_an_enabled_check_needs_a_port_and_tcp_has_no_path():
    assert reasons(read({"health-check-enabled": "true"})) == [
        "health-check-port: it is not set, and checks are enabled"
    ]
    given = {"health-check-enabled": "true", "health-check-port": "8080", "health-check-protocol": "tcp"}
    check = read(given).desired.listeners[0].group.health_check
    assert check is not None
    assert (check.protocol, check.path) == ("tcp", "")


def test_the_name_is_not_the_one_by_which_the_native_controller_takes_over():
    assert read().desired.name == "t5c1a7b"


def test_the_file_of_the_native_controller_names_vpc_subnet_and_labels():
    file = CONFIG + "defaultSubnet: nodes\nadditionalLabels: {cost: web}\nloadBalancer: {enabled: true}\n"
    times = CreationTimes(creation_poll_interval=7, creation_poll_timeout=60)
    keys = "{enabled: true, creationPollInterval: 7, creationPollTimeout: 60}"
    slow = read_config(file.replace("{enabled: true}", keys), endpoint="e")
    assert isinstance(slow, ThalassaConfig)
    found = read_file_defaults(slow, "vpc-1", "")
    assert (found.creation, read(defaults=found).busy_seconds) == (times, 60)
    unset = read_config(file.replace("enabled: true", "creationPollInterval: null"), endpoint="e")
    assert isinstance(unset, ThalassaConfig)
    assert read_file_defaults(unset, "vpc-1", "").creation == CreationTimes()
    config = read_config(file, endpoint="e")
    assert isinstance(config, ThalassaConfig)
    defaults = read_file_defaults(config, config.vpc_identity, "")
    assert defaults == FileDefaults(vpc="vpc-1", default_subnet="nodes", labels=(("cost", "web"),))
    assert read_file_defaults(config, "vpc-2", "edge").default_subnet == "edge"


@pytest.mark.parametrize(
    "line",
    [
        "defaultSubnet: [a]",
        "additionalLabels: {cost: 1}",
        "additionalLabels: web",
        "loadBalancer: {creationPollInterval: 0}",
        "loadBalancer: {creationPollTimeout: 5m}",
        "loadBalancer: [a]",
    ],
)
def test_a_line_that_is_no_subnet_or_label_blocks_load_balancers_and_no_queries(line: str):
    config = read_config(CONFIG + line, endpoint="e")
    assert isinstance(config, ThalassaConfig)
    parsed = read(defaults=read_file_defaults(config, config.vpc_identity, ""))
    assert [each.field for each in parsed.invalid] == ["config file"]


def test_a_file_without_a_vpc_blocks():
    assert [each.field for each in read(defaults=FileDefaults()).invalid] == ["vpcIdentity"]


def test_the_page_has_every_annotation():
    page = (ROOT / "docs" / "thalassa-load-balancers.md").read_text()
    rows = [line.split("|")[1:] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall("`(.*?)`", row[0])}
    assert named == {each.replace("_", "-") for each in ROWS} | {"acl-port-X"}
