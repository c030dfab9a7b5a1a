"""Plans single requests to Octavia and Neutron: how a load balancer differs from the desired one."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from libs.clouds.balancers import Balancer, Ingress, InvalidField, Owner, Target
from libs.clouds.openstack.balancers.desired import DesiredBalancer, DesiredListener, DesiredPool
from libs.clouds.openstack.balancers.documents import (
    FloatingIp,
    HealthMonitor,
    Listener,
    Member,
    ObservedBalancer,
    ObservedPool,
)
from libs.clouds.openstack.balancers.ownership import (
    PREPARED_TAG,
    build_description,
    build_port_tag,
    build_tags,
    has_foreign_tags,
    read_description,
    read_tags,
    remove_tags,
)
from libs.clouds.openstack.responses import Service

REMNANT_PREFIX: Final = "floatingip/"  # the id of what is left of a balancer
_BALANCERS: Final = "/lbaas/loadbalancers"
_LISTENERS: Final = "/lbaas/listeners"
_POOLS: Final = "/lbaas/pools"
_MONITORS: Final = "/lbaas/healthmonitors"
_ADDRESSES: Final = "/floatingips"
_EVERYWHERE: Final = ["0.0.0.0/0"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One request that changes a balancer, a part of it, or its floating address."""

    service: Service
    method: str
    path: str
    body: bytes = b""  # JSON, "" for a DELETE
    revision: int | None = None  # that the object of Neutron must still have

    def __str__(self) -> str:
        return " ".join(filter(None, [self.method, self.path, self.body.decode()]))


def build_balancer(observed: ObservedBalancer) -> Balancer:
    """Return the balancer."""
    balancer = observed.balancer
    members = (member for each in observed.pools for member in each.members)
    is_busy = balancer.provisioning_status.startswith("PENDING")
    return Balancer(
        id=balancer.id,
        name=balancer.name,
        created_at=_as_utc(balancer.created_at),
        owner=read_tags(balancer.tags),
        has_foreign_tags=has_foreign_tags(balancer.tags),
        is_busy=is_busy,
        busy_since=_as_utc(balancer.updated_at or balancer.created_at) if is_busy else None,
        is_building=balancer.provisioning_status == "PENDING_CREATE",
        has_failed=_has_failed(observed),
        warnings=tuple(_explain_moved(each) for each in _list_owned(observed) if _is_moved(each, observed)),
        is_protected=PREPARED_TAG in balancer.tags,
        kept_objects=_name_addresses(list_own_addresses(observed), is_reserved=True),
        created_addresses=_name_addresses(list_own_addresses(observed), is_reserved=False),
        targets=tuple(sorted({Target(address=each.address) for each in members})),
        details=observed,
    )


def build_remnant(address: FloatingIp, owner: Owner) -> Balancer:
    """Return what is left of a balancer that another client deleted."""
    return Balancer(
        id=f"{REMNANT_PREFIX}{address.id}",
        name=address.floating_ip_address,
        created_at=_as_utc(address.created_at),
        owner=owner,
        has_foreign_tags=False,
        is_busy=False,
        is_protected=False,
        targets=(),
        details=address,
        kept_objects=_name_addresses([address], is_reserved=True),
        created_addresses=_name_addresses([address], is_reserved=False),
        is_remnant=True,
    )


def _name_addresses(addresses: Iterable[FloatingIp], *, is_reserved: bool) -> tuple[str, ...]:
    found = (each for each in addresses if _is_reserved(each) is is_reserved)
    return tuple(f"floating address {each.floating_ip_address}" for each in found)


def _as_utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def build_creation(
    desired: DesiredBalancer, targets: tuple[Target, ...], owner: Owner
) -> Mapping[str, object]:
    """Return the body that creates the balancer with all its parts."""
    values = desired.annotations
    place = {
        "vip_port_id": values.port_id,
        "vip_subnet_id": "" if values.port_id else values.subnet_id,
        "vip_network_id": "" if values.port_id or values.subnet_id else values.network_id,
        "vip_address": desired.internal_address,
        "provider": values.lb_provider,
        "flavor_id": values.flavor_id,
        "availability_zone": values.availability_zone,
    }
    return {
        "name": desired.default_name,
        "tags": build_tags(owner),
        **{name: text for name, text in place.items() if text},
        "listeners": []
        if values.provider_requires_serial_api_calls
        else [
            _build_listener(each, owner) | {"default_pool": _build_whole_pool(each, targets, owner)}
            for each in desired.listeners
        ],
    }


def build_ingress(desired: DesiredBalancer, balancer: Balancer) -> tuple[Ingress, ...] | None:
    """Return the hostname or the address: of an internal balancer its own, else the floating one.

    There is none while Octavia builds the balancer for the first time, which takes minutes.
    """
    observed, values = balancer.details, desired.annotations
    if "status" in desired.frozen or not isinstance(observed, ObservedBalancer):
        return None
    if observed.balancer.provisioning_status == "PENDING_CREATE":
        return ()
    if values.hostname:
        return (Ingress(hostname=values.hostname),)
    address = observed.balancer.vip_address
    if not values.internal:
        address = next((each.floating_ip_address for each in list_own_addresses(observed)), None)
    return (Ingress(ip=address, is_proxy=bool(values.proxy_protocol)),) if address else ()


def plan_changes(
    desired: DesiredBalancer, targets: tuple[Target, ...], balancer: Balancer
) -> tuple[Change, ...]:
    """Return the changes that are possible now, in their order."""
    observed = balancer.details
    if not isinstance(observed, ObservedBalancer) or balancer.owner is None:
        return ()
    owner = balancer.owner
    if balancer.has_failed:  # Octavia rejects every change of its own objects
        return tuple(_plan_address(desired, observed, owner))
    return (
        *_plan_restrictions(desired, targets, observed),
        *_plan_pools(desired, targets, observed, owner),
        *_plan_listeners(desired, targets, observed, owner),
        *_plan_unused_pools(desired, observed),
        *_plan_address(desired, observed, owner),
    )


def _is_moved(address: FloatingIp, observed: ObservedBalancer) -> bool:
    """Whether another client has put the floating address at another port: what is there may need it."""
    return address.port_id not in {None, observed.balancer.vip_port_id}


def _explain_moved(address: FloatingIp) -> str:
    return (
        f"floating address {address.floating_ip_address} is at port {address.port_id}, where another client "
        "has put it, and stays there: detach it to get it back, or empty its description to get another one"
    )


def _has_failed(observed: ObservedBalancer) -> bool:
    return observed.balancer.provisioning_status == "ERROR"


def plan_release(balancer: Balancer, *, keeps_address: bool) -> tuple[Change, ...]:
    """Return the changes that remove our ports, pools and addresses, and at last the tags."""
    observed = balancer.details
    if not isinstance(observed, ObservedBalancer):
        return ()
    changes = [_delete(f"{_LISTENERS}/{each.id}") for each in observed.listeners]
    if not changes:
        changes += [_delete(f"{_POOLS}/{each.pool.id}") for each in observed.pools]
    port = observed.balancer.vip_port_id
    changes += [
        release_address(each, port, keeps_address=keeps_address) for each in list_own_addresses(observed)
    ]
    tags = remove_tags(observed.balancer.tags)
    if tags != observed.balancer.tags:
        changes.append(_put(f"{_BALANCERS}/{balancer.id}", loadbalancer={"tags": tags}))
    return tuple(changes)


def plan_adoption(balancer: Balancer, owner: Owner) -> Change | InvalidField:
    """Return the change of tags, or why the Service cannot use the load balancer."""
    observed = balancer.details
    field = f"load balancer {balancer.id}"
    if not isinstance(observed, ObservedBalancer):
        return InvalidField(field=field, reason="it is none")
    if observed.balancer.listeners:
        return InvalidField(field=field, reason="it has listeners, which may be another's: remove them")
    tags = (*remove_tags(observed.balancer.tags), *build_tags(owner), PREPARED_TAG)
    return _put(f"{_BALANCERS}/{balancer.id}", loadbalancer={"tags": tags})


def release_address(address: FloatingIp, port: str | None, *, keeps_address: bool) -> Change:
    """Return the change that deletes a floating address of ours, or removes it from its port and its tags.

    One that is at another port than that of the balancer only loses its tags.
    """
    known = read_description(address.description)
    assert known is not None
    fields: dict[str, str | None] = {"description": known.text}
    if address.port_id in {None, port}:
        if not keeps_address and not known.is_reserved:
            delete = _delete(f"{_ADDRESSES}/{address.id}", service="network")
            return msgspec.structs.replace(delete, revision=address.revision_number)
        fields["port_id"] = None
    return _put_address(address, fields)


def _put_address(address: FloatingIp, fields: Mapping[str, object]) -> Change:
    """Return the change of an address as it was read: a user may bind or move it meanwhile."""
    change = _put(f"{_ADDRESSES}/{address.id}", service="network", floatingip=fields)
    return msgspec.structs.replace(change, revision=address.revision_number)


# ---- the parts


def _plan_restrictions(
    desired: DesiredBalancer, targets: tuple[Target, ...], observed: ObservedBalancer
) -> Iterator[Change]:
    """Ports that are not desired close first, and whom the others do not allow is kept out.

    A port that changes between TCP and HTTP stays open until its next pool can serve.
    """
    wanted = {_get_place(each.protocol, each.port): each for each in desired.listeners}
    found = [(each, wanted.get(_get_place(each.protocol, each.protocol_port))) for each in observed.listeners]
    for listener, successor in found:
        if successor is None:
            may_close = "ports" not in desired.frozen
        else:
            is_replaced = successor.key != _key(listener) and desired.may_open_ports
            pool = _find_pool(desired, successor, observed)
            may_close = is_replaced and _may_serve(successor.pool, pool, targets)
        if may_close:
            yield _delete(f"{_LISTENERS}/{listener.id}")
    for listener, successor in found:
        if successor is not None and "allowed_cidrs" in (fields := _compare(successor, listener, desired)):
            changed = {"allowed_cidrs": fields["allowed_cidrs"]}
            yield _put(f"{_LISTENERS}/{listener.id}", listener=changed)


def _get_place(protocol: str, port: int) -> tuple[str, int]:
    """Return what one listener has at most."""
    return ("TCP" if protocol == "HTTP" else protocol, port)


def _plan_pools(
    desired: DesiredBalancer, targets: tuple[Target, ...], observed: ObservedBalancer, owner: Owner
) -> Iterator[Change]:
    present = {_key(each): each for each in observed.listeners}
    for listener in desired.listeners:
        pool = _find_pool(desired, listener, observed)
        if pool is not None:
            yield from _plan_pool(desired, listener.pool, targets, pool, owner)
        elif (listener.key in present or desired.may_open_ports) and "pools" not in desired.frozen:
            body = _build_pool(listener, owner) | {"loadbalancer_id": observed.balancer.id}
            yield _post(_POOLS, pool=body)
    desired_pools = [_find_pool(desired, each, observed) for each in desired.listeners]
    used = {each.default_pool_id for each in observed.listeners}
    for each in observed.pools:
        if each.pool.id in used and each not in desired_pools:
            yield from _plan_kept_members(targets, each, owner)


def _plan_kept_members(targets: tuple[Target, ...], observed: ObservedPool, owner: Owner) -> Iterator[Change]:
    """Let the members of a port that stays open, though nothing describes it now, follow the Nodes."""
    former = {each.address: each for each in observed.members}
    if observed.members and former.keys() != {each.address for each in targets}:
        replace = msgspec.structs.replace
        other = replace(observed.members[0], weight=1)  # all have its ports
        kept = [former.get(each.address) or replace(other, address=each.address) for each in targets]
        members = [_read_member(each) | {"tags": build_tags(owner)} for each in kept]
        yield _put(f"{_POOLS}/{observed.pool.id}/members", members=members)


def _plan_pool(
    desired: DesiredBalancer,
    wanted: DesiredPool,
    targets: tuple[Target, ...],
    observed: ObservedPool,
    owner: Owner,
) -> Iterator[Change]:
    path = f"{_POOLS}/{observed.pool.id}"
    of_monitor = () if "monitors" in desired.frozen else tuple(_plan_monitor(wanted, observed, owner))
    # A monitor that asks at the former port of the members would find none of them alive.
    yield from (each for each in of_monitor if each.method == "DELETE")
    addresses = [each.address for each in targets]
    present = [_read_member(each) for each in observed.members]
    subnets = _find_member_subnets(desired, wanted, addresses, observed)
    members = [
        _build_member(wanted, address, subnets[address], owner) for address in addresses if address in subnets
    ]
    if sorted(map(_member_key, members)) != sorted(map(_member_key, present)):
        yield _put(f"{path}/members", members=members)
    yield from (each for each in of_monitor if each.method != "DELETE")
    if wanted.lb_algorithm != observed.pool.lb_algorithm and "lb_algorithm" not in desired.frozen:
        yield _put(path, pool={"lb_algorithm": wanted.lb_algorithm})
    persistence = observed.pool.session_persistence
    if wanted.session_persistence != (persistence.type if persistence is not None else ""):
        yield _put(path, pool=_build_persistence(wanted))


def _find_member_subnets(
    desired: DesiredBalancer, wanted: DesiredPool, addresses: Iterable[str], observed: ObservedPool
) -> Mapping[str, str]:
    """Return the subnet of each member by its address, "" for that of the load balancer.

    While the field is invalid, members keep theirs, and new ones get the only one that is there.
    """
    if "member_subnet" not in desired.frozen:
        return dict.fromkeys(addresses, wanted.member_subnet)
    former = {each.address: each.subnet_id or "" for each in observed.members}
    subnets = set(former.values())
    return dict.fromkeys(addresses, *subnets) if len(subnets) == 1 else former


def _plan_monitor(wanted: DesiredPool, observed: ObservedPool, owner: Owner) -> Iterator[Change]:
    monitor, present = wanted.monitor, observed.monitor
    if monitor is None or present is None:
        if present is not None:
            yield _delete(f"{_MONITORS}/{present.id}")
        if monitor is not None:
            fields = msgspec.to_builtins(monitor) | {"pool_id": observed.pool.id, "tags": build_tags(owner)}
            yield _post(_MONITORS, healthmonitor=fields)
        return
    fields = _compare_monitor(monitor, present)
    if "type" in fields:  # which cannot change
        yield _delete(f"{_MONITORS}/{present.id}")
    elif fields:
        yield _put(f"{_MONITORS}/{present.id}", healthmonitor=fields)


def _compare_monitor(wanted: msgspec.Struct, present: HealthMonitor) -> dict[str, Any]:
    fields = msgspec.structs.asdict(wanted)
    return {
        name: value for name, value in fields.items() if value is not None and value != getattr(present, name)
    }


def _plan_listeners(
    desired: DesiredBalancer, targets: tuple[Target, ...], observed: ObservedBalancer, owner: Owner
) -> Iterator[Change]:
    present = {_key(each): each for each in observed.listeners}
    taken = {_get_place(each.protocol, each.protocol_port) for each in observed.listeners}
    for listener in desired.listeners:
        pool = _find_pool(desired, listener, observed)
        found = present.get(listener.key)
        if found is not None:
            fields = _compare(listener, found, desired)
            fields.pop("allowed_cidrs", None)
            may_move = found.default_pool_id is None or _may_serve(listener.pool, pool, targets)
            if pool is not None and pool.pool.id != found.default_pool_id and may_move:
                fields["default_pool_id"] = pool.pool.id
            if fields:
                yield _put(f"{_LISTENERS}/{found.id}", listener=fields)
        elif _get_place(listener.protocol, listener.port) in taken or not desired.may_open_ports:
            continue
        elif pool is not None and _is_ready(listener.pool, pool):
            body = _build_listener(listener, owner)
            body |= {"loadbalancer_id": observed.balancer.id, "default_pool_id": pool.pool.id}
            yield _post(_LISTENERS, listener=body)


def _may_serve(wanted: DesiredPool, observed: ObservedPool | None, targets: tuple[Target, ...]) -> bool:
    """Whether the traffic of an open port may move to the pool: Octavia may have rejected its members."""
    return observed is not None and _is_ready(wanted, observed) and bool(observed.members or not targets)


def _is_ready(wanted: DesiredPool, observed: ObservedPool) -> bool:
    """Whether a port may open: traffic must not reach Nodes without pods before the monitor is there."""
    return wanted.monitor is None or observed.monitor is not None


def _plan_unused_pools(desired: DesiredBalancer, observed: ObservedBalancer) -> Iterator[Change]:
    if desired.frozen & {"ports", "listeners", "pools"}:
        return
    used = {each.default_pool_id for each in observed.listeners}
    found = (_find_pool(desired, each, observed) for each in desired.listeners)
    used |= {each.pool.id for each in found if each is not None}
    yield from (_delete(f"{_POOLS}/{each.pool.id}") for each in observed.pools if each.pool.id not in used)


def _plan_address(desired: DesiredBalancer, observed: ObservedBalancer, owner: Owner) -> Iterator[Change]:
    """Return the changes of floating addresses: what goes first, since a port has one of a network."""
    if "floating_ip" in desired.frozen or observed.balancer.vip_port_id is None:
        return
    values, port = desired.annotations, observed.balancer.vip_port_id
    owned = sorted(_list_owned(observed), key=lambda each: (each.port_id != port, each.created_at, each.id))
    kept: str | None = None
    if desired.reserved_address:
        kept = desired.reserved_id
    elif not values.internal:
        created = (each for each in owned if not _is_reserved(each))
        kept = next((each.id for each in created), None)
    if not {"keep_floatingip"} & desired.frozen:
        leaving = [each for each in owned if each.id != kept]
        yield from (release_address(each, port, keeps_address=values.keep_floatingip) for each in leaving)
    if values.internal or _has_failed(observed):
        return  # an address at a balancer that has failed would cost money without a use
    if kept is None:
        fields = {
            "floating_network_id": values.floating_network_id,
            "port_id": port,
            "description": build_description(owner),
        }
        subnet = {"subnet_id": values.floating_subnet_id} if values.floating_subnet_id else {}
        yield _post(_ADDRESSES, service="network", floatingip=fields | subnet)
        return
    address = next((each for each in observed.floating_ips if each.id == kept), None)
    if address is not None:
        yield from _plan_binding(address, observed, owner, is_reserved=bool(desired.reserved_address))


def _plan_binding(
    address: FloatingIp, observed: ObservedBalancer, owner: Owner, *, is_reserved: bool
) -> Iterator[Change]:
    """Return the change that binds an address that exists, unless it has become another's meanwhile.

    One of ours that the Service names from then on is reserved: it stays at the end.
    """
    known, port = read_description(address.description), observed.balancer.vip_port_id
    if _is_moved(address, observed) or (known is not None and known.owner != owner):
        return  # the next reading of the Service, or of the balancer, reports it
    fields = {"port_id": port}
    is_claimed = known is not None and (known.is_reserved or not is_reserved)
    if not is_claimed:
        text = address.description if known is None else known.text
        fields["description"] = build_description(owner, text=text, is_reserved=True)
    if not is_claimed or address.port_id != port:
        yield _put_address(address, fields)


# ---- what is there


def list_own_addresses(observed: ObservedBalancer) -> Iterator[FloatingIp]:
    """Yield the floating addresses of the owner that are at the balancer's port."""
    port = observed.balancer.vip_port_id
    return (each for each in _list_owned(observed) if each.port_id == port is not None)


def _list_owned(observed: ObservedBalancer) -> Iterator[FloatingIp]:
    owner = read_tags(observed.balancer.tags)
    for each in observed.floating_ips:
        known = read_description(each.description)
        if known is not None and known.owner == owner:
            yield each


def _is_reserved(address: FloatingIp) -> bool:
    known = read_description(address.description)
    return known is not None and known.is_reserved


def _key(listener: Listener) -> str:
    return f"{listener.protocol}-{listener.protocol_port}"


def _find_pool(
    desired: DesiredBalancer, listener: DesiredListener, observed: ObservedBalancer
) -> ObservedPool | None:
    """Return the pool that a port has or gets. A pool of another protocol is replaced by a new one."""
    current = next((each.default_pool_id for each in observed.listeners if _key(each) == listener.key), None)
    if "pools" in desired.frozen:
        return next((each for each in observed.pools if each.pool.id == current), None)
    tag = build_port_tag(listener.key)
    fitting = [
        each
        for each in observed.pools
        if tag in each.pool.tags and each.pool.protocol == listener.pool.protocol
    ]
    return min(fitting, key=lambda each: (each.pool.id != current, each.pool.id), default=None)


def _compare(wanted: DesiredListener, present: Listener, desired: DesiredBalancer) -> dict[str, Any]:
    """Return the fields of a listener that differ, with their desired values."""
    fields = _build_settings(wanted)
    now: dict[str, Any] = {
        "allowed_cidrs": sorted(present.allowed_cidrs or ()) or _EVERYWHERE,
        "insert_headers": present.insert_headers,
    }
    return {
        name: value
        for name, value in fields.items()
        if name not in desired.frozen and value != (now[name] if name in now else getattr(present, name))
    }


# ---- documents


def _build_settings(listener: DesiredListener) -> dict[str, Any]:
    settings: dict[str, Any] = dict(listener.settings)
    return settings | {
        "allowed_cidrs": list(settings["allowed_cidrs"]),
        "insert_headers": dict(settings["insert_headers"]),
    }


def _build_listener(listener: DesiredListener, owner: Owner) -> dict[str, Any]:
    settings = _build_settings(listener)
    if settings["allowed_cidrs"] == _EVERYWHERE:
        del settings["allowed_cidrs"]  # the default, and OVN rejects a port with any value
    return settings | {
        "name": listener.key,
        "protocol": listener.protocol,
        "protocol_port": listener.port,
        "tags": build_tags(owner),
    }


def _build_pool(listener: DesiredListener, owner: Owner) -> dict[str, Any]:
    return {
        "name": listener.key,
        "protocol": listener.pool.protocol,
        "lb_algorithm": listener.pool.lb_algorithm,
        **(_build_persistence(listener.pool) if listener.pool.session_persistence else {}),
        "tags": (*build_tags(owner), build_port_tag(listener.key)),
    }


def _build_persistence(pool: DesiredPool) -> dict[str, Any]:
    return {"session_persistence": {"type": pool.session_persistence} if pool.session_persistence else None}


def _build_whole_pool(listener: DesiredListener, targets: Iterable[Target], owner: Owner) -> dict[str, Any]:
    pool, monitor = listener.pool, listener.pool.monitor
    whole = _build_pool(listener, owner)
    whole["members"] = [_build_member(pool, each.address, pool.member_subnet, owner) for each in targets]
    if monitor is not None:
        whole["healthmonitor"] = msgspec.to_builtins(monitor) | {"tags": build_tags(owner)}
    return whole


def _build_member(pool: DesiredPool, address: str, subnet: str, owner: Owner) -> dict[str, Any]:
    return {
        "address": address,
        "protocol_port": pool.member_port,
        "monitor_port": pool.monitor_port,
        "subnet_id": subnet or None,  # always sent: Octavia keeps a subnet that is left out
        "weight": 1,
        "tags": build_tags(owner),
    }


def _read_member(member: Member) -> dict[str, Any]:
    fields = msgspec.structs.asdict(member)
    del fields["id"]
    return fields


def _member_key(member: Mapping[str, Any]) -> tuple[str, int, str, int, int]:
    return (
        member["address"],
        member["protocol_port"],
        member["subnet_id"] or "",
        member["monitor_port"] or 0,
        member["weight"],
    )


def _post(path: str, *, service: Service = "load-balancer", **document: object) -> Change:
    body = msgspec.json.encode(document, order="deterministic")
    return Change(service=service, method="POST", path=path, body=body)


def _put(path: str, *, service: Service = "load-balancer", **document: object) -> Change:
    body = msgspec.json.encode(document, order="deterministic")
    return Change(service=service, method="PUT", path=path, body=body)


def _delete(path: str, *, service: Service = "load-balancer") -> Change:
    return Change(service=service, method="DELETE", path=path)
