"""The desired load balancer of a Service, and all that Octavia cannot enforce."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Final

import msgspec

from libs.clouds.balancers import BalancerRequest, InvalidField, ParsedRequest, Port
from libs.clouds.openstack.balancers.annotations import (
    Annotations,
    ParsedAnnotations,
    invalid_annotation,
    parse_annotations,
)
from libs.clouds.openstack.balancers.documents import FloatingIp
from libs.clouds.openstack.balancers.ownership import MAX_DESCRIPTION, read_description

_MAX_NAME: Final = 32
_MAX_TEXT: Final = MAX_DESCRIPTION - 200  # our tags with two uids have 184 characters at most
_PROTOCOLS: Final = ("TCP", "UDP")
_EVERYWHERE: Final = ("0.0.0.0/0",)
_NODE_HEALTH: Final = "/healthz"  # of kube-proxy: 200 where the Node has a pod of the Service


class DesiredMonitor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A health monitor, with the names of the API. Times are in seconds."""

    type: str
    delay: int
    timeout: int
    max_retries: int
    max_retries_down: int
    url_path: str | None = None
    expected_codes: str | None = None


class DesiredPool(msgspec.Struct, frozen=True, kw_only=True):
    """The members behind a port: one for each target."""

    protocol: str
    lb_algorithm: str
    session_persistence: str  # the type, "" without
    member_port: int
    monitor_port: int | None
    member_subnet: str
    monitor: DesiredMonitor | None


class DesiredListener(msgspec.Struct, frozen=True, kw_only=True):
    """A port. `settings` has the fields that can change, with the names of the API."""

    protocol: str
    port: int
    settings: tuple[tuple[str, object], ...]
    pool: DesiredPool

    @property
    def key(self) -> str:
        """Identifies the port among those of its balancer."""
        return f"{self.protocol}-{self.port}"


class DesiredBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer without targets."""

    default_name: str
    annotations: Annotations
    listeners: tuple[DesiredListener, ...]
    internal_address: str = ""  # that an internal balancer asks for
    reserved_address: str = ""  # a floating one that exists
    reserved_id: str = ""  # its id, as soon as it is known
    service_uid: str = ""
    frozen: frozenset[str] = frozenset()
    may_open_ports: bool = True


def read_request(
    request: BalancerRequest, sections: Mapping[str, Mapping[str, str]], *, is_complete: bool = True
) -> ParsedRequest[DesiredBalancer]:
    """Return the desired balancer, without targets. See `parse_annotations` for the sections."""
    parsed = parse_annotations(request.annotations, sections, is_complete=is_complete)
    frozen, invalid = set(parsed.frozen), list(parsed.invalid)
    checks = _check_ports(request, parsed), _check_spec(request, parsed), _check_values(request, parsed)
    for part, field in itertools.chain.from_iterable(checks):
        invalid.append(field)
        frozen |= {part} if part else set()
    values = parsed.values
    desired = DesiredBalancer(
        default_name=("a" + request.uid.replace("-", ""))[:_MAX_NAME],  # as cloud-provider names balancers
        annotations=values,
        listeners=tuple(_build_listener(port, values, request) for port in _list_usable(request)),
        internal_address=request.load_balancer_ip if values.internal else "",
        reserved_address="" if values.internal else request.load_balancer_ip,
        service_uid=request.uid,
        frozen=frozenset(frozen),
        may_open_ports=not invalid,
    )
    return ParsedRequest(
        desired=desired,
        invalid=tuple(invalid),
        node_selector=None if "node_selector" in parsed.unreadable else values.node_selector,
        # what cannot be read may say that the address has to stay
        keeps_address=values.keep_floatingip or "keep_floatingip" in parsed.unreadable,
    )


def set_reserved_address(
    parsed: ParsedRequest[DesiredBalancer], addresses: Iterable[FloatingIp]
) -> ParsedRequest[DesiredBalancer]:
    """Replace the reserved address by its id; it has to be free, or the Service's."""
    desired = parsed.desired
    found = next((each for each in addresses if each.floating_ip_address == desired.reserved_address), None)
    problem = _explain_unusable(found, desired.service_uid)
    if found is not None and not problem:
        return msgspec.structs.replace(parsed, desired=msgspec.structs.replace(desired, reserved_id=found.id))
    field = InvalidField(field="spec.loadBalancerIP", reason=f"{desired.reserved_address} {problem}")
    desired = msgspec.structs.replace(desired, frozen=desired.frozen | {"floating_ip"}, may_open_ports=False)
    return msgspec.structs.replace(parsed, desired=desired, invalid=(*parsed.invalid, field))


def _explain_unusable(address: FloatingIp | None, service_uid: str) -> str:
    if address is None:
        return "is no floating address of the project: reserve it first"
    known = read_description(address.description)
    if known is not None:
        return "" if known.owner.service_uid == service_uid else "belongs to another Service"
    if address.port_id is not None:
        return f"is used by port {address.port_id}"
    if address.revision_number is None:
        return (
            "has no revision, so another client may take it meanwhile: the plugin revisions of Neutron is off"
        )
    return "" if len(address.description) <= _MAX_TEXT else "has a description that leaves no room for tags"


# ---- invalid fields, each with the part that plans do not change


def _check_ports(
    request: BalancerRequest, parsed: ParsedAnnotations
) -> Iterator[tuple[str | None, InvalidField]]:
    for port in request.ports:
        field = f"spec.ports[{port.name or port.port}]"
        if port.protocol not in _PROTOCOLS:
            reason = f"{port.protocol} is not supported: use TCP or UDP"
            yield "ports", InvalidField(field=f"{field}.protocol", reason=reason)
        elif not port.node_port:
            reason = "it is missing: enable allocateLoadBalancerNodePorts"
            yield "ports", InvalidField(field=f"{field}.nodePort", reason=reason)
        if port.protocol == "UDP" and parsed.values.proxy_protocol:
            reason = f"{field} is UDP, which has no PROXY protocol"
            yield "pools", invalid_annotation("proxy_protocol", reason)
        if port.protocol == "UDP" and parsed.values.x_forwarded_for:
            yield "listeners", invalid_annotation("x_forwarded_for", f"{field} is UDP, and not HTTP")
    if not request.ports:
        yield "ports", InvalidField(field="spec.ports", reason="there is none")


def _check_spec(
    request: BalancerRequest, parsed: ParsedAnnotations
) -> Iterator[tuple[str | None, InvalidField]]:
    unreadable = [each for each in request.source_ranges if not _is_range(each)]
    if unreadable:
        reason = f"{', '.join(unreadable)} is no network such as 192.0.2.0/24"
        yield "allowed_cidrs", InvalidField(field="spec.loadBalancerSourceRanges", reason=reason)
    elif request.source_ranges and all(":" in each for each in request.source_ranges):
        reason = "IPv4 is missing, and balancers are made for IPv4 only"
        yield "allowed_cidrs", InvalidField(field="spec.loadBalancerSourceRanges", reason=reason)
    if request.ip_families and "IPv4" not in request.ip_families:
        reason = "IPv4 is missing, and balancers are made for IPv4 only"
        yield None, InvalidField(field="spec.ipFamilies", reason=reason)
    if request.load_balancer_ip and not _is_ipv4(request.load_balancer_ip):
        reason = f"{request.load_balancer_ip} is no IPv4 address"
        yield "floating_ip", InvalidField(field="spec.loadBalancerIP", reason=reason)


def _check_values(
    request: BalancerRequest, parsed: ParsedAnnotations
) -> Iterator[tuple[str | None, InvalidField]]:
    values = parsed.values
    if values.x_forwarded_for and values.proxy_protocol:
        yield "pools", invalid_annotation("x_forwarded_for", "it excludes proxy-protocol")
    is_unclear = parsed.unreadable & {"floating_network_id", "internal"}
    if not values.internal and not values.floating_network_id and not is_unclear:
        reason = "it is not set, nor is it in cloud.conf, and the Service is not internal"
        yield "floating_ip", invalid_annotation("floating_network_id", reason)
    if values.port_id and not values.internal:
        reason = "a port that exists needs openstack-internal-load-balancer: it keeps what its owner gave it"
        yield "floating_ip", invalid_annotation("port_id", reason)
    if values.health_monitor_timeout > values.health_monitor_delay:
        reason = f"{values.health_monitor_timeout} is more than the delay, {values.health_monitor_delay}"
        yield "monitors", invalid_annotation("health_monitor_timeout", reason)
    is_placed = values.subnet_id or values.network_id or values.port_id
    if request.creates_balancer and not is_placed and not parsed.unreadable & {"subnet_id", "network_id"}:
        reason = "it is not set, nor is network-id or port-id, also not in cloud.conf"
        yield None, invalid_annotation("subnet_id", reason)


def _is_range(text: str) -> bool:
    try:
        return bool(ip_network(text.strip()))
    except ValueError:
        return False


def _is_ipv4(text: str) -> bool:
    try:
        return ip_address(text).version == 4
    except ValueError:
        return False


# ---- parts of the balancer


def _list_usable(request: BalancerRequest) -> Iterator[Port]:
    return (port for port in request.ports if port.protocol in _PROTOCOLS and port.node_port)


def _build_listener(port: Port, values: Annotations, request: BalancerRequest) -> DesiredListener:
    is_tcp = port.protocol == "TCP"
    adds_header = is_tcp and values.x_forwarded_for
    settings: dict[str, object] = {
        "allowed_cidrs": _list_allowed(request),
        "connection_limit": values.connection_limit,
        "insert_headers": (("X-Forwarded-For", "true"),) if adds_header else (),
    }
    if is_tcp:
        settings |= {
            "timeout_client_data": values.timeout_client_data,
            "timeout_member_connect": values.timeout_member_connect,
            "timeout_member_data": values.timeout_member_data,
            "timeout_tcp_inspect": values.timeout_tcp_inspect,
        }
    return DesiredListener(
        protocol="HTTP" if adds_header else port.protocol,
        port=port.port,
        settings=tuple(sorted(settings.items())),
        pool=_build_pool(port, values, request),
    )


def _list_allowed(request: BalancerRequest) -> tuple[str, ...]:
    """Return the networks of IPv4: a balancer has no other address, and Octavia rejects those of IPv6."""
    ranges = {each.strip() for each in request.source_ranges}
    return tuple(sorted(each for each in ranges if ":" not in each)) if ranges else _EVERYWHERE


def _build_pool(port: Port, values: Annotations, request: BalancerRequest) -> DesiredPool:
    protocol = "HTTP" if values.x_forwarded_for else values.proxy_protocol or "TCP"
    return DesiredPool(
        protocol=protocol if port.protocol == "TCP" else port.protocol,
        lb_algorithm=values.lb_method,
        session_persistence="SOURCE_IP" if request.keeps_clients else "",
        member_port=port.node_port,
        monitor_port=request.health_check_node_port or None,
        member_subnet=values.member_subnet_id,
        monitor=_build_monitor(port, values, asks_node=bool(request.health_check_node_port)),
    )


def _build_monitor(port: Port, values: Annotations, *, asks_node: bool) -> DesiredMonitor | None:
    """Return the monitor: of kube-proxy on the Node where traffic stays on it, also if monitors are off.

    Without it, traffic would go to Nodes that have no pod of the Service.
    """
    if not values.enable_health_monitor and not asks_node:
        return None
    kind = "HTTP" if asks_node else "TCP" if port.protocol == "TCP" else "UDP-CONNECT"
    return DesiredMonitor(
        type=kind,
        delay=values.health_monitor_delay,
        timeout=values.health_monitor_timeout,
        max_retries=values.health_monitor_max_retries,
        max_retries_down=values.health_monitor_max_retries_down,
        url_path=_NODE_HEALTH if asks_node else None,
        expected_codes="200" if asks_node else None,
    )
