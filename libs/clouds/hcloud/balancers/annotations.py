"""The annotations of a Service, one row each, with the values and meaning of Hetzner's own controller."""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Final, Literal

import msgspec

from libs.clouds.annotation_values import (
    parse_choice,
    parse_hostname,
    parse_list,
    parse_seconds,
    parse_text,
    parse_values,
    parse_whole,
)
from libs.clouds.balancers import InvalidField
from libs.clouds.node_selector import parse_node_selector
from libs.common.cloud_config.model import NodeSelectorTerm
from libs.common.go_values import parse_bool

PREFIX: Final = "load-balancer.hetzner.cloud/"
ENVIRONMENT_PREFIX: Final = "HCLOUD_LOAD_BALANCERS_"
# A new name costs one request of the account, and each owner of a Service writes this annotation.
_MAX_CERTIFICATES: Final = 50
_CERTIFICATE_ID: Final = re.compile(r"[1-9][0-9]{0,17}")
_MAX_CERTIFICATE_NAME: Final = 255

# The part of a balancer that a value describes. While the value is invalid, plans do not change it.
Part = Literal[
    "algorithm",
    "name",
    "network",
    "new_targets",
    "ports",
    "public_interface",
    "reverse_dns",
    "services",
    "status",
    "type",
]


class Annotations(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the annotations; a field is named like its annotation. Times are in seconds.

    None leaves the value of an existing balancer unchanged, or the value follows from another field.
    """

    name: str | None = None
    location: str = ""
    network_zone: str = ""
    type: str | None = None
    algorithm_type: str = "round_robin"
    disable_public_network: bool | None = None
    use_private_ip: bool = False
    private_ipv4: str | None = None
    private_subnet_ip_range: str | None = None
    disable_private_ingress: bool = False
    ipv6_disabled: bool = False
    hostname: str = ""
    ipv4_rdns: str | None = None
    ipv6_rdns: str | None = None
    node_selector: tuple[NodeSelectorTerm, ...] = ()
    uses_proxyprotocol: bool = False
    protocol: str = "tcp"
    http_cookie_name: str = "HCLBSTICKY"
    http_cookie_lifetime: int = 300
    http_timeout_idle: int | None = None
    http_sticky_sessions: bool = False
    http_redirect_http: bool = False
    certificate_type: str = "uploaded"
    http_certificates: tuple[str, ...] = ()
    http_managed_certificate_name: str = ""
    http_managed_certificate_domains: tuple[str, ...] = ()
    health_check_protocol: str | None = None
    health_check_port: int | None = None
    health_check_interval: int | None = None
    health_check_timeout: int | None = None
    health_check_retries: int | None = None
    health_check_http_domain: str = ""
    health_check_http_path: str = "/"
    health_check_http_validate_certificate: bool = False
    http_status_codes: tuple[str, ...] = ("2??", "3??")


class ParsedAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """All valid values over the defaults, the names of those that are set, and the unchanged parts."""

    values: Annotations
    names: frozenset[str]
    invalid: tuple[InvalidField, ...]
    frozen: frozenset[Part]


# ---- parsers of this cloud's values: each raises ValueError with the valid values


def _parse_status_codes(text: str) -> tuple[str, ...]:
    items = parse_list(text)
    if not all(re.fullmatch(r"[0-9?*]{1,3}", item) for item in items):
        raise ValueError("a list of HTTP status codes such as 200 or 2??, with commas between them")
    return items


def _parse_address(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except ValueError:
        raise ValueError("an IPv4 address") from None


def _parse_network(text: str) -> str:
    try:
        return str(IPv4Network(text))
    except ValueError:
        raise ValueError("an IPv4 network such as 10.0.1.0/24") from None


def _parse_certificates(text: str) -> tuple[str, ...]:
    items = parse_list(text)
    if len(items) > _MAX_CERTIFICATES or not all(map(_is_certificate, items)):
        raise ValueError(f"a list of at most {_MAX_CERTIFICATES} certificates, each by its id or name")
    return items


def _is_certificate(item: str) -> bool:
    if item.isdecimal():
        return _CERTIFICATE_ID.fullmatch(item) is not None
    return len(item) <= _MAX_CERTIFICATE_NAME


def _parse_certificate_name(text: str) -> str:
    if not text or not text.isprintable() or text.isdecimal() or len(text) > _MAX_CERTIFICATE_NAME:
        raise ValueError("a name, and not a number")
    return text


def _parse_domains(text: str) -> tuple[str, ...]:
    items = parse_list(text)
    for item in items:
        parse_hostname(item.removeprefix("*."))
    return tuple(sorted(set(items)))


# ---- the table


class Row(msgspec.Struct, frozen=True):
    """How an annotation is read, and what it describes."""

    parse: Callable[[str], object]
    parts: tuple[Part, ...] = ()  # () = read at the creation only
    protocols: tuple[str, ...] = ()  # the annotation has an effect with these only; () = with all


_HTTP: Final = ("http", "https")
ROWS: Final[Mapping[str, Row]] = {
    "name": Row(parse_text, ("name",)),
    "location": Row(str),  # "" resets the default
    "network_zone": Row(str),
    "type": Row(parse_text, ("type",)),
    "algorithm_type": Row(parse_choice("round_robin", "least_connections"), ("algorithm",)),
    "disable_public_network": Row(parse_bool, ("public_interface",)),
    "use_private_ip": Row(parse_bool, ("new_targets", "public_interface")),
    "private_ipv4": Row(_parse_address, ("network",)),
    "private_subnet_ip_range": Row(_parse_network, ("network",)),
    "disable_private_ingress": Row(parse_bool, ("status",)),
    "ipv6_disabled": Row(parse_bool, ("status",)),
    "hostname": Row(parse_hostname, ("status",)),
    "ipv4_rdns": Row(parse_hostname, ("reverse_dns",)),
    "ipv6_rdns": Row(parse_hostname, ("reverse_dns",)),
    "node_selector": Row(parse_node_selector),
    "uses_proxyprotocol": Row(parse_bool, ("services", "status")),
    "protocol": Row(parse_choice("tcp", "http", "https"), ("services",)),
    "http_cookie_name": Row(parse_text, ("services",), _HTTP),
    "http_cookie_lifetime": Row(parse_seconds(1, 10**8), ("services",), _HTTP),
    "http_timeout_idle": Row(parse_seconds(30, 300), ("services",), _HTTP),
    "http_sticky_sessions": Row(parse_bool, ("services",), _HTTP),
    "http_redirect_http": Row(parse_bool, ("services",), ("https",)),
    "certificate_type": Row(parse_choice("uploaded", "managed"), ("services",), ("https",)),
    "http_certificates": Row(_parse_certificates, ("services",), ("https",)),
    "http_managed_certificate_name": Row(_parse_certificate_name, ("services",), ("https",)),
    "http_managed_certificate_domains": Row(_parse_domains, ("services",), ("https",)),
    "health_check_protocol": Row(parse_choice("tcp", "http", "https"), ("services",)),
    "health_check_port": Row(parse_whole(1, 65535), ("services",)),
    "health_check_interval": Row(parse_seconds(1, 3600), ("services",)),
    "health_check_timeout": Row(parse_seconds(1, 3600), ("services",)),
    "health_check_retries": Row(parse_whole(1, 100), ("services",)),
    "health_check_http_domain": Row(str, ("services",)),
    "health_check_http_path": Row(parse_text, ("services",)),
    "health_check_http_validate_certificate": Row(parse_bool, ("services",)),
    "http_status_codes": Row(_parse_status_codes, ("services",)),
}
_NAMES: Final = {field.replace("_", "-"): field for field in ROWS}
# The variable that sets the default of an annotation, and the annotation's field.
VARIABLES: Final[Mapping[str, str]] = {f"{ENVIRONMENT_PREFIX}DISABLE_IPV6": "ipv6_disabled"} | {
    ENVIRONMENT_PREFIX + field.upper(): field
    for field in (
        "location",
        "network_zone",
        "type",
        "algorithm_type",
        "disable_public_network",
        "use_private_ip",
        "private_subnet_ip_range",
        "disable_private_ingress",
        "uses_proxyprotocol",
        "health_check_interval",
        "health_check_timeout",
        "health_check_retries",
    )
}


def read_defaults(environment: Mapping[str, str]) -> Annotations | tuple[InvalidField, ...]:
    """Return the values of all Services from HCLOUD_LOAD_BALANCERS_... variables, or the invalid ones.

    HCLOUD_LOAD_BALANCERS_ENABLED is none of them. An empty variable is not set.
    """
    texts = {name: text for name, text in environment.items() if name.startswith(ENVIRONMENT_PREFIX) and text}
    texts.pop(f"{ENVIRONMENT_PREFIX}ENABLED", None)
    values, invalid = parse_values(texts, VARIABLES, ROWS)
    if "location" in values and "network_zone" in values:
        name = f"{ENVIRONMENT_PREFIX}NETWORK_ZONE"
        invalid.append(InvalidField(field=name, reason="a location is set, too: remove one of them"))
    return tuple(invalid) if invalid else Annotations(**values)


def parse_annotations(annotations: Mapping[str, str], defaults: Annotations) -> ParsedAnnotations:
    """Return the values of the annotations below PREFIX; all others are ignored."""
    texts = {key: text for key, text in annotations.items() if key.startswith(PREFIX)}
    parsed, invalid = parse_values(texts, {PREFIX + name: field for name, field in _NAMES.items()}, ROWS)
    names = frozenset(parsed)
    if "network_zone" in names and "location" not in names:
        parsed["location"] = ""  # the default location would win
    values = msgspec.structs.replace(defaults, **parsed)
    if PREFIX + "protocol" not in {each.field for each in invalid}:
        invalid += _find_ineffective(values, names)
    unread = [field for each in invalid if (field := _NAMES.get(each.field.removeprefix(PREFIX)))]
    frozen = frozenset(part for field in unread for part in ROWS[field].parts)
    return ParsedAnnotations(values=values, names=names, invalid=tuple(invalid), frozen=frozen)


def _find_ineffective(values: Annotations, names: frozenset[str]) -> Iterator[InvalidField]:
    for field in sorted(names):
        protocols = ROWS[field].protocols
        if protocols and values.protocol not in protocols:
            needed = " or ".join(protocols)
            yield invalid_annotation(field, f"it needs protocol {needed}, and protocol is {values.protocol}")


def invalid_annotation(field: str, reason: str) -> InvalidField:
    """Return the invalid field of an annotation."""
    return InvalidField(field=PREFIX + field.replace("_", "-"), reason=reason)
