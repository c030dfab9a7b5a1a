"""Plans single requests to the API: how a load balancer differs from the desired one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from libs.clouds.balancers import Balancer, Ingress, InvalidField, Owner, Target
from libs.clouds.thalassa.balancers.desired import DesiredBalancer, DesiredListener
from libs.clouds.thalassa.balancers.documents import (
    NATIVE,
    PORT,
    PREPARED,
    Listener,
    LoadBalancer,
    ObservedBalancer,
    TargetGroup,
    build_labels,
    has_foreign_labels,
    read_native_uid,
    read_owner,
    remove_labels,
)

BALANCERS: Final = "/v1/loadbalancers"
GROUPS: Final = "/v1/loadbalancer-target-groups"
REMNANT_PREFIX: Final = "target-group/"  # the id of what is left of a balancer
# A change meets another one. Other states are not known, and must not keep a balancer from its end.
_BUSY: Final = frozenset({"creating", "provisioning", "pending", "updating", "deleting"})

# The field of the API that each part describes.
_LISTENER_PARTS: Final = {
    "sources": "allowedSources",
    "max_connections": "maxConnections",
    "idle_timeout": "connectionIdleTimeout",
}
_GROUP_PARTS: Final = {
    "policy": "loadbalancingPolicy",
    "proxy_protocol": "enableProxyProtocol",
    "health_check": "healthCheck",
}

Document = dict[str, Any]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One request that changes a balancer, a listener, or a target group.

    With a `refusal` nothing is sent: the cloud cannot make the change.
    """

    method: str
    path: str
    body: bytes = b""  # JSON, "" for a DELETE
    target: Target | None = None  # the only one that the change adds
    refusal: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.method, self.path, self.body.decode()]))


def build_balancer(observed: ObservedBalancer) -> Balancer:
    """Return the balancer."""
    balancer = observed.balancer
    attached = {each.target for group in observed.groups for each in group.attachments or ()}
    return Balancer(
        id=balancer.identity,
        name=balancer.name,
        created_at=balancer.created_at,
        owner=read_owner(balancer.labels),
        has_foreign_tags=has_foreign_labels(balancer.labels),
        is_busy=balancer.status in _BUSY,
        is_protected=balancer.delete_protection or PREPARED in (balancer.labels or {}),
        targets=tuple(Target(instance_id=each) for each in sorted(attached)),
        details=observed,
        native_uid=read_native_uid(balancer.labels),
        # The API does not say since when a later change runs.
        busy_since=balancer.created_at if balancer.status == "creating" else None,
        kept_objects=(f"reserved address {balancer.reserved_ip_identity}",)
        if balancer.reserved_ip_identity
        else (),
    )


def build_remnant(group: TargetGroup, owner: Owner) -> Balancer:
    """Return a target group whose balancer does not exist."""
    return Balancer(
        id=f"{REMNANT_PREFIX}{group.identity}",
        name=group.name,
        created_at=group.created_at,
        owner=owner,
        has_foreign_tags=False,
        is_busy=False,
        is_protected=False,
        targets=(),
        details=group,
        is_remnant=True,
    )


def build_creation(desired: DesiredBalancer, owner: Owner) -> Mapping[str, object]:
    """Return the body that creates the balancer; a listener needs a target group, and follows later."""
    values = desired.annotations
    chosen = {"securityGroupAttachments": values.security_groups, "reservedIpId": values.reserved_ip}
    return {
        "name": desired.name,
        "description": "",
        "labels": dict(desired.defaults.labels) | build_labels(owner),
        "subnet": desired.subnet,
        "internalLoadbalancer": values.internal,
        "deleteProtection": False,
        "listeners": (),
        **{name: value for name, value in chosen.items() if value},
    }


def build_ingress(desired: DesiredBalancer, balancer: Balancer) -> tuple[Ingress, ...] | None:
    """Return the addresses, which a balancer has for clients when it is ready and has a port.

    None leaves the status unchanged. The cloud's own controller has ipMode Proxy, too.
    """
    observed = balancer.details
    if not isinstance(observed, ObservedBalancer) or "status" in desired.frozen:
        return None
    if observed.balancer.status != "ready" or not observed.listeners:
        return None
    is_internal = desired.annotations.internal
    addresses = (
        observed.balancer.internal_ip_addresses if is_internal else observed.balancer.external_ip_addresses
    )
    return tuple(Ingress(ip=each, is_proxy=True) for each in addresses or () if each)


def plan_changes(
    desired: DesiredBalancer, targets: tuple[Target, ...], balancer: Balancer
) -> tuple[Change, ...]:
    """Return the changes that are possible now, in their order: ports close first, and open last."""
    observed, owner = balancer.details, balancer.owner
    if not isinstance(observed, ObservedBalancer) or owner is None:
        return ()
    return (
        *_plan_closed_ports(desired, observed),
        *_plan_listeners(desired, observed, owner),
        *_plan_settings(desired, observed),
        *_plan_groups(desired, observed, owner),
        *_plan_targets(desired, targets, observed),
        *_plan_moves(desired, targets, observed, owner),
        *_plan_new_listeners(desired, observed, owner),
        *_plan_unused_groups(desired, observed),
        *_plan_kind(desired, observed),
    )


def plan_release(balancer: Balancer) -> tuple[Change, ...]:
    """Return the changes that remove our ports, and at last the labels.

    The target groups may be those of another balancer of the Service. Without one, they become remnants.
    """
    observed = balancer.details
    if not isinstance(observed, ObservedBalancer):
        return ()
    changes = [_delete(_get_path(observed, each)) for each in observed.listeners]
    labels = remove_labels(observed.balancer.labels)
    if labels != (observed.balancer.labels or {}):
        changes.append(_update(observed.balancer, labels=labels))
    return tuple(changes)


def plan_adoption(balancer: Balancer, owner: Owner) -> Change | InvalidField:
    """Return the change of labels, or why the Service cannot use the load balancer."""
    observed = balancer.details
    field = f"load balancer {balancer.id}"
    if not isinstance(observed, ObservedBalancer):
        return InvalidField(field=field, reason="it is none")
    labels = remove_labels(observed.balancer.labels, NATIVE) | build_labels(owner)
    if balancer.native_uid != owner.service_uid:
        if observed.listeners:
            return InvalidField(field=field, reason="it has listeners, which may be another's: remove them")
        labels[PREPARED] = "true"
    return _update(observed.balancer, labels=labels)


# ---- listeners


def _plan_closed_ports(desired: DesiredBalancer, observed: ObservedBalancer) -> Iterator[Change]:
    wanted = {each.port for each in desired.listeners}
    if "ports" not in desired.frozen:
        for listener in observed.listeners:
            if listener.port not in wanted:
                yield _delete(_get_path(observed, listener))


def _plan_listeners(desired: DesiredBalancer, observed: ObservedBalancer, owner: Owner) -> Iterator[Change]:
    """Change the settings of ports that exist, above all their ACLs: each keeps its target group for now."""
    present = _map_changeable(desired, observed)
    for wanted in desired.listeners:
        if (listener := present.get(wanted.port)) is not None:
            now = _read_listener(listener)
            kept = {name: now[name] for name in ("protocol", "targetGroup")}
            document = _build_listener(wanted, now["targetGroup"], owner) | kept
            document |= _keep(now, _LISTENER_PARTS, desired)
            if _differs(document, now):
                yield _send("PUT", _get_path(observed, listener), document)


def _plan_moves(
    desired: DesiredBalancer, targets: tuple[Target, ...], observed: ObservedBalancer, owner: Owner
) -> Iterator[Change]:
    """Move a port whose protocol changes, or that is taken over, to its own target group.

    It stays while that has no targets: the cloud may have rejected them.
    """
    present = _map_changeable(desired, observed)
    for wanted in desired.listeners:
        listener, group = present.get(wanted.port), _find_group(wanted, observed)
        if listener is not None and group is not None and _is_ready(wanted, group):
            now = _read_listener(listener)
            if now["targetGroup"] != group.identity and (group.attachments or not targets):
                document = _build_listener(wanted, group.identity, owner)
                document |= _keep(now, _LISTENER_PARTS, desired)
                yield _send("PUT", _get_path(observed, listener), document)


def _map_changeable(desired: DesiredBalancer, observed: ObservedBalancer) -> dict[int, Listener]:
    """Return the listeners by port, without those whose ACL must stay and is not known."""
    keeps_sources = "sources" in desired.frozen
    return {
        each.port: each
        for each in observed.listeners
        if each.allowed_sources is not None or not keeps_sources
    }


def _plan_new_listeners(
    desired: DesiredBalancer, observed: ObservedBalancer, owner: Owner
) -> Iterator[Change]:
    present = {each.port for each in observed.listeners}
    for wanted in desired.listeners:
        group = _find_group(wanted, observed)
        if wanted.port in present or not desired.may_open_ports:
            continue
        if group is not None and _is_ready(wanted, group):
            path = f"{BALANCERS}/{observed.balancer.identity}/listeners"
            yield _send("POST", path, _build_listener(wanted, group.identity, owner))


def _is_ready(wanted: DesiredListener, group: TargetGroup) -> bool:
    """Whether traffic may reach the group: without its check, it would reach Nodes without pods."""
    return group.health_check is not None or wanted.group.health_check is None


def _build_listener(wanted: DesiredListener, group: str, owner: Owner) -> Document:
    return {
        "name": wanted.key,
        "description": "",
        "labels": build_labels(owner),
        "port": wanted.port,
        "protocol": wanted.protocol,
        "targetGroup": group,
        "maxConnections": wanted.max_connections,
        "connectionIdleTimeout": wanted.idle_timeout,
        "allowedSources": list(wanted.sources),  # always sent: what is left out may stay as it is
    }


def _read_listener(listener: Listener) -> Document:
    return {
        "protocol": listener.protocol,
        "targetGroup": listener.target_group.identity if listener.target_group else "",
        "maxConnections": listener.max_connections,
        "connectionIdleTimeout": listener.connection_idle_timeout,
        "allowedSources": list(listener.sources),
    }


# ---- the balancer itself


def _plan_settings(desired: DesiredBalancer, observed: ObservedBalancer) -> Iterator[Change]:
    """Change each setting by itself: one that the cloud rejects prevents no other."""
    values, balancer = desired.annotations, observed.balancer
    groups = sorted(each.identity for each in balancer.security_groups or ())
    if values.security_groups not in (None, tuple(groups)):
        yield _update(balancer, securityGroupAttachments=values.security_groups)
    is_given = values.reserved_ip or PREPARED not in (balancer.labels or {})
    if (
        is_given
        and values.reserved_ip != (balancer.reserved_ip_identity or "")
        and "reserved_ip" not in desired.frozen
    ):
        yield _update(balancer, reservedIpId=values.reserved_ip)
    is_elsewhere = balancer.subnet is not None and balancer.subnet.identity != desired.subnet
    if values.subnet and desired.subnet and is_elsewhere:
        yield _update(balancer, subnet=desired.subnet)


def _plan_kind(desired: DesiredBalancer, observed: ObservedBalancer) -> Iterator[Change]:
    """Report a balancer that is public and should be internal, or the reverse: the API cannot change it."""
    balancer, is_wanted = observed.balancer, desired.annotations.internal
    is_internal = bool(balancer.internal_ip_addresses) and not balancer.external_ip_addresses
    if balancer.status == "ready" and is_internal != is_wanted and "internal" not in desired.frozen:
        kind = "internal" if is_internal else "public"
        reason = (
            f"the load balancer stays {kind}: this is chosen at its creation, so create the Service again"
        )
        yield Change(method="PUT", path=f"{BALANCERS}/{balancer.identity}", refusal=reason)


def _update(balancer: LoadBalancer, **fields: object) -> Change:
    document = {
        "name": balancer.name,
        "description": balancer.description,
        "labels": balancer.labels or {},
        "annotations": balancer.annotations or {},
        "deleteProtection": balancer.delete_protection,
    }
    return _send("PUT", f"{BALANCERS}/{balancer.identity}", document | fields)


# ---- target groups


def _plan_groups(desired: DesiredBalancer, observed: ObservedBalancer, owner: Owner) -> Iterator[Change]:
    present = {each.port for each in observed.listeners}
    for wanted in desired.listeners:
        group = _find_group(wanted, observed)
        document = {
            "description": "",
            "targetPort": wanted.group.target_port,
            "protocol": wanted.group.protocol,
            "enableProxyProtocol": wanted.group.proxy_protocol,
            "loadbalancingPolicy": wanted.group.policy,
            "healthCheck": msgspec.to_builtins(wanted.group.health_check),
        }
        if group is not None:
            now = _read_group(group)
            document |= {"name": group.name, "labels": group.labels} | _keep(now, _GROUP_PARTS, desired)
            if _differs(document, now):
                yield _send("PUT", f"{GROUPS}/{group.identity}", document)
        elif desired.may_open_ports or wanted.port in present:
            labels = dict(desired.defaults.labels) | build_labels(owner) | {PORT: wanted.key}
            named = {"name": f"{desired.name}-{wanted.key}", "labels": labels, "vpc": desired.defaults.vpc}
            yield _send("POST", GROUPS, document | named)


def _plan_targets(
    desired: DesiredBalancer, targets: Iterable[Target], observed: ObservedBalancer
) -> Iterator[Change]:
    """Set all targets of a group at once, or one by one: the API may reject all because of one machine.

    A port that stays open, though nothing describes it now, follows the Nodes, too.
    """
    wanted = {each.instance_id: each for each in targets if each.instance_id}
    found = [_find_group(each, observed) for each in desired.listeners]
    ports = {each.port for each in desired.listeners}
    stay = [each for each in observed.listeners if each.port in ports or "ports" in desired.frozen]
    used = {each.target_group.identity for each in stay if each.target_group}
    kept = [each for each in observed.groups if each.identity in used and each not in found]
    for path, group in ((f"{GROUPS}/{each.identity}", each) for each in (*found, *kept) if each is not None):
        present = {each.target: each.identity for each in group.attachments or ()}
        missing, surplus = sorted(wanted.keys() - present.keys()), sorted(present.keys() - wanted.keys())
        if len(missing) + len(surplus) > 1:
            all_of_them = [{"serverIdentity": each} for each in sorted(wanted)]
            yield _send("POST", f"{path}/attachments", {"attachments": all_of_them})
        yield from (_delete(f"{path}/detach/{present[each]}") for each in surplus)
        for each in missing:
            attach = _send("POST", f"{path}/attach", {"serverIdentity": each})
            yield msgspec.structs.replace(attach, target=wanted[each])


def _plan_unused_groups(desired: DesiredBalancer, observed: ObservedBalancer) -> Iterator[Change]:
    found = (_find_group(each, observed) for each in desired.listeners)
    used = {each.identity for each in found if each is not None}
    used |= {each.target_group.identity for each in observed.listeners if each.target_group}
    yield from (_delete(f"{GROUPS}/{each.identity}") for each in observed.groups if each.identity not in used)


def _find_group(wanted: DesiredListener, observed: ObservedBalancer) -> TargetGroup | None:
    """Return the target group for a port and its protocol: the one that is in use, or the first."""
    used = {each.target_group.identity for each in observed.listeners if each.target_group}
    fitting = [each for each in observed.groups if (each.labels or {}).get(PORT) == wanted.key]
    return min(fitting, key=lambda each: (each.identity not in used, each.identity), default=None)


def _read_group(group: TargetGroup) -> Document:
    check = group.health_check
    if check is not None and check.protocol == "tcp":
        check = msgspec.structs.replace(check, path="")
    return {
        "targetPort": group.target_port,
        "protocol": group.protocol,
        "enableProxyProtocol": bool(group.enable_proxy_protocol),
        "loadbalancingPolicy": group.loadbalancing_policy or "ROUND_ROBIN",
        "healthCheck": msgspec.to_builtins(check),
    }


# ---- documents


def _keep(now: Document, parts: Mapping[str, str], desired: DesiredBalancer) -> Document:
    """Return the present values of the parts that plans do not change."""
    return {field: now[field] for part, field in parts.items() if part in desired.frozen}


def _differs(document: Document, now: Document) -> bool:
    return any(document[name] != value for name, value in now.items())


def _get_path(observed: ObservedBalancer, listener: Listener) -> str:
    return f"{BALANCERS}/{observed.balancer.identity}/listeners/{listener.identity}"


def _send(method: str, path: str, document: Document) -> Change:
    return Change(method=method, path=path, body=msgspec.json.encode(document, order="deterministic"))


def _delete(path: str) -> Change:
    return Change(method="DELETE", path=path)
