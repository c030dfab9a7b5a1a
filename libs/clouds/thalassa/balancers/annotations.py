"""The annotations of a Service, one row each, with the values and meaning of Thalassa's own controller."""

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Final

import msgspec

from libs.clouds.annotation_values import parse_choice, parse_list, parse_text, parse_values, parse_whole
from libs.clouds.balancers import InvalidField
from libs.clouds.thalassa.thalassa_api import ID
from libs.common.go_values import parse_bool

PREFIX: Final = "loadbalancer.k8s.thalassa.cloud/"
PORT_ACL: Final = f"{PREFIX}acl-port-"  # and the name or number of a port
_MAX_NUMBER: Final = 999_999_999

Sources = tuple[str, ...]  # networks in their canonical form; () = all addresses


class Annotations(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the annotations; a field is named like its annotation. Times are in seconds."""

    subnet: str = ""
    internal: bool = False
    security_groups: tuple[str, ...] | None = None  # None: those that the balancer has stay
    reserved_ip: str = ""
    acl_allowed_sources: Sources = ()
    acl_ports: tuple[tuple[str, Sources], ...] = ()  # each with the name or number of a port
    loadbalancing_policy: str = "ROUND_ROBIN"
    enable_proxy_protocol: bool = False
    idle_connection_timeout: int = 6000
    max_connections: int = 10_000
    health_check_enabled: bool = False
    health_check_protocol: str = "http"
    health_check_port: int = 0
    health_check_path: str = "/healthz"
    health_check_interval: int = 10
    health_check_timeout: int = 5
    health_check_up_threshold: int = 2
    health_check_down_threshold: int = 3


class ParsedAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """All valid values over the defaults, what is invalid, and the parts that plans do not change."""

    values: Annotations
    invalid: tuple[InvalidField, ...]
    frozen: frozenset[str]


# ---- parsers: each raises ValueError with the valid values


def parse_sources(text: str) -> Sources:
    """Return the networks. The API reads an empty list as all addresses, so each text needs a network."""
    try:
        items = parse_list(text)
        networks = {str(ip_network(each, strict=False)) for each in items}
    except ValueError:
        items, networks = (), set()
    if not networks or not all("/" in each for each in items):
        raise ValueError(
            "a list of networks such as 192.0.2.0/24,2001:db8::/32; 0.0.0.0/0 and ::/0 allow all addresses"
        )
    return tuple(sorted(networks))


def _parse_identity(text: str) -> str:
    if not ID.fullmatch(text):
        raise ValueError("the identity of an object")
    return text


def _parse_identities(text: str) -> tuple[str, ...]:
    return tuple(sorted({_parse_identity(each) for each in parse_list(text)}))


def _parse_public(text: str) -> str:
    if text != "public":
        raise ValueError("public, which is its only value: use the annotation internal")
    return text


def _parse_false(text: str) -> bool:
    if parse_bool(text):
        raise ValueError("supported: each port has its own ACL; name security groups in security-groups")
    return False


def _parse_path(text: str) -> str:
    if not parse_text(text).startswith("/"):
        raise ValueError("a path that begins with /")
    return text


_lower_policy: Final = parse_choice("round_robin", "random", "maglev")


# ---- the table


class Row(msgspec.Struct, frozen=True):
    """How an annotation is read, and which parts of a balancer have to stay while it is unreadable."""

    parse: Callable[[str], object]
    parts: tuple[str, ...] = ()


_CHECK: Final = ("health_check",)
ROWS: Final[Mapping[str, Row]] = {
    "subnet": Row(_parse_identity),
    "type": Row(_parse_public),
    "internal": Row(parse_bool, ("internal", "status")),
    "security_groups": Row(_parse_identities),
    "create_security_group": Row(_parse_false),
    "reserved_ip": Row(lambda text: _parse_identity(text) if text.strip() else "", ("reserved_ip",)),
    "acl_allowed_sources": Row(parse_sources, ("sources",)),
    "loadbalancing_policy": Row(lambda text: _lower_policy(text).upper(), ("policy",)),
    "enable_proxy_protocol": Row(parse_bool, ("proxy_protocol",)),
    "idle_connection_timeout": Row(parse_whole(1, _MAX_NUMBER), ("idle_timeout",)),
    "max_connections": Row(parse_whole(1, _MAX_NUMBER), ("max_connections",)),
    "health_check_enabled": Row(parse_bool, _CHECK),
    "health_check_protocol": Row(parse_choice("http", "tcp"), _CHECK),
    "health_check_port": Row(parse_whole(1, 65535), _CHECK),
    "health_check_path": Row(_parse_path, _CHECK),
    # the limits are those that the cloud's Go client documents
    "health_check_interval": Row(parse_whole(5, 300), _CHECK),
    "health_check_timeout": Row(parse_whole(1, 300), _CHECK),
    "health_check_up_threshold": Row(parse_whole(1, 10), _CHECK),
    "health_check_down_threshold": Row(parse_whole(1, 10), _CHECK),
}
_NAMES: Final = {PREFIX + field.replace("_", "-"): field for field in ROWS}
_WITHOUT_FIELD: Final = frozenset({"type", "create_security_group"})


def parse_annotations(annotations: Mapping[str, str]) -> ParsedAnnotations:
    """Return the values of the annotations below PREFIX; all others are ignored."""
    texts = {name: text for name, text in annotations.items() if name.startswith(PREFIX)}
    ports = {name: text for name, text in texts.items() if name.startswith(PORT_ACL)}
    others = {name: text for name, text in texts.items() if name not in ports}
    values, invalid = parse_values(others, _NAMES, ROWS)
    port_rows = dict.fromkeys(ports, ROWS["acl_allowed_sources"])
    sources, bad = parse_values(ports, {name: name for name in ports}, port_rows)
    unread = {_NAMES[each.field] for each in invalid if each.field in _NAMES}
    parts = {part for field in unread for part in ROWS[field].parts}
    return ParsedAnnotations(
        values=Annotations(
            **{field: value for field, value in values.items() if field not in _WITHOUT_FIELD},
            acl_ports=tuple((name.removeprefix(PORT_ACL), found) for name, found in sources.items()),
        ),
        invalid=(*invalid, *bad),
        frozen=frozenset(parts | ({"sources"} if bad else set())),
    )


def invalid_annotation(field: str, reason: str) -> InvalidField:
    """Return the invalid field of an annotation."""
    return InvalidField(field=PREFIX + field.replace("_", "-"), reason=reason)
