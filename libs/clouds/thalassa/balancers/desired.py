"""The desired load balancer of a Service, and all that Thalassa Cloud cannot enforce."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from libs.clouds.balancers import AFFINITY_IGNORED, BalancerRequest, InvalidField, ParsedRequest, Port
from libs.clouds.thalassa.balancers.annotations import (
    PORT_ACL,
    Annotations,
    ParsedAnnotations,
    Sources,
    invalid_annotation,
    parse_annotations,
    parse_sources,
)
from libs.clouds.thalassa.balancers.documents import NATIVE, HealthCheck, Network, remove_labels
from libs.clouds.thalassa.config_file import ThalassaConfig

_MAX_NAME: Final = 32
_PROTOCOLS: Final = ("TCP", "UDP")
_RANGES: Final = "spec.loadBalancerSourceRanges"

Invalid = Iterator[tuple[str, InvalidField]]  # each with the part that plans do not change, "" without one


_Seconds = Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class CreationTimes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`loadBalancer` of the file, with the defaults of the cloud's own controller; in seconds."""

    creation_poll_interval: _Seconds = 5
    creation_poll_timeout: _Seconds = 300  # the Service is told of a longer creation, which goes on


class FileDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """VPC, subnet and labels of load balancers, from the config file and the account."""

    vpc: str = ""
    default_subnet: str = ""
    labels: tuple[tuple[str, str], ...] = ()  # of all objects that are created
    creation: CreationTimes = CreationTimes()
    problem: str = ""  # why a part of the file cannot be read


def read_file_defaults(config: ThalassaConfig, vpc: str, default_subnet: str) -> FileDefaults:
    """Return the defaults; `vpc` and a `default_subnet` of the account win over those of the file."""
    try:
        subnet = msgspec.convert(config.default_subnet or "", str)
        labels = msgspec.convert(config.additional_labels or {}, dict[str, str])
        times = msgspec.convert(config.load_balancer or {}, dict[str, object])
        # The cloud's own controller, in Go, reads null as unset.
        times = {name: value for name, value in times.items() if value is not None}
        creation = msgspec.convert(times, CreationTimes)
    except msgspec.ValidationError:
        return FileDefaults(
            vpc=vpc,
            problem="defaultSubnet has to be a text, additionalLabels a map of texts, "
            "loadBalancer.creationPollInterval and creationPollTimeout whole seconds from 1 to 86400",
        )
    # labels by which an object is recognized are not the user's
    own = tuple(sorted(remove_labels(labels, NATIVE).items()))
    return FileDefaults(vpc=vpc, default_subnet=default_subnet or subnet, labels=own, creation=creation)


class DesiredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The targets behind a port."""

    protocol: str
    target_port: int
    policy: str
    proxy_protocol: bool
    health_check: HealthCheck | None


class DesiredListener(msgspec.Struct, frozen=True, kw_only=True):
    """A port."""

    protocol: str
    port: int
    sources: Sources
    max_connections: int
    idle_timeout: int
    group: DesiredGroup

    @property
    def key(self) -> str:
        """Identifies the target group among those of its balancer."""
        return f"{self.protocol}-{self.port}"


class DesiredBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer without targets."""

    name: str
    defaults: FileDefaults
    annotations: Annotations
    listeners: tuple[DesiredListener, ...]
    subnet: str = ""  # its identity, as soon as it is known
    frozen: frozenset[str] = frozenset()
    may_open_ports: bool = True


def read_request(request: BalancerRequest, defaults: FileDefaults) -> ParsedRequest[DesiredBalancer]:
    """Return the desired balancer, without targets."""
    parsed = parse_annotations(request.annotations)
    frozen, invalid = set(parsed.frozen), list(parsed.invalid)
    checks = (
        _check_ports(request, parsed.values),
        _check_sources(request, parsed),
        _check_values(request, parsed, defaults),
    )
    for part, field in itertools.chain.from_iterable(checks):
        invalid.append(field)
        frozen |= {part} if part else set()
    desired = DesiredBalancer(
        # not the name that cloud-provider gives: Thalassa's own controller takes over what has that
        name=("t" + request.uid.replace("-", ""))[:_MAX_NAME],
        defaults=defaults,
        annotations=parsed.values,
        listeners=tuple(_build_listener(port, parsed.values, request) for port in _list_usable(request)),
        frozen=frozenset(frozen),
        may_open_ports=not invalid,
    )
    warnings = (AFFINITY_IGNORED,) if request.keeps_clients else ()
    return ParsedRequest(
        desired=desired,
        invalid=tuple(invalid),
        warnings=warnings,
        busy_seconds=defaults.creation.creation_poll_timeout,
    )


def set_subnet(
    parsed: ParsedRequest[DesiredBalancer], network: Network | None
) -> ParsedRequest[DesiredBalancer]:
    """Set the identity of the subnet: the named one, or the first. The VPC is None if it is missing."""
    defaults, named = parsed.desired.defaults, get_subnet_name(parsed.desired)
    subnets = () if network is None else network.subnets or ()
    found = next((each for each in subnets if not named or named in (each.identity, each.slug)), None)
    if found is not None:
        return msgspec.structs.replace(
            parsed, desired=msgspec.structs.replace(parsed.desired, subnet=found.identity)
        )
    if network is None:
        field = InvalidField(field="vpcIdentity", reason=f"there is no VPC {defaults.vpc}")
    else:
        field = invalid_annotation("subnet", f"VPC {defaults.vpc} has no subnet {named}".rstrip())
    desired = msgspec.structs.replace(parsed.desired, may_open_ports=False)
    return msgspec.structs.replace(parsed, invalid=(*parsed.invalid, field), desired=desired)


def get_subnet_name(desired: DesiredBalancer) -> str:
    """Return the identity or slug of the subnet that is named; "" selects the first one."""
    return desired.annotations.subnet or desired.defaults.default_subnet


# ---- invalid fields


def _check_ports(request: BalancerRequest, values: Annotations) -> Invalid:
    numbers = Counter(port.port for port in request.ports)
    for port in request.ports:
        field = f"spec.ports[{port.name or port.port}]"
        if port.protocol not in _PROTOCOLS:
            reason = f"{port.protocol} is not supported: use TCP or UDP"
            yield "ports", InvalidField(field=f"{field}.protocol", reason=reason)
        elif not port.node_port:
            reason = "it is missing: enable allocateLoadBalancerNodePorts"
            yield "ports", InvalidField(field=f"{field}.nodePort", reason=reason)
        if numbers[port.port] > 1:
            reason = f"{port.port} is there twice, and a load balancer has one port for TCP and UDP"
            yield "ports", InvalidField(field=f"{field}.port", reason=reason)
        if port.protocol == "UDP" and values.enable_proxy_protocol:
            reason = f"{field} is UDP, which has no PROXY protocol"
            yield "proxy_protocol", invalid_annotation("enable_proxy_protocol", reason)
    if not request.ports:
        yield "ports", InvalidField(field="spec.ports", reason="there is none")


def _check_sources(request: BalancerRequest, parsed: ParsedAnnotations) -> Invalid:
    values = parsed.values
    names = {name for port in request.ports for name in _list_port_names(port)}
    for name in sorted(dict(values.acl_ports).keys() - names):
        yield "sources", InvalidField(field=f"{PORT_ACL}{name}", reason="the Service has no such port")
    if not request.source_ranges:
        return
    if values.acl_ports or values.acl_allowed_sources or "sources" in parsed.frozen:
        reason = "the annotations have an ACL, too: use one of them"
        yield "sources", InvalidField(field=_RANGES, reason=reason)
    try:
        _read_ranges(request)
    except ValueError as error:
        yield "sources", InvalidField(field=_RANGES, reason=f"it is not {error}")


def _check_values(request: BalancerRequest, parsed: ParsedAnnotations, defaults: FileDefaults) -> Invalid:
    values = parsed.values
    if defaults.problem:
        yield "", InvalidField(field="config file", reason=defaults.problem)
    elif not defaults.vpc:
        yield "", InvalidField(field="vpcIdentity", reason="the config file names no VPC")
    has_port = values.health_check_port or request.health_check_node_port or "health_check" in parsed.frozen
    if values.health_check_enabled and not has_port:
        yield "health_check", invalid_annotation("health_check_port", "it is not set, and checks are enabled")
    if request.load_balancer_ip:
        reason = f"{request.load_balancer_ip} cannot be requested: use the annotation reserved-ip"
        yield "", InvalidField(field="spec.loadBalancerIP", reason=reason)


# ---- parts of the balancer


def _list_usable(request: BalancerRequest) -> Iterator[Port]:
    numbers = Counter(port.port for port in request.ports)
    for port in request.ports:
        if port.protocol in _PROTOCOLS and port.node_port and numbers[port.port] == 1:
            yield port


def _list_port_names(port: Port) -> tuple[str, ...]:
    return tuple(filter(None, (port.name, str(port.port))))


def _read_ranges(request: BalancerRequest) -> Sources:
    """Raises ValueError with the form of a list."""
    return parse_sources(",".join(each.strip() for each in request.source_ranges))


def _build_listener(port: Port, values: Annotations, request: BalancerRequest) -> DesiredListener:
    protocol = port.protocol.lower()
    return DesiredListener(
        protocol=protocol,
        port=port.port,
        sources=_collect_sources(port, values, request),
        max_connections=values.max_connections,
        idle_timeout=values.idle_connection_timeout,
        group=DesiredGroup(
            protocol=protocol,
            target_port=port.node_port,
            policy=values.loadbalancing_policy,
            proxy_protocol=values.enable_proxy_protocol,
            health_check=_build_health_check(values, request.health_check_node_port),
        ),
    )


def _collect_sources(port: Port, values: Annotations, request: BalancerRequest) -> Sources:
    """Return who may connect: the general ACL and those of the port by name and number, together."""
    try:
        ranges = _read_ranges(request) if request.source_ranges else ()
    except ValueError:
        ranges = ()  # `_check_sources` reports it, and the part is frozen
    acls = dict(values.acl_ports)
    own = (source for name in _list_port_names(port) for source in acls.get(name, ()))
    return tuple(sorted({*ranges, *values.acl_allowed_sources, *own}))


def _build_health_check(values: Annotations, node_port: int) -> HealthCheck | None:
    """Return the check: of kube-proxy on the Node where traffic stays on it, also if checks are off.

    Without it, traffic would go to Nodes that have no pod of the Service.
    """
    port = values.health_check_port or node_port
    if not port or not (node_port or values.health_check_enabled):
        return None
    protocol = "http" if node_port else values.health_check_protocol
    return HealthCheck(
        protocol=protocol,
        port=port,
        path=values.health_check_path if protocol == "http" else "",
        period_seconds=values.health_check_interval,
        timeout_seconds=values.health_check_timeout,
        healthy_threshold=values.health_check_up_threshold,
        unhealthy_threshold=values.health_check_down_threshold,
    )
