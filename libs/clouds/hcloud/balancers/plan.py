"""Plans single actions of the API: the differences of an observed load balancer from the desired one."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from libs.clouds.balancers import Balancer, Ingress, InvalidField, Owner, Target
from libs.clouds.hcloud.balancers.annotations import Part
from libs.clouds.hcloud.balancers.desired import NATIVE_LABEL, ROBOT_ENABLED, DesiredBalancer
from libs.clouds.hcloud.balancers.documents import (
    LoadBalancer,
    LoadBalancerTarget,
    Resource,
    Service,
    ServiceHttp,
    TargetIp,
)
from libs.clouds.instances import Unanswered

SERVICE_LABEL: Final = "talos-ccm/service-uid"
CLUSTER_LABEL: Final = "talos-ccm/cluster"
ACCOUNT_LABEL: Final = "talos-ccm/account"
PREPARED_LABEL: Final = "talos-ccm/prepared"  # it existed before the Service, and stays
_OWNER_LABELS: Final = frozenset({SERVICE_LABEL, CLUSTER_LABEL, ACCOUNT_LABEL})
_OUR_LABELS: Final = _OWNER_LABELS | {PREPARED_LABEL}
_FOREIGN_LABELS: Final = ("hcloud-ccm/",)
CREATE_CERTIFICATE: Final = "create_certificate"
_DEFAULT_TYPE: Final = "lb11"
_TARGETS_AT_CREATION: Final = 25  # as many as the smallest type has

Document = Mapping[str, Any]


class Change(msgspec.Struct, frozen=True):
    """One action of a load balancer by its name in the API; "update" changes name and labels.

    CREATE_CERTIFICATE is one of the project.
    """

    action: str
    body: bytes  # JSON

    def __str__(self) -> str:
        return f"{self.action} {self.body.decode()}"


def build_balancer(observed: LoadBalancer) -> Balancer | Unanswered:
    """Return the balancer; the API does not name running actions, so it is never busy."""
    labels = observed.labels
    owner = _read_owner(labels)
    targets = []
    for target in observed.targets:
        if (found := _read_target(target)) is not None:
            targets.append(found)
        elif target.label_selector is None:
            return Unanswered("malformed", f"load balancer {observed.id}: a target without {target.type}")
    return Balancer(
        id=str(observed.id),
        name=observed.name,
        created_at=observed.created,
        owner=owner,
        has_foreign_tags=(owner is None and not _OUR_LABELS.isdisjoint(labels))
        or any(label.startswith(_FOREIGN_LABELS) for label in labels),
        is_busy=False,
        is_protected=observed.protection.delete or PREPARED_LABEL in labels,
        targets=tuple(targets),
        details=observed,
        native_uid=labels.get(NATIVE_LABEL, ""),
        kept_objects=tuple(f"certificate {each}" for each in _list_certificates(observed)),
    )


def _list_certificates(observed: LoadBalancer) -> list[int]:
    used = (each.http.certificates or () for each in observed.services if each.http is not None)
    return sorted({certificate for certificates in used for certificate in certificates})


def _read_owner(labels: Mapping[str, str]) -> Owner | None:
    """Return the owner, None unless all labels of one are there."""
    if not all(labels.get(each) for each in _OWNER_LABELS):
        return None
    return Owner(
        cluster_uid=labels[CLUSTER_LABEL], service_uid=labels[SERVICE_LABEL], account=labels[ACCOUNT_LABEL]
    )


def _build_labels(owner: Owner) -> dict[str, str]:
    return {
        SERVICE_LABEL: owner.service_uid,
        CLUSTER_LABEL: owner.cluster_uid,
        ACCOUNT_LABEL: owner.account,
    }


def build_creation(desired: DesiredBalancer, targets: tuple[Target, ...], owner: Owner) -> Document:
    """Return the body that creates the balancer, with the targets that it may have from the start.

    A chosen private address needs an action of its own. Without a network, the public interface has to stay,
    and there are no targets until it is disabled.
    """
    values = desired.annotations
    joins_network = (
        desired.network is not None and not values.private_ipv4 and not values.private_subnet_ip_range
    )
    may_have_targets = joins_network if values.use_private_ip else not values.disable_public_network
    place = {"location": values.location} if values.location else {"network_zone": values.network_zone}
    return {
        "name": values.name or desired.default_name,
        "load_balancer_type": values.type or _DEFAULT_TYPE,
        "algorithm": {"type": values.algorithm_type},
        "labels": _build_labels(owner),
        "public_interface": not (values.disable_public_network and joins_network),
        "services": desired.services,
        "targets": _build_targets(desired, targets)[:_TARGETS_AT_CREATION] if may_have_targets else (),
        **place,
        **({"network": desired.network} if joins_network else {}),
    }


def build_ingress(desired: DesiredBalancer, balancer: Balancer) -> tuple[Ingress, ...] | None:
    """Return the hostname, or the public and the private addresses; None leaves the status unchanged.

    Addresses that go with the next changes are left out.
    """
    observed, values = _details_of(balancer), desired.annotations
    if "status" in desired.frozen:
        return None
    if values.hostname:
        return (Ingress(hostname=values.hostname),)
    addresses: list[str | None] = []
    if observed.public_net.enabled and not values.disable_public_network:
        addresses.append(observed.public_net.ipv4.ip)
        addresses += [] if values.ipv6_disabled else [observed.public_net.ipv6.ip]
    if not values.disable_private_ingress:
        is_any = not isinstance(desired.network, int)  # a balancer is in one network at most
        addresses += [each.ip for each in observed.private_net if is_any or desired.network == each.network]
    return tuple(Ingress(ip=ip, is_proxy=values.uses_proxyprotocol) for ip in addresses if ip)


def plan_changes(
    desired: DesiredBalancer, targets: tuple[Target, ...], balancer: Balancer
) -> tuple[Change, ...]:
    """Return the possible changes, and at last an impossible one, for the API to explain it."""
    observed = _details_of(balancer)
    possible: list[Change] = []
    impossible: list[Change] = []
    planners = (
        _plan_removals(desired, targets, observed),
        _plan_isolation(desired, observed),
        _plan_additions(desired, targets, observed),
        _plan_settings(desired, observed),
        _plan_services(desired, observed),
    )
    for is_possible, change in itertools.chain.from_iterable(planners):
        (possible if is_possible else impossible).append(change)
    return (*possible, *impossible[:1])


def plan_release(balancer: Balancer) -> tuple[Change, ...]:
    """Return the changes that remove servers, addresses, ports, and at last the labels."""
    observed = _details_of(balancer)
    changes = [_remove(target) for target in observed.targets if target.label_selector is None]
    changes += [_change("delete_service", listen_port=each.listen_port) for each in observed.services]
    labels = {name: text for name, text in observed.labels.items() if name not in _OUR_LABELS}
    if labels != observed.labels:
        changes.append(_change("update", labels=labels))
    return tuple(changes)


def find_added_target(change: Change) -> Target | None:
    """Return the target that the change adds; None if it adds none."""
    if change.action != "add_target":
        return None
    return _read_target(msgspec.json.decode(change.body, type=LoadBalancerTarget))


def plan_adoption(
    desired: DesiredBalancer, targets: tuple[Target, ...], balancer: Balancer, owner: Owner
) -> Change | InvalidField:
    """Return the change of labels, or why the Service cannot use the load balancer."""
    observed = _details_of(balancer)
    labels = _build_labels(owner)
    if balancer.native_uid:
        wanted = {target.address for target in targets}
        field = f"load balancer {balancer.id}"
        # The first change after this one would end the traffic of such targets.
        addresses = [each.ip.ip for each in observed.targets if each.ip and each.ip.ip not in wanted]
        if addresses:  # of dedicated servers
            reason = f"it has other targets: set {ROBOT_ENABLED}, or remove {', '.join(addresses)}"
            return InvalidField(field=field, reason=reason)
        selectors = [each.label_selector.selector for each in observed.targets if each.label_selector]
        if selectors:
            reason = f"it has targets by label, which are not kept: remove {', '.join(selectors)}"
            return InvalidField(field=field, reason=reason)
        return _replace_labels(observed, labels)
    ports = {each.listen_port for each in observed.services} - {each.listen_port for each in desired.services}
    if ports or any(True for _ in _plan_removals(desired, targets, observed)):
        reason = "it has other ports or targets, and at Hetzner all ports share all targets: remove them"
        return InvalidField(field=f"load balancer {balancer.id}", reason=reason)
    return _replace_labels(observed, labels | {PREPARED_LABEL: "true"})


def plan_hand_back(balancer: Balancer, service_uid: str) -> Change:
    """Return the change of labels; a prepared load balancer is still one if it comes back."""
    return _replace_labels(_details_of(balancer), {NATIVE_LABEL: service_uid})


def _replace_labels(observed: LoadBalancer, labels: dict[str, str]) -> Change:
    replaced = _OWNER_LABELS | {NATIVE_LABEL}
    kept = {name: text for name, text in observed.labels.items() if name not in replaced}
    return _change("update", labels=kept | labels)


def _details_of(balancer: Balancer) -> LoadBalancer:
    assert isinstance(balancer.details, LoadBalancer)
    return balancer.details


def _change(action: str, **fields: object) -> Change:
    return Change(action, msgspec.json.encode(fields, order="deterministic"))


# ---- each planner yields changes, and whether the API accepts them now

_Steps = Iterator[tuple[bool, Change]]


def _plan_removals(desired: DesiredBalancer, targets: tuple[Target, ...], observed: LoadBalancer) -> _Steps:
    wanted = {_key(target) for target in _build_targets(desired, targets)}
    yield from ((True, _remove(target)) for target in observed.targets if _key(target) not in wanted)


def _plan_isolation(desired: DesiredBalancer, observed: LoadBalancer) -> _Steps:
    """The public interface goes as soon as no target needs it, and before new targets come."""
    if not desired.annotations.disable_public_network or "public_interface" in desired.frozen:
        return
    if observed.public_net.enabled:
        is_unused = all(target.use_private_ip for target in observed.targets if target.type != "ip")
        yield is_unused and bool(observed.private_net), _change("disable_public_interface")


def _plan_additions(desired: DesiredBalancer, targets: tuple[Target, ...], observed: LoadBalancer) -> _Steps:
    if "new_targets" in desired.frozen:
        return
    wanted = {_key(target): target for target in _build_targets(desired, targets)}
    present = {_key(target): target for target in observed.targets}
    added = [target for key, target in wanted.items() if key not in present]
    room = observed.load_balancer_type.max_targets - len(observed.targets)
    for position, target in enumerate(added):
        is_possible = position < room and _is_reachable(target, desired, observed)
        yield is_possible, _change("add_target", **_body(target))
    # A target changes its network by leaving and coming back, one after the other, so that traffic goes on.
    differing = [target for key, target in wanted.items() if present.get(key, target) != target]
    if differing and not added:
        target = differing[0]
        is_reachable = _is_reachable(target, desired, observed)
        yield is_reachable, _remove(target) if is_reachable else _change("add_target", **_body(target))


def _plan_settings(desired: DesiredBalancer, observed: LoadBalancer) -> _Steps:
    values, public = desired.annotations, observed.public_net
    if desired.network is not None and "network" not in desired.frozen:
        yield from _plan_network(desired, observed)
    differences: list[tuple[Part, bool, Change]] = [
        (
            "public_interface",
            values.disable_public_network is False and not public.enabled,
            _change("enable_public_interface"),
        ),
        (
            "type",
            values.type not in {None, observed.load_balancer_type.name},
            _change("change_type", load_balancer_type=values.type),
        ),
        (
            "algorithm",
            values.algorithm_type != observed.algorithm.type,
            _change("change_algorithm", type=values.algorithm_type),
        ),
        ("name", values.name not in {None, observed.name}, _change("update", name=values.name)),
    ]
    for wanted, address in ((values.ipv4_rdns, public.ipv4), (values.ipv6_rdns, public.ipv6)):
        differs = address.ip is not None and wanted not in {None, address.dns_ptr}
        differences.append(("reverse_dns", differs, _change("change_dns_ptr", ip=address.ip, dns_ptr=wanted)))
    for part, differs, change in differences:
        if differs and part not in desired.frozen:
            yield True, change


def _plan_network(desired: DesiredBalancer, observed: LoadBalancer) -> _Steps:
    values = desired.annotations
    right = [
        each
        for each in observed.private_net
        if each.network == desired.network and values.private_ipv4 in {None, each.ip}
    ]
    wrong = [each for each in observed.private_net if each not in right]
    yield from ((True, _change("detach_from_network", network=each.network)) for each in wrong)
    if not right:
        place = {"ip": values.private_ipv4, "ip_range": values.private_subnet_ip_range}
        given = {name: text for name, text in place.items() if text}
        yield not wrong, _change("attach_to_network", network=desired.network, **given)


def _plan_services(desired: DesiredBalancer, observed: LoadBalancer) -> _Steps:
    wanted = {service.listen_port: service for service in desired.services}
    present = {service.listen_port: service for service in observed.services}
    if "ports" not in desired.frozen:
        for port in sorted(present.keys() - wanted.keys()):
            yield True, _change("delete_service", listen_port=port)
    if desired.certificate_names or "services" in desired.frozen:
        return
    for port, service in wanted.items():
        if port in present and not _is_same(service, present[port]):
            yield True, Change("update_service", msgspec.json.encode(service, order="deterministic"))
    room = observed.load_balancer_type.max_services - len(present)
    for service in [service for port, service in wanted.items() if port not in present]:
        if desired.may_open_ports:
            yield room > 0, Change("add_service", msgspec.json.encode(service, order="deterministic"))


# ---- targets and services as documents


def _build_targets(desired: DesiredBalancer, targets: tuple[Target, ...]) -> tuple[LoadBalancerTarget, ...]:
    return tuple(
        LoadBalancerTarget(
            type="server",
            server=Resource(int(target.instance_id)),
            use_private_ip=desired.annotations.use_private_ip,
        )
        if target.instance_id
        else LoadBalancerTarget(type="ip", ip=TargetIp(target.address))
        for target in sorted(targets)
    )


def _read_target(target: LoadBalancerTarget) -> Target | None:
    if target.server is not None:
        return Target(instance_id=str(target.server.id))
    return None if target.ip is None else Target(address=target.ip.ip)


def _key(target: LoadBalancerTarget) -> LoadBalancerTarget:
    return msgspec.structs.replace(target, use_private_ip=False)


def _body(target: LoadBalancerTarget) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(target)
    return body


def _remove(target: LoadBalancerTarget) -> Change:
    return _change("remove_target", **_body(_key(target)))


def _is_reachable(target: LoadBalancerTarget, desired: DesiredBalancer, observed: LoadBalancer) -> bool:
    if not target.use_private_ip:
        return observed.public_net.enabled or target.type == "ip"
    return desired.network in {each.network for each in observed.private_net}


def _is_same(service: Service, present: Service) -> bool:
    """Compare what the service needs: an observed one also has options of other protocols."""
    http, check = None, present.health_check
    if service.http is not None and present.http is not None:
        http = ServiceHttp(
            **{
                field: getattr(present.http, field)
                for field in ServiceHttp.__struct_fields__
                if getattr(service.http, field) is not None
            }
        )
        http = msgspec.structs.replace(http, certificates=tuple(sorted(http.certificates or ())))
    if check is not None and check.http is not None:
        is_used = check.protocol == "http"
        answers = msgspec.structs.replace(
            check.http,
            response=check.http.response or "",
            domain=check.http.domain or None,
            status_codes=tuple(sorted(check.http.status_codes)),
        )
        check = msgspec.structs.replace(check, http=answers if is_used else None)
    return service == msgspec.structs.replace(present, http=http, health_check=check)
