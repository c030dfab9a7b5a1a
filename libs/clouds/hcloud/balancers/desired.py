"""The desired load balancer of a Service, and all that Hetzner Cloud cannot enforce."""

import itertools
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Any, Final

import msgspec

from libs.clouds.balancers import (
    ADDRESS_TYPES,
    AFFINITY_IGNORED,
    BalancerRequest,
    InvalidField,
    ParsedRequest,
    Port,
)
from libs.clouds.hcloud.balancers.annotations import (
    Annotations,
    ParsedAnnotations,
    Part,
    invalid_annotation,
    parse_annotations,
)
from libs.clouds.hcloud.balancers.documents import (
    HealthCheck,
    HealthCheckHttp,
    ManagedCertificate,
    Service,
    ServiceHttp,
)

# The API's own defaults. They are always sent, so that another value is a difference.
_INTERVAL_SECONDS: Final = 15
_TIMEOUT_SECONDS: Final = 10
_RETRIES: Final = 3
_MAX_NAME: Final = 32
ROBOT_ENABLED: Final = "ROBOT_ENABLED"  # the option, as in Hetzner's own controller
NATIVE_LABEL: Final = "hcloud-ccm/service-uid"  # of Hetzner's own controller
_MANAGED: Final = frozenset({"http_managed_certificate_name", "http_managed_certificate_domains"})
_CHECK: Final = (
    "health_check_port",
    "health_check_interval",
    "health_check_timeout",
    "health_check_retries",
)
_HTTP_CHECK: Final = frozenset(
    {
        "health_check_http_domain",
        "health_check_http_path",
        "health_check_http_validate_certificate",
        "http_status_codes",
    }
)
# of kube-proxy: 200 where the Node has a pod of the Service
_NODE_HEALTH: Final = HealthCheckHttp(path="/healthz", status_codes=("200",))


class BalancerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of all balancers of an account: their network's id or name, and defaults of the annotations."""

    network: int | str | None = None
    robot_enabled: bool = False  # whether dedicated servers are targets
    defaults: Annotations = Annotations()


class DesiredBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer without targets. `services` have no certificates that are given by name."""

    default_name: str
    annotations: Annotations
    network: int | str | None
    services: tuple[Service, ...]
    certificate_names: tuple[str, ...] = ()  # without ids so far
    managed_certificate: ManagedCertificate | None = None  # its name is one of them
    frozen: frozenset[Part] = frozenset()
    may_open_ports: bool = True


def read_request(request: BalancerRequest, options: BalancerOptions) -> ParsedRequest[DesiredBalancer]:
    """Return the desired balancer, without targets."""
    parsed = parse_annotations(request.annotations, options.defaults)
    frozen, invalid = set(parsed.frozen), list(parsed.invalid)
    checks = _check_ports(request), _check_spec(request), _check_values(parsed, request, options)
    for part, field in itertools.chain.from_iterable(checks):
        invalid.append(field)
        frozen |= {part} if part else set()
    values = parsed.values
    managed = _build_managed_certificate(values, request.uid)
    given = values.http_certificates if values.protocol == "https" else ()
    names = (managed.name,) if managed else tuple(name for name in given if not name.isdecimal())
    desired = DesiredBalancer(
        default_name=_build_name(request.uid),
        annotations=values,
        network=options.network,
        services=tuple(_build_service(port, parsed, request) for port in _usable_ports(request)),
        certificate_names=names,
        managed_certificate=managed,
        frozen=frozenset(frozen),
        may_open_ports=not invalid,
    )
    left_out = [port for port in request.ports if port.protocol != "TCP"]
    warnings = [
        f"port {port.port}/{port.protocol} is left out: Hetzner Cloud balances TCP only" for port in left_out
    ]
    if request.keeps_clients:
        warnings.append(AFFINITY_IGNORED)
    return ParsedRequest(
        desired=desired,
        invalid=tuple(invalid),
        warnings=tuple(warnings),
        node_selector=None if _is_unreadable("node_selector", parsed) else values.node_selector,
        address_types=_select_address_types(parsed),
    )


def set_certificates(
    parsed: ParsedRequest[DesiredBalancer], ids: Mapping[str, int | None]
) -> ParsedRequest[DesiredBalancer]:
    """Replace the names of certificates; None is the id of a name that the project does not have.

    If there is such a name, the others may be absent in `ids`.
    """
    desired = parsed.desired
    missing = [name for name, each in ids.items() if each is None]
    if missing:
        field = invalid_annotation(
            "http_certificates", f"the project has no certificate {', '.join(missing)}"
        )
        return reject_services(parsed, field)
    managed = desired.managed_certificate
    names = desired.annotations.http_certificates if managed is None else (managed.name,)
    given = [ids.get(name) or int(name) for name in names]
    services = tuple(
        msgspec.structs.replace(
            service, http=msgspec.structs.replace(service.http, certificates=tuple(sorted(given)))
        )
        if service.http is not None and service.protocol == "https"
        else service
        for service in desired.services
    )
    desired = msgspec.structs.replace(desired, certificate_names=(), services=services)
    return msgspec.structs.replace(parsed, desired=desired)


def reject_services(
    parsed: ParsedRequest[DesiredBalancer], field: InvalidField
) -> ParsedRequest[DesiredBalancer]:
    """Return the request with another invalid field that describes the services."""
    return _freeze(parsed, field, "services", certificate_names=())


def set_network(
    parsed: ParsedRequest[DesiredBalancer], network: int | None
) -> ParsedRequest[DesiredBalancer]:
    """Replace the name of the network; None: the project has none of this name."""
    if network is not None:
        desired = msgspec.structs.replace(parsed.desired, network=network)
        return msgspec.structs.replace(parsed, desired=desired)
    field = InvalidField(
        field="HCLOUD_NETWORK", reason=f"the project has no network {parsed.desired.network}"
    )
    return _freeze(parsed, field, "network", "new_targets", "public_interface", "status", network=None)


def _freeze(
    parsed: ParsedRequest[DesiredBalancer], field: InvalidField, *parts: Part, **changes: Any
) -> ParsedRequest[DesiredBalancer]:
    frozen = parsed.desired.frozen | set(parts)
    desired = msgspec.structs.replace(parsed.desired, frozen=frozen, may_open_ports=False, **changes)
    return msgspec.structs.replace(parsed, invalid=(*parsed.invalid, field), desired=desired)


# ---- invalid fields, each with the part that plans do not change


def _check_ports(request: BalancerRequest) -> Iterator[tuple[Part | None, InvalidField]]:
    ports = [port for port in request.ports if port.protocol == "TCP"]
    if not ports:
        reason = "there is no TCP port, and Hetzner Cloud balances TCP only"
        yield "ports", InvalidField(field="spec.ports", reason=reason)
    for port in ports:
        if not port.node_port:
            field = f"spec.ports[{port.name or port.port}].nodePort"
            reason = "it is missing: enable allocateLoadBalancerNodePorts"
            yield "ports", InvalidField(field=field, reason=reason)


def _check_spec(request: BalancerRequest) -> Iterator[tuple[Part | None, InvalidField]]:
    restricting = [each for each in request.source_ranges if not _is_everywhere(each)]
    if restricting:
        field = "spec.loadBalancerSourceRanges"
        ranges = ", ".join(restricting)
        reason = f"{ranges} cannot be enforced: Hetzner Cloud allows only 0.0.0.0/0 and ::/0"
        yield None, InvalidField(field=field, reason=reason)
    if request.load_balancer_ip:
        field = "spec.loadBalancerIP"
        reason = f"{request.load_balancer_ip} cannot be requested: Hetzner Cloud assigns the address itself"
        yield None, InvalidField(field=field, reason=reason)
    if request.ip_families and "IPv4" not in request.ip_families:
        field = "spec.ipFamilies"
        reason = "IPv4 is missing, and Hetzner Cloud reaches targets by IPv4 only"
        yield None, InvalidField(field=field, reason=reason)


def _check_values(
    parsed: ParsedAnnotations, request: BalancerRequest, options: BalancerOptions
) -> Iterator[tuple[Part | None, InvalidField]]:
    values = parsed.values
    if options.network is None:
        needing: tuple[tuple[str, Part], ...] = (
            ("use_private_ip", "new_targets"),
            ("private_ipv4", "network"),
            ("private_subnet_ip_range", "network"),
            ("disable_public_network", "public_interface"),
        )
        for field, part in needing:
            if getattr(values, field):
                yield (
                    part,
                    invalid_annotation(
                        field, "it needs a network: set HCLOUD_NETWORK in the options of the account"
                    ),
                )
    elif values.disable_public_network and not values.use_private_ip:
        reason = "it needs use-private-ip, as no other way to targets is left"
        yield "public_interface", invalid_annotation("disable_public_network", reason)
    if request.creates_balancer and not values.location and not values.network_zone:
        yield (
            None,
            invalid_annotation("location", "it is not set, nor is network-zone, and there is no default"),
        )
    if values.protocol == "https":
        yield from _check_certificates(parsed)
    if _select_check_protocol(parsed, request) == "tcp":
        for field in sorted(_HTTP_CHECK & parsed.names):
            yield "services", invalid_annotation(field, "it needs health-check-protocol http or https")


def _check_certificates(parsed: ParsedAnnotations) -> Iterator[tuple[Part | None, InvalidField]]:
    kind = parsed.values.certificate_type
    if kind == "managed" and not parsed.values.http_managed_certificate_domains:
        reason = "it is not set, and certificate-type is managed"
        yield "services", invalid_annotation("http_managed_certificate_domains", reason)
    unused = {"http_certificates"} if kind == "managed" else _MANAGED
    for field in sorted(unused & parsed.names):
        yield "services", invalid_annotation(field, f"it has no effect, as certificate-type is {kind}")


def _is_everywhere(source_range: str) -> bool:
    try:
        return ip_network(source_range.strip()).prefixlen == 0
    except ValueError:
        return False


def _select_address_types(parsed: ParsedAnnotations) -> tuple[str, ...] | None:
    """A dedicated server has its public address as ExternalIP, if it also has one in a vSwitch."""
    if _is_unreadable("use_private_ip", parsed):
        return None
    return ADDRESS_TYPES if parsed.values.use_private_ip else ADDRESS_TYPES[::-1]


def _is_unreadable(field: str, parsed: ParsedAnnotations) -> bool:
    return invalid_annotation(field, "").field in {each.field for each in parsed.invalid}


# ---- parts of the balancer


def _build_name(service_uid: str) -> str:
    """Return the name that cloud-provider gives to balancers."""
    return ("a" + service_uid.replace("-", ""))[:_MAX_NAME]


def _build_managed_certificate(values: Annotations, service_uid: str) -> ManagedCertificate | None:
    """Return the certificate with the name and label of Hetzner's own controller."""
    if (values.protocol, values.certificate_type) != ("https", "managed"):
        return None
    if not values.http_managed_certificate_domains:
        return None
    return ManagedCertificate(
        name=values.http_managed_certificate_name or f"ccm-managed-certificate-{service_uid}",
        domain_names=values.http_managed_certificate_domains,
        labels={NATIVE_LABEL: service_uid},
    )


def _usable_ports(request: BalancerRequest) -> Iterator[Port]:
    return (port for port in request.ports if port.protocol == "TCP" and port.node_port)


def _build_service(port: Port, parsed: ParsedAnnotations, request: BalancerRequest) -> Service:
    values = parsed.values
    return Service(
        protocol=values.protocol,
        listen_port=port.port,
        destination_port=port.node_port,
        proxyprotocol=values.uses_proxyprotocol,
        http=None if values.protocol == "tcp" else _build_http(values),
        health_check=_build_health_check(port, parsed, request),
    )


def _build_http(values: Annotations) -> ServiceHttp:
    return ServiceHttp(
        cookie_name=values.http_cookie_name,
        cookie_lifetime=values.http_cookie_lifetime,
        timeout_idle=values.http_timeout_idle,
        certificates=tuple(sorted(int(each) for each in values.http_certificates if each.isdecimal())),
        redirect_http=values.http_redirect_http,
        sticky_sessions=values.http_sticky_sessions,
    )


def _build_health_check(port: Port, parsed: ParsedAnnotations, request: BalancerRequest) -> HealthCheck:
    """Return the check of a port: of the Node where traffic stays on it, else of the port."""
    values = parsed.values
    asks_node = _asks_node(parsed, request)
    protocol = _select_check_protocol(parsed, request)
    asks_kube_proxy = asks_node and not parsed.names & (_HTTP_CHECK | {"health_check_port"})
    http = _NODE_HEALTH if asks_kube_proxy else _build_check_http(values)
    return HealthCheck(
        protocol=protocol,
        port=values.health_check_port or (request.health_check_node_port if asks_node else port.node_port),
        interval=values.health_check_interval or _INTERVAL_SECONDS,
        timeout=values.health_check_timeout or _TIMEOUT_SECONDS,
        retries=values.health_check_retries or _RETRIES,
        http=http if protocol == "http" else None,
    )


def _asks_node(parsed: ParsedAnnotations, request: BalancerRequest) -> bool:
    return request.health_check_node_port != 0 and parsed.values.health_check_protocol in {None, "http"}


def _select_check_protocol(parsed: ParsedAnnotations, request: BalancerRequest) -> str:
    """Return the API's name: https is http with TLS.

    Without the annotation, it is the protocol behind the balancer if another value of the check is set, else
    tcp.
    """
    values = parsed.values
    if values.health_check_protocol is not None:
        return "tcp" if values.health_check_protocol == "tcp" else "http"
    is_set = any(getattr(values, field) is not None for field in _CHECK) or parsed.names & _HTTP_CHECK
    return "http" if _asks_node(parsed, request) or (is_set and values.protocol != "tcp") else "tcp"


def _build_check_http(values: Annotations) -> HealthCheckHttp:
    return HealthCheckHttp(
        domain=values.health_check_http_domain or None,
        path=values.health_check_http_path,
        status_codes=tuple(sorted(values.http_status_codes)),
        tls=values.health_check_protocol == "https" or values.health_check_http_validate_certificate,
    )
