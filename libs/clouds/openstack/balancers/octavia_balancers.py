"""The load balancers of Octavia in one project and region, with the floating addresses of Neutron."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.clouds.balancers import (
    Balancer,
    BalancerRequest,
    InvalidField,
    Owner,
    ParsedRequest,
    Target,
    UnknownOutcome,
    WriteRejection,
    WriteResult,
    WriteSuccess,
)
from libs.clouds.cloud_writes import explain_failed_write, poll, set_deadline
from libs.clouds.instances import Credential, NotFound, Unanswered
from libs.clouds.openstack.balancers import plan
from libs.clouds.openstack.balancers.desired import DesiredBalancer, read_request, set_reserved_address
from libs.clouds.openstack.balancers.documents import (
    FloatingIp,
    HealthMonitor,
    Listener,
    LoadBalancer,
    Member,
    ObservedBalancer,
    ObservedPool,
    Pool,
)
from libs.clouds.openstack.balancers.ownership import build_cluster_tag, read_description, read_tags
from libs.clouds.openstack.balancers.plan import REMNANT_PREFIX, Change, build_creation
from libs.clouds.openstack.object_reader import ID, get_object, list_objects
from libs.clouds.openstack.object_responses import (
    OpenStackRejection,
    read_accepted,
    read_created,
    read_deletion,
)
from libs.clouds.openstack.openstack_api import OpenStackApi

WRITE_DEADLINE_SECONDS: Final = 30.0
REQUESTS_PER_MINUTE: Final = 480
_FIRST_POLL_SECONDS: Final = 0.2
_MAX_POLL_SECONDS: Final = 3.0
_SERVICE: Final = "load-balancer"
_PATH: Final = "/lbaas/loadbalancers"
_SECTION_PROBLEM: Final = "cloud.conf"


class OctaviaBalancers:
    """Implements Balancers for the project of a credential, which has to be one that may write."""

    has_outliving_parts = False  # a floating address needs the port of its balancer
    plan_changes = staticmethod(plan.plan_changes)
    plan_release = staticmethod(plan.plan_release)
    build_ingress = staticmethod(plan.build_ingress)

    def __init__(
        self,
        api: OpenStackApi,
        options: Mapping[str, str],
        *,
        write_deadline_seconds: float = WRITE_DEADLINE_SECONDS,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        first_poll_seconds: float = _FIRST_POLL_SECONDS,
    ) -> None:
        """`options` are keys of `[LoadBalancer]` that win over those of the credential file."""
        self.write_deadline_seconds = write_deadline_seconds
        self._api = api.open_beside(requests_per_minute=requests_per_minute)
        self._options = options
        self._first_poll_seconds = first_poll_seconds
        self._members: dict[str, tuple[Pool, tuple[Member, ...]]] = {}  # of listed pools, by id

    @property
    def credential(self) -> Credential:
        """The last reading of the credential file."""
        return self._api.session.credential

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    # ---- pure, apart from the settings in the credential file

    def read_request(self, request: BalancerRequest) -> ParsedRequest[DesiredBalancer]:
        """Return the desired balancer without targets."""
        sections = self._api.read_balancer_sections()
        if not isinstance(sections, Unanswered):
            return read_request(request, {**sections, "": {**sections.get("", {}), **self._options}})
        parsed = read_request(request, {"": self._options}, is_complete=False)
        field = InvalidField(field=_SECTION_PROBLEM, reason=sections.reason)
        desired = msgspec.structs.replace(parsed.desired, may_open_ports=False)
        return msgspec.structs.replace(parsed, invalid=(*parsed.invalid, field), desired=desired)

    def plan_adoption(
        self, desired: DesiredBalancer, targets: tuple[Target, ...], balancer: Balancer, owner: Owner
    ) -> Change | InvalidField:
        """Return the change of tags, or why the Service cannot use the balancer."""
        return plan.plan_adoption(balancer, owner)

    def plan_hand_back(self, balancer: Balancer, service_uid: str) -> InvalidField:
        """Return why not: the cloud's own controller finds balancers by their names."""
        reason = "cloud-provider-openstack finds load balancers by name only: it cannot take this one"
        return InvalidField(field=f"load balancer {balancer.id}", reason=reason)

    # ---- reads

    async def resolve_names(
        self, parsed: ParsedRequest[DesiredBalancer]
    ) -> ParsedRequest[DesiredBalancer] | Unanswered:
        """Replace a reserved address by its id."""
        if not parsed.desired.reserved_address:
            return parsed
        addresses = await self._list_addresses()
        return addresses if isinstance(addresses, Unanswered) else set_reserved_address(parsed, addresses)

    async def list_balancers(
        self, cluster_uid: str, *, reads_parts: bool
    ) -> tuple[Balancer, ...] | Unanswered:
        """Return all balancers with the tags of this cluster, and addresses that are left of others."""
        tags = {"tags": build_cluster_tag(cluster_uid)}
        addresses = await self._list_addresses()  # first: an address of a new balancer must not look left
        if isinstance(addresses, Unanswered):
            return addresses
        balancers = await list_objects(self._api, _SERVICE, _PATH, tags, LoadBalancer)
        if isinstance(balancers, Unanswered):
            return balancers
        parts = await self._read_parts(tags, balancers, addresses, tags)
        if isinstance(parts, Unanswered):
            return parts
        listed = {pool.pool.id for each in parts for pool in each.pools}
        self._members = {pool_id: known for pool_id, known in self._members.items() if pool_id in listed}
        owners = {read_tags(each.tags) for each in balancers}
        found = [plan.build_balancer(each) for each in parts]
        for address in addresses:
            known = read_description(address.description)
            if known is not None and known.owner not in owners and known.owner.cluster_uid == cluster_uid:
                found.append(plan.build_remnant(address, known.owner))
        return tuple(each for each in found if each.owner and each.owner.cluster_uid == cluster_uid)

    async def get_balancer(self, balancer_id: str) -> Balancer | NotFound | Unanswered:
        """Return the balancer with exactly this id, or an address that is left of one."""
        if balancer_id.startswith(REMNANT_PREFIX):
            return await self._get_remnant(balancer_id.removeprefix(REMNANT_PREFIX))
        found = await get_object(self._api, _SERVICE, _PATH, balancer_id, LoadBalancer)
        if not isinstance(found, LoadBalancer):
            return found
        addresses = await self._list_addresses()
        if isinstance(addresses, Unanswered):
            return addresses
        # Octavia cannot list monitors by balancer.
        owner = read_tags(found.tags)
        tags = {"tags": build_cluster_tag("" if owner is None else owner.cluster_uid)}
        parts = await self._read_parts({"loadbalancer_id": balancer_id}, (found,), addresses, tags)
        return parts if isinstance(parts, Unanswered) else plan.build_balancer(parts[0])

    async def _get_remnant(self, address_id: str) -> Balancer | NotFound | Unanswered:
        address = await get_object(self._api, "network", "/floatingips", address_id, FloatingIp)
        if not isinstance(address, FloatingIp):
            return address
        known = read_description(address.description)
        return NotFound() if known is None else plan.build_remnant(address, known.owner)

    async def _read_parts(
        self,
        query: Mapping[str, str],
        balancers: Iterable[LoadBalancer],
        addresses: tuple[FloatingIp, ...],
        tags: Mapping[str, str],
    ) -> list[ObservedBalancer] | Unanswered:
        """Return the balancers with those of their parts that have their tags."""
        listeners = await list_objects(self._api, _SERVICE, "/lbaas/listeners", query, Listener)
        pools = await list_objects(self._api, _SERVICE, "/lbaas/pools", query, Pool)
        monitors = await list_objects(self._api, _SERVICE, "/lbaas/healthmonitors", tags, HealthMonitor)
        if isinstance(listeners, Unanswered):
            return listeners
        if isinstance(pools, Unanswered):
            return pools
        if isinstance(monitors, Unanswered):
            return monitors
        by_pool = {pool.id: monitor for monitor in monitors for pool in monitor.pools}
        observed = []
        for balancer in balancers:
            own_pools = []
            for pool in (each for each in pools if _is_own_part(each, balancer)):
                members = await self._read_members(pool, is_listing="tags" in query)
                if isinstance(members, Unanswered):
                    return members
                monitor = by_pool.get(pool.id)
                own_pools.append(ObservedPool(pool=pool, members=members, monitor=monitor))
            observed.append(
                ObservedBalancer(
                    balancer=balancer,
                    listeners=tuple(each for each in listeners if _is_own_part(each, balancer)),
                    pools=tuple(own_pools),
                    floating_ips=addresses,
                )
            )
        return observed

    async def _read_members(self, pool: Pool, *, is_listing: bool) -> tuple[Member, ...] | Unanswered:
        """Return the members. Octavia lists those of one pool only, so a listing asks for changed pools."""
        known = self._members.get(pool.id)
        if is_listing and known is not None and known[0] == pool:
            return known[1]
        members = await list_objects(self._api, _SERVICE, f"/lbaas/pools/{pool.id}/members", {}, Member)
        if not isinstance(members, Unanswered):
            self._members[pool.id] = (pool, members)
        return members

    async def _list_addresses(self) -> tuple[FloatingIp, ...] | Unanswered:
        return await list_objects(self._api, "network", "/floatingips", {}, FloatingIp)

    # ---- writes

    async def create_balancer(
        self, desired: DesiredBalancer, targets: tuple[Target, ...], owner: Owner
    ) -> WriteResult:
        """Create the balancer with all its ports; Octavia then builds it, and reports it as busy."""
        if not desired.may_open_ports:
            return WriteRejection(kind="invalid", reason="a field of the Service is invalid")
        deadline = set_deadline(self.write_deadline_seconds)
        body = msgspec.json.encode({"loadbalancer": build_creation(desired, targets, owner)})
        created = await self._api.write(
            "load-balancer",
            "POST",
            _PATH,
            body,
            lambda response: read_created(response, "loadbalancer"),
            deadline=deadline,
        )
        if not isinstance(created, str):
            return explain_failed_write(created)
        status = await self._wait_until_idle(created, deadline)
        return WriteSuccess(balancer_id=created, is_building=status != "ACTIVE")

    async def change_balancer(self, balancer_id: str, change: Change) -> WriteResult:
        """Make one change, and wait until Octavia has made it."""
        if not ID.fullmatch(balancer_id):
            return WriteRejection(kind="invalid", reason=f"{balancer_id!r} is not an id")
        deadline = set_deadline(self.write_deadline_seconds)
        result = await self._send(change, deadline)
        if isinstance(result, OpenStackRejection) and result.is_immutable:
            return await self._explain_immutable(balancer_id, result)
        if not isinstance(result, bool):
            return explain_failed_write(result)
        if change.service == "network":
            return WriteSuccess()
        status = await self._wait_until_idle(balancer_id, deadline)
        if status == "ACTIVE":
            return WriteSuccess()
        return UnknownOutcome(reason=f"{change.method} {change.path}: the load balancer is {status}")

    async def delete_balancer(self, balancer_id: str, *, keeps_address: bool) -> WriteResult | NotFound:
        """Delete its floating addresses, or keep them without tags, and then the balancer with all parts."""
        deadline = set_deadline(self.write_deadline_seconds)
        found = await self.get_balancer(balancer_id)
        if isinstance(found, NotFound):
            return found
        if isinstance(found, Unanswered):
            return WriteRejection(kind="held_back", reason=f"nothing was sent: {found.reason}")
        for address, port in _list_own_addresses(found):
            change = plan.release_address(address, port, keeps_address=keeps_address)
            result = await self._send(change, deadline)
            if not isinstance(result, bool):
                return explain_failed_write(result)
        if found.is_remnant:
            return WriteSuccess()
        deleted = await self._api.write(
            "load-balancer",
            "DELETE",
            f"{_PATH}/{balancer_id}?cascade=true",
            None,
            lambda response: read_deletion(response, balancer_id),
            deadline=deadline,
        )
        if isinstance(deleted, NotFound):
            return deleted
        if isinstance(deleted, OpenStackRejection) and deleted.is_immutable:
            return await self._explain_immutable(balancer_id, deleted)
        if not isinstance(deleted, bool):
            return explain_failed_write(deleted)
        status = await self._wait_until_idle(balancer_id, deadline)
        if not status:
            return WriteSuccess()
        return UnknownOutcome(reason=f"the deletion does not end by the deadline: it is {status}")

    async def _send(self, change: Change, deadline: float) -> bool | WriteRejection | Unanswered:
        return await self._api.write(
            change.service,
            change.method,
            change.path,
            change.body or None,
            read_accepted,
            deadline=deadline,
            if_match="" if change.revision is None else f"revision_number={change.revision}",
        )

    async def _explain_immutable(self, balancer_id: str, result: OpenStackRejection) -> WriteRejection:
        """Octavia rejects changes while another one runs, which ends, and in state ERROR, which does not."""
        found = await get_object(self._api, _SERVICE, _PATH, balancer_id, LoadBalancer)
        if not isinstance(found, LoadBalancer) or found.provisioning_status != "ERROR":
            return result
        reason = "the load balancer is in state ERROR: its provider failed; let it fail over, or delete it"
        return WriteRejection(kind="invalid", reason=reason)

    async def _wait_until_idle(self, balancer_id: str, deadline: float) -> str:
        """Return the state in which no change runs, or the last one before the deadline; "" = not found."""
        status = "of unknown state"
        answers = poll(
            lambda: get_object(self._api, _SERVICE, _PATH, balancer_id, LoadBalancer),
            deadline=deadline,
            first_seconds=self._first_poll_seconds,
            max_seconds=_MAX_POLL_SECONDS,
        )
        async for found in answers:
            if isinstance(found, NotFound):
                return ""
            if isinstance(found, LoadBalancer):
                status = found.provisioning_status
                if not status.startswith("PENDING"):
                    return status
        return status


def _is_own_part(part: Listener | Pool, balancer: LoadBalancer) -> bool:
    """Whether the part is at the balancer, and of its owner."""
    owner = read_tags(balancer.tags)
    is_at_it = any(each.id == balancer.id for each in part.loadbalancers)
    return owner is not None and read_tags(part.tags) == owner and is_at_it


def _list_own_addresses(found: Balancer) -> list[tuple[FloatingIp, str | None]]:
    """Return what has to go before the balancer: our addresses at its port, and that port."""
    if isinstance(found.details, FloatingIp):
        return [(found.details, None)]
    assert isinstance(found.details, ObservedBalancer)
    port = found.details.balancer.vip_port_id
    return [(each, port) for each in plan.list_own_addresses(found.details)]
