"""The annotations of a Service, one row each, with the values and meaning of cloud-provider-openstack.

The keys of `[LoadBalancer]` and `[LoadBalancerClass]` in cloud.conf are their defaults.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from libs.clouds.annotation_values import (
    parse_choice,
    parse_hostname,
    parse_seconds,
    parse_text,
    parse_values,
    parse_whole,
)
from libs.clouds.balancers import InvalidField
from libs.clouds.node_selector import parse_node_selector
from libs.clouds.openstack.responses import UUID
from libs.common.cloud_config.model import NodeSelectorTerm
from libs.common.go_values import parse_bool

PREFIX: Final = "loadbalancer.openstack.org/"
INTERNAL: Final = "service.beta.kubernetes.io/openstack-internal-load-balancer"
SECTION: Final = "cloud.conf [LoadBalancer] "
_MAX_TIMEOUT: Final = 86_400_000  # milliseconds; Octavia's own limit is a day


class Annotations(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the annotations; a field is named like its annotation.

    Timeouts are in milliseconds, times of the monitor in seconds.
    """

    internal: bool = False
    floating_network_id: str = ""
    floating_subnet_id: str = ""
    subnet_id: str = ""
    network_id: str = ""
    member_subnet_id: str = ""
    port_id: str = ""
    keep_floatingip: bool = False
    proxy_protocol: str = ""  # PROXY or PROXYV2, "" without
    x_forwarded_for: bool = False
    lb_method: str = "ROUND_ROBIN"
    lb_provider: str = ""
    provider_requires_serial_api_calls: bool = False
    connection_limit: int = -1
    timeout_client_data: int = 50_000
    timeout_member_connect: int = 5_000
    timeout_member_data: int = 50_000
    timeout_tcp_inspect: int = 0
    enable_health_monitor: bool = True
    health_monitor_delay: int = 5
    health_monitor_timeout: int = 3
    health_monitor_max_retries: int = 1
    health_monitor_max_retries_down: int = 3
    flavor_id: str = ""
    availability_zone: str = ""
    hostname: str = ""
    node_selector: tuple[NodeSelectorTerm, ...] = ()


class ParsedAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """All valid values over the defaults, the names of those that are set, and the unchanged parts."""

    values: Annotations
    names: frozenset[str]
    invalid: tuple[InvalidField, ...]
    frozen: frozenset[str]
    unreadable: frozenset[str]  # fields


# ---- parsers: each raises ValueError with the valid values


def _parse_id(text: str) -> str:
    if not re.fullmatch(UUID, text):
        raise ValueError("the id of an object, in the form of a UUID in lower case")
    return text


def _parse_proxy_protocol(text: str) -> str:
    words = {"true": "PROXY", "v1": "PROXY", "v2": "PROXYV2", "false": ""}
    if text.lower() not in words:
        raise ValueError("one of true, false, v1, v2")
    return words[text.lower()]


def _parse_limit(text: str) -> int:
    if text == "-1":
        return -1
    return parse_whole(1, 2**31 - 1)(text)


def _parse_check_seconds(text: str) -> int:
    """cloud.conf has durations with a unit, annotations have numbers."""
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,3}", text) else parse_seconds(1, 3600)(text)


_upper_method: Final = parse_choice("round_robin", "least_connections", "source_ip", "source_ip_port")


def _parse_method(text: str) -> str:
    return _upper_method(text).upper()


# ---- the table


class Row(msgspec.Struct, frozen=True):
    """How an annotation is read, and which parts of a balancer it describes: () = read at the creation."""

    parse: Callable[[str], object]
    parts: tuple[str, ...] = ()
    key: str = ""  # in cloud.conf; "" if it has none


ROWS: Final[Mapping[str, Row]] = {
    "internal": Row(parse_bool, ("floating_ip", "status"), "internal-lb"),
    "floating_network_id": Row(_parse_id, ("floating_ip",), "floating-network-id"),
    "floating_subnet_id": Row(_parse_id, ("floating_ip",), "floating-subnet-id"),
    "subnet_id": Row(_parse_id, (), "subnet-id"),
    "network_id": Row(_parse_id, (), "network-id"),
    "member_subnet_id": Row(_parse_id, ("member_subnet",), "member-subnet-id"),
    "port_id": Row(_parse_id),
    "keep_floatingip": Row(parse_bool, ("keep_floatingip",)),
    "proxy_protocol": Row(_parse_proxy_protocol, ("pools", "status")),
    "x_forwarded_for": Row(parse_bool, ("listeners", "pools")),
    "lb_method": Row(_parse_method, ("lb_algorithm",), "lb-method"),
    "lb_provider": Row(parse_text, (), "lb-provider"),
    "provider_requires_serial_api_calls": Row(parse_bool, (), "provider-requires-serial-api-calls"),
    "connection_limit": Row(_parse_limit, ("connection_limit",)),
    "timeout_client_data": Row(parse_whole(0, _MAX_TIMEOUT), ("timeout_client_data",)),
    "timeout_member_connect": Row(parse_whole(0, _MAX_TIMEOUT), ("timeout_member_connect",)),
    "timeout_member_data": Row(parse_whole(0, _MAX_TIMEOUT), ("timeout_member_data",)),
    "timeout_tcp_inspect": Row(parse_whole(0, _MAX_TIMEOUT), ("timeout_tcp_inspect",)),
    "enable_health_monitor": Row(parse_bool, ("monitors",), "create-monitor"),
    "health_monitor_delay": Row(_parse_check_seconds, ("monitors",), "monitor-delay"),
    "health_monitor_timeout": Row(_parse_check_seconds, ("monitors",), "monitor-timeout"),
    "health_monitor_max_retries": Row(parse_whole(1, 10), ("monitors",), "monitor-max-retries"),
    "health_monitor_max_retries_down": Row(parse_whole(1, 10), ("monitors",), "monitor-max-retries-down"),
    "flavor_id": Row(_parse_id, (), "flavor-id"),
    "availability_zone": Row(parse_text, (), "availability-zone"),
    "hostname": Row(parse_hostname, ("status",)),
    "node_selector": Row(parse_node_selector, (), "node-selector"),
}
_NAMES: Final = {PREFIX + field.replace("_", "-"): field for field in ROWS if field != "internal"} | {
    INTERNAL: "internal"
}
_KEYS: Final = {row.key: field for field, row in ROWS.items() if row.key}
CONFIG_KEYS: Final = frozenset(_KEYS)
# Keys that say how the cloud's own controller works. None of them changes what a Service gets here.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "cascade-delete",
        "container-store",
        "enabled",
        "ingress-hostname-suffix",
        "lb-version",
        "max-shared-lb",
        "use-octavia",
    }
)
_ONLY_FALSE: Final = frozenset({"enable-ingress-hostname", "manage-security-groups"})
CLASS: Final = PREFIX + "class"
_MOVED: Final = {
    PREFIX + "load-balancer-id": (
        "it is not supported: name an existing load balancer in the annotation talos-ccm-use, "
        "and remove this one"
    )
}


def parse_annotations(
    annotations: Mapping[str, str], sections: Mapping[str, Mapping[str, str]], *, is_complete: bool = True
) -> ParsedAnnotations:
    """Return the values of the annotations of this cloud; all others are ignored.

    `sections` has the keys of cloud.conf: those of `[LoadBalancer]` below "", and those of each class.
    Unless `is_complete`, it is unknown which keys the file has.
    """
    keys, invalid = _read_sections(annotations, sections)
    names = {SECTION + key: field for key, field in _KEYS.items()}
    defaults, bad = parse_values({SECTION + key: text for key, text in keys.items()}, names, ROWS)
    texts = {name: text for name, text in annotations.items() if name.startswith((PREFIX, INTERNAL))}
    texts.pop(CLASS, None)
    invalid += [InvalidField(field=name, reason=_MOVED[name]) for name in texts.keys() & _MOVED.keys()]
    texts = {name: text for name, text in texts.items() if name not in _MOVED}
    values, worse = parse_values(texts, _NAMES, ROWS)
    if defaults.get("internal") and values.get("internal") is False:  # the operator's word, not a default
        del values["internal"]
        worse.append(invalid_annotation("internal", f"{SECTION}internal-lb allows no public load balancer"))
    unread = [field for each in bad if (field := names.get(each.field)) not in values or field == "internal"]
    unread += [_NAMES.get(each.field) for each in worse]
    if not is_complete or any(each.field == CLASS for each in invalid):
        # Its keys may say that the Service is internal: the defaults or an annotation would make it public.
        unread += (_KEYS.values() - values.keys()) | {"internal"}
    unreadable = frozenset(field for field in unread if field)
    return ParsedAnnotations(
        values=Annotations(**(defaults | values)),
        names=frozenset(values),
        invalid=(*invalid, *bad, *worse),
        frozen=frozenset(part for field in unreadable for part in ROWS[field].parts),
        unreadable=unreadable,
    )


def _read_sections(
    annotations: Mapping[str, str], sections: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], list[InvalidField]]:
    """Return the keys that apply to this Service: those of its class win."""
    keys = dict(sections.get("", {}))
    invalid = []
    name = annotations.get(CLASS, "")
    if name and name in sections:
        keys |= sections[name]
    elif name:
        known = ", ".join(sorted(filter(None, sections))) or "none"
        invalid.append(InvalidField(field=CLASS, reason=f'cloud.conf has no class "{name}"; it has {known}'))
    return {key: text for key, text in keys.items() if not _is_ignored(key, text)}, invalid


def _is_ignored(key: str, text: str) -> bool:
    return not text or key in _WITHOUT_EFFECT or (key in _ONLY_FALSE and text.lower() == "false")


def invalid_annotation(field: str, reason: str) -> InvalidField:
    """Return the invalid field of an annotation."""
    name = INTERNAL if field == "internal" else PREFIX + field.replace("_", "-")
    return InvalidField(field=name, reason=reason)
