"""The annotations of a Service are read as Hetzner's own controller reads them, and none is ignored."""

import re
from typing import Any

import msgspec
import pytest

from libs.clouds.balancers import AFFINITY_IGNORED, BalancerRequest, ParsedRequest, Port
from libs.clouds.hcloud.balancers.annotations import (
    ENVIRONMENT_PREFIX,
    ROWS,
    VARIABLES,
    Annotations,
    read_defaults,
)
from libs.clouds.hcloud.balancers.desired import (
    BalancerOptions,
    DesiredBalancer,
    read_request,
    set_certificates,
)
from libs.clouds.hcloud.balancers.documents import (
    HealthCheck,
    HealthCheckHttp,
    ManagedCertificate,
    Service,
    ServiceHttp,
)
from tests.architecture.sources import ROOT

PREFIX = "load-balancer.hetzner.cloud/"
WEB = Port(name="web", protocol="TCP", port=80, node_port=30080)
OPTIONS = BalancerOptions(network=7, defaults=Annotations(location="fsn1"))
CHECK = HealthCheck(protocol="tcp", port=30080, interval=15, timeout=10, retries=3)
HTTP = ServiceHttp(
    cookie_name="HCLBSTICKY",
    cookie_lifetime=300,
    certificates=(),
    redirect_http=False,
    sticky_sessions=False,
)


def a_request(annotations: dict[str, str] | None = None, **fields: Any) -> BalancerRequest:
    keys = {PREFIX + name: text for name, text in (annotations or {}).items()}
    defaults = {"namespace": "default", "name": "web", "uid": "5c1a7b4e-0000-4000-8000-0123456789ab"}
    return BalancerRequest(**{**defaults, "annotations": keys, "ports": (WEB,), **fields})


def parsed_by(
    annotations: dict[str, str] | None = None, options: BalancerOptions = OPTIONS, **fields: Any
) -> ParsedRequest[DesiredBalancer]:
    return read_request(a_request(annotations, **fields), options)


def invalid_in(parsed: ParsedRequest[DesiredBalancer]) -> list[str]:
    return [str(each).removeprefix(PREFIX) for each in parsed.invalid]


def service_of(parsed: ParsedRequest[DesiredBalancer]) -> Service:
    assert not parsed.invalid
    [service] = parsed.desired.services
    return service


def test_a_service_without_annotations_is_a_tcp_balancer_with_a_check_of_its_node_port():
    parsed = parsed_by()
    assert parsed.desired.default_name == "a5c1a7b4e0000400080000123456789a"
    assert parsed.desired.network == 7
    assert parsed.desired.may_open_ports
    assert (parsed.warnings, parsed.node_selector) == ((), ())
    assert parsed.address_types == ("ExternalIP", "InternalIP")
    assert parsed_by({"use-private-ip": "true"}).address_types == ("InternalIP", "ExternalIP")
    assert service_of(parsed) == Service(
        protocol="tcp", listen_port=80, destination_port=30080, proxyprotocol=False, health_check=CHECK
    )


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("name", "edge", "name", "edge"),
        ("location", "nbg1", "location", "nbg1"),
        ("type", "lb21", "type", "lb21"),
        ("algorithm-type", "LEAST_connections", "algorithm_type", "least_connections"),
        ("disable-public-network", "F", "disable_public_network", False),
        ("use-private-ip", "1", "use_private_ip", True),
        ("private-ipv4", "10.0.1.9", "private_ipv4", "10.0.1.9"),
        ("private-subnet-ip-range", "10.0.1.0/24", "private_subnet_ip_range", "10.0.1.0/24"),
        ("disable-private-ingress", "TRUE", "disable_private_ingress", True),
        ("ipv6-disabled", "t", "ipv6_disabled", True),
        ("hostname", "www.example.com", "hostname", "www.example.com"),
        ("ipv4-rdns", "edge.example.com", "ipv4_rdns", "edge.example.com"),
        ("uses-proxyprotocol", "true", "uses_proxyprotocol", True),
        ("health-check-interval", "1m", "health_check_interval", 60),
        ("health-check-timeout", "2500ms2.5s", "health_check_timeout", 5),
        ("health-check-retries", "5", "health_check_retries", 5),
    ],
)
def test_a_value_is_read(name: str, text: str, field: str, value: object):
    parsed = parsed_by({name: text})
    assert parsed.invalid == ()
    assert getattr(parsed.desired.annotations, field) == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("name", "", "a printable text"),
        ("algorithm-type", "random", "one of round_robin, least_connections"),
        ("disable-public-network", "yes", "true or false"),
        ("private-ipv4", "10.0.1", "an IPv4 address"),
        ("private-subnet-ip-range", "10.0.1.9/24", "an IPv4 network such as 10.0.1.0/24"),
        ("hostname", "Www.example.com", "a DNS name in lower case"),
        ("hostname", "-a.example.com", "a DNS name in lower case"),
        ("node-selector", "a=b c", "a label selector such as env=prod,tier in (web,api),!gpu"),
        ("protocol", "udp", "one of tcp, http, https"),
        (
            "health-check-interval",
            "15",
            "a duration of whole seconds from 1s to 3600s, with its unit",
        ),
        (
            "health-check-timeout",
            "1500ms",
            "a duration of whole seconds from 1s to 3600s, with its unit",
        ),
        ("health-check-retries", "0", "a number from 1 to 100"),
        ("health-check-port", "65536", "a number from 1 to 65535"),
        ("http-status-codes", "200,", "a list with commas between its items"),
        (
            "http-status-codes",
            "2xx",
            "a list of HTTP status codes such as 200 or 2??, with commas between them",
        ),
        ("certificate-type", "own", "one of uploaded, managed"),
        ("http-managed-certificate-name", "7", "a name, and not a number"),
        ("http-managed-certificate-domains", "a.example,*", "a DNS name in lower case"),
    ],
)
def test_an_unreadable_value_is_named_with_the_valid_ones(name: str, text: str, expected: str):
    parsed = parsed_by({name: text})
    assert f'{name}: "{text}" is not {expected}' in invalid_in(parsed)
    assert not parsed.desired.may_open_ports


def test_an_unknown_annotation_of_the_prefix_is_never_ignored():
    request = a_request({"use-private-ipv4": "true", "id": "5"})
    others = msgspec.structs.replace(request, annotations={**request.annotations, "example.com/x": "1"})
    assert invalid_in(read_request(others, OPTIONS)) == [
        "id: it is not supported: remove it",
        "use-private-ipv4: it is not supported; did you mean load-balancer.hetzner.cloud/use-private-ip?",
    ]


@pytest.mark.parametrize(
    ("annotations", "fields", "reason"),
    [
        (
            {},
            {"source_ranges": ("10.0.0.0/8", "0.0.0.0/0", "x")},
            (
                "spec.loadBalancerSourceRanges: 10.0.0.0/8, x cannot be enforced: "
                "Hetzner Cloud allows only 0.0.0.0/0 and ::/0"
            ),
        ),
        (
            {},
            {"load_balancer_ip": "192.0.2.1"},
            "spec.loadBalancerIP: 192.0.2.1 cannot be requested: Hetzner Cloud assigns the address itself",
        ),
        (
            {},
            {"ip_families": ("IPv6",)},
            "spec.ipFamilies: IPv4 is missing, and Hetzner Cloud reaches targets by IPv4 only",
        ),
        (
            {},
            {"ports": (msgspec.structs.replace(WEB, protocol="UDP"),)},
            "spec.ports: there is no TCP port, and Hetzner Cloud balances TCP only",
        ),
        (
            {},
            {"ports": (msgspec.structs.replace(WEB, node_port=0),)},
            "spec.ports[web].nodePort: it is missing: enable allocateLoadBalancerNodePorts",
        ),
        (
            {"http-redirect-http": "true"},
            {},
            "http-redirect-http: it needs protocol https, and protocol is tcp",
        ),
        (
            {"http-certificates": "7", "protocol": "http"},
            {},
            "http-certificates: it needs protocol https, and protocol is http",
        ),
        (
            {"health-check-http-path": "/live"},
            {},
            "health-check-http-path: it needs health-check-protocol http or https",
        ),
        (
            {"disable-public-network": "true"},
            {},
            "disable-public-network: it needs use-private-ip, as no other way to targets is left",
        ),
    ],
)
def test_a_value_that_cannot_be_enforced_is_invalid(
    annotations: dict[str, str], fields: dict[str, Any], reason: str
):
    parsed = parsed_by(annotations, **fields)
    assert invalid_in(parsed) == [reason]
    assert not parsed.desired.may_open_ports


@pytest.mark.parametrize(
    "name", ["use-private-ip", "private-ipv4", "private-subnet-ip-range", "disable-public-network"]
)
def test_what_needs_a_network_is_invalid_without_one(name: str):
    text = {"private-ipv4": "10.0.1.9", "private-subnet-ip-range": "10.0.1.0/24"}.get(name, "true")
    parsed = parsed_by({name: text}, msgspec.structs.replace(OPTIONS, network=None))
    assert invalid_in(parsed) == [
        f"{name}: it needs a network: set HCLOUD_NETWORK in the options of the account"
    ]


@pytest.mark.parametrize("ranges", [(), ("0.0.0.0/0",), ("::/0", " 0.0.0.0/0 ")])
def test_ranges_that_restrict_nothing_pass(ranges: tuple[str, ...]):
    assert parsed_by(source_ranges=ranges).invalid == ()


def test_a_udp_port_beside_a_tcp_port_is_left_out_and_reported():
    quic = Port(name="quic", protocol="UDP", port=80, node_port=30081)
    parsed = parsed_by(ports=(WEB, quic))
    assert service_of(parsed).destination_port == 30080
    assert parsed.warnings == ("port 80/UDP is left out: Hetzner Cloud balances TCP only",)


def test_an_affinity_that_no_load_balancer_of_the_cloud_has_is_reported():
    assert parsed_by(keeps_clients=True).warnings == (AFFINITY_IGNORED,)


def test_an_invalid_value_freezes_what_it_describes_and_nothing_else():
    parsed = parsed_by({"uses-proxyprotocol": "maybe", "type": "lb21"}, source_ranges=("10.0.0.0/8",))
    assert parsed.desired.frozen == {"services", "status"}
    assert parsed.desired.annotations.type == "lb21"
    assert parsed_by({"node-selector": "a b"}).node_selector is None
    assert parsed_by({"use-private-ip": "maybe"}).address_types is None
    ports = (WEB, msgspec.structs.replace(WEB, port=81, node_port=0))
    assert parsed_by(ports=ports).desired.frozen == {"ports"}


LOCAL = {"health_check_node_port": 32000}
KUBE_PROXY = HealthCheckHttp(path="/healthz", status_codes=("200",))
ANY_2XX = HealthCheckHttp(status_codes=("2??", "3??"))


@pytest.mark.parametrize(
    ("annotations", "fields", "expected"),
    [
        ({}, LOCAL, {"protocol": "http", "port": 32000, "http": KUBE_PROXY}),
        (
            {"health-check-interval": "5s", "protocol": "http"},
            LOCAL,
            {"protocol": "http", "port": 32000, "interval": 5, "http": KUBE_PROXY},
        ),
        ({"health-check-protocol": "tcp"}, LOCAL, {}),
        (
            {"health-check-port": "9000"},
            LOCAL,
            {"protocol": "http", "port": 9000, "http": ANY_2XX},
        ),
        ({"protocol": "http"}, {}, {}),
        (
            {"protocol": "http", "health-check-retries": "5"},
            {},
            {"protocol": "http", "retries": 5, "http": ANY_2XX},
        ),
        ({"health-check-retries": "5"}, {}, {"retries": 5}),
        (
            {
                "protocol": "https",
                "health-check-protocol": "HTTPS",
                "health-check-http-domain": "a.example",
                "health-check-http-path": "/live",
                "http-status-codes": "204, 200",
            },
            {},
            {
                "protocol": "http",
                "http": HealthCheckHttp(
                    domain="a.example", path="/live", status_codes=("200", "204"), tls=True
                ),
            },
        ),
    ],
)
def test_a_health_check_asks_the_node_where_traffic_stays_on_it(
    annotations: dict[str, str], fields: dict[str, Any], expected: dict[str, Any]
):
    service = service_of(parsed_by(annotations, **fields))
    assert service.health_check == msgspec.structs.replace(CHECK, **expected)


def test_an_http_service_has_its_options():
    options = {
        "protocol": "https",
        "http-cookie-name": "sticky",
        "http-cookie-lifetime": "1h",
        "http-timeout-idle": "45s",
        "http-sticky-sessions": "true",
        "http-redirect-http": "true",
        "http-certificates": "9,7",
    }
    assert service_of(parsed_by(options)).http == ServiceHttp(
        cookie_name="sticky",
        cookie_lifetime=3600,
        timeout_idle=45,
        certificates=(7, 9),
        redirect_http=True,
        sticky_sessions=True,
    )
    assert service_of(parsed_by({"protocol": "http"})).http == HTTP


@pytest.mark.parametrize(
    "text",
    ["0", "7," + "9" * 20, "9" * 4301, "\u0663", "a" * 256, ",".join(f"c{number}" for number in range(51))],
    ids=["zero", "beyond-64-bits", "too-long-for-int", "not-ascii", "long-name", "51-names"],
)
def test_certificates_that_no_project_has_are_invalid_and_not_asked_for(text: str):
    parsed = parsed_by({"protocol": "https", "http-certificates": text})
    [invalid] = invalid_in(parsed)
    assert invalid.endswith("is not a list of at most 50 certificates, each by its id or name")
    assert parsed.desired.certificate_names == ()
    assert "services" in parsed.desired.frozen


@pytest.mark.parametrize("protocol", ["tcp", "http", "udp"])
def test_only_https_asks_for_names_of_certificates(protocol: str):
    parsed = parsed_by({"protocol": protocol, "http-certificates": "www"})
    assert parsed.invalid
    assert parsed.desired.certificate_names == ()


def test_certificates_by_name_get_their_ids():
    parsed = parsed_by({"protocol": "https", "http-certificates": "9,www,api"})
    assert parsed.desired.certificate_names == ("www", "api")
    service = service_of(set_certificates(parsed, {"www": 4, "api": 12}))
    assert service.http is not None
    assert service.http.certificates == (4, 9, 12)


def test_an_unknown_name_of_a_certificate_is_an_invalid_field():
    parsed = parsed_by({"protocol": "https", "http-certificates": "www"})
    resolved = set_certificates(parsed, {"www": None})
    assert invalid_in(resolved) == ["http-certificates: the project has no certificate www"]
    assert resolved.desired.frozen == {"services"}
    assert not resolved.desired.may_open_ports


MANAGED = {
    "protocol": "https",
    "certificate-type": "managed",
    "http-managed-certificate-domains": "example.com,*.example.com",
}


def test_a_managed_certificate_has_the_name_and_label_of_hcloud_ccm():
    parsed = parsed_by(MANAGED)
    assert parsed.invalid == ()
    uid = a_request({}).uid
    assert parsed.desired.managed_certificate == ManagedCertificate(
        name=f"ccm-managed-certificate-{uid}",
        domain_names=("*.example.com", "example.com"),
        labels={"hcloud-ccm/service-uid": uid},
    )
    assert parsed.desired.certificate_names == (f"ccm-managed-certificate-{uid}",)
    named = parsed_by(MANAGED | {"http-managed-certificate-name": "www"})
    assert named.desired.certificate_names == ("www",)
    http = service_of(set_certificates(named, {"www": 9})).http
    assert http is not None
    assert http.certificates == (9,)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            {"protocol": "https", "certificate-type": "managed"},
            "http-managed-certificate-domains: it is not set, and certificate-type is managed",
        ),
        (
            MANAGED | {"http-certificates": "7"},
            "http-certificates: it has no effect, as certificate-type is managed",
        ),
        (
            {"protocol": "https", "http-managed-certificate-name": "www"},
            "http-managed-certificate-name: it has no effect, as certificate-type is uploaded",
        ),
    ],
)
def test_annotations_of_the_other_kind_of_certificate_are_invalid(annotations: dict[str, str], expected: str):
    parsed = parsed_by(annotations)
    assert invalid_in(parsed) == [expected]
    assert "services" in parsed.desired.frozen


def test_defaults_come_from_the_environment_and_annotations_win():
    defaults = read_defaults(
        {
            "HCLOUD_LOAD_BALANCERS_ENABLED": "true",
            "HCLOUD_LOAD_BALANCERS_LOCATION": "hel1",
            "HCLOUD_LOAD_BALANCERS_DISABLE_IPV6": "true",
            "HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_INTERVAL": "7s",
            "HCLOUD_LOAD_BALANCERS_TYPE": "",
            "HCLOUD_TOKEN": "secret",
        }
    )
    assert defaults == Annotations(location="hel1", ipv6_disabled=True, health_check_interval=7)
    options = BalancerOptions(defaults=defaults)
    values = parsed_by({"ipv6-disabled": "false", "network-zone": "eu-central"}, options).desired.annotations
    assert (values.ipv6_disabled, values.health_check_interval) == (False, 7)
    assert (values.location, values.network_zone) == ("", "eu-central")  # the default location would win
    assert service_of(parsed_by({"protocol": "http"}, options)).health_check == msgspec.structs.replace(
        CHECK, protocol="http", interval=7, http=ANY_2XX
    )


def test_all_unusable_defaults_are_named():
    prefix = "HCLOUD_LOAD_BALANCERS_"
    texts = {"LOCATION": "hel1", "NETWORK_ZONE": "eu-central", "USE_PRIVATE_IP": "yes", "HOSTNAME": "a"}
    found = read_defaults({prefix + name: text for name, text in texts.items()})
    assert isinstance(found, tuple)
    assert [str(each) for each in found] == [
        f"{prefix}HOSTNAME: it is not supported: remove it",
        f'{prefix}USE_PRIVATE_IP: "yes" is not true or false',
        f"{prefix}NETWORK_ZONE: a location is set, too: remove one of them",
    ]


def test_a_balancer_needs_a_place():
    assert invalid_in(parsed_by({"location": ""})) == [
        "location: it is not set, nor is network-zone, and there is no default"
    ]


def test_the_page_has_every_annotation_and_every_variable():
    page = (ROOT / "docs" / "hetzner-load-balancers.md").read_text()
    rows = [line.split("|")[1:] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall("`(.*?)`", row[0])) == sorted(
        field.replace("_", "-") for field in ROWS
    )
    variables = {name for row in rows for name in re.findall("`([A-Z_0-9]+)`", row[2])}
    assert variables == {name.removeprefix(ENVIRONMENT_PREFIX) for name in VARIABLES}


def test_thousands_of_unknown_annotations_block_no_other_service():
    parsed = parsed_by({f"http-{number}": "x" for number in range(4000)})
    assert len(parsed.invalid) == 21
    assert invalid_in(parsed)[-1] == "others: 3980 more are not supported"
