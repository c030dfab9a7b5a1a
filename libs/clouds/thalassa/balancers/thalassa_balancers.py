"""The load balancers of one organisation of Thalassa Cloud."""

from collections.abc import Callable, Iterable, Mapping
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
from libs.clouds.http_reader import AnswerT, ReadResponse
from libs.clouds.instances import Credential, NotFound, Unanswered
from libs.clouds.thalassa.balancers import plan
from libs.clouds.thalassa.balancers.desired import (
    DesiredBalancer,
    FileDefaults,
    get_subnet_name,
    read_file_defaults,
    read_request,
    set_subnet,
)
from libs.clouds.thalassa.balancers.documents import (
    Listener,
    LoadBalancer,
    Network,
    ObservedBalancer,
    TargetGroup,
    build_filter,
    read_owner,
)
from libs.clouds.thalassa.balancers.plan import BALANCERS, GROUPS, REMNANT_PREFIX, Change
from libs.clouds.thalassa.balancers.write_responses import read_accepted, read_created, read_deletion
from libs.clouds.thalassa.thalassa_api import ID, ThalassaApi

WRITE_DEADLINE_SECONDS: Final = 30.0
REQUESTS_PER_MINUTE: Final = 480
MAX_CONCURRENT: Final = 16
_VPCS: Final = "/v1/vpcs"
_FIRST_POLL_SECONDS: Final = 0.3
_MAX_POLL_SECONDS: Final = 5.0  # as the cloud's own controller


class _Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A listing, and what voids its target groups."""

    generation: int  # of the credential
    cluster_uid: str
    activity: int  # of the client when it began
    balancers: tuple[LoadBalancer, ...]
    groups: tuple[TargetGroup, ...]


class ThalassaBalancers:
    """Implements Balancers for the organisation of a config file; its credential has to be able to write."""

    has_outliving_parts = True  # target groups
    plan_changes = staticmethod(plan.plan_changes)
    build_ingress = staticmethod(plan.build_ingress)

    def __init__(
        self,
        api: ThalassaApi,
        default_subnet: str = "",
        *,
        write_deadline_seconds: float = WRITE_DEADLINE_SECONDS,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        first_poll_seconds: float = _FIRST_POLL_SECONDS,
    ) -> None:
        """`default_subnet` wins over that of the config file."""
        self.write_deadline_seconds = write_deadline_seconds
        self._api = api.open_beside(requests_per_minute=requests_per_minute, max_concurrent=MAX_CONCURRENT)
        self._default_subnet = default_subnet
        self._first_poll_seconds = first_poll_seconds
        self._subnets: dict[tuple[int, str, str], str] = {}  # by generation, VPC and name
        self._listing: _Listing | None = None  # the last one that read target groups
        self._activity = 0  # reads of single balancers, and writes that have ended

    @property
    def credential(self) -> Credential:
        """The last reading of the config file."""
        return self._api.session.credential

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    # ---- pure, apart from the settings in the config file

    def read_request(self, request: BalancerRequest) -> ParsedRequest[DesiredBalancer]:
        """Return the desired balancer without targets."""
        config = self._api.read_config()
        if isinstance(config, Unanswered):
            return read_request(request, FileDefaults(problem=config.reason))
        defaults = read_file_defaults(config, self._api.find_vpc(config), self._default_subnet)
        return read_request(request, defaults)

    def plan_release(self, balancer: Balancer, *, keeps_address: bool) -> tuple[Change, ...]:
        """Return the changes that remove our ports and labels."""
        return plan.plan_release(balancer)

    def plan_adoption(
        self, desired: DesiredBalancer, targets: tuple[Target, ...], balancer: Balancer, owner: Owner
    ) -> Change | InvalidField:
        """Return the change of labels, or why the Service cannot use the balancer."""
        return plan.plan_adoption(balancer, owner)

    def plan_hand_back(self, balancer: Balancer, service_uid: str) -> InvalidField:
        """Return why not: the cloud's own controller would leave our target groups behind."""
        reason = "Thalassa's controller does not take over target groups: it cannot take this one"
        return InvalidField(field=f"load balancer {balancer.id}", reason=reason)

    # ---- reads

    async def resolve_names(
        self, parsed: ParsedRequest[DesiredBalancer]
    ) -> ParsedRequest[DesiredBalancer] | Unanswered:
        """Set the identity of the subnet; a found one is not requested again before a rejected create."""
        vpc, key = parsed.desired.defaults.vpc, self._build_subnet_key(parsed.desired)
        if not vpc:
            return parsed
        if key in self._subnets:
            desired = msgspec.structs.replace(parsed.desired, subnet=self._subnets[key])
            return msgspec.structs.replace(parsed, desired=desired)
        network = await self._api.get_item(_VPCS, vpc, Network)
        if isinstance(network, Unanswered):
            return network
        found = set_subnet(parsed, network if isinstance(network, Network) else None)
        if found.desired.subnet:
            self._subnets[key] = found.desired.subnet
        return found

    def _build_subnet_key(self, desired: DesiredBalancer) -> tuple[int, str, str]:
        return (self.credential.generation, desired.defaults.vpc, get_subnet_name(desired))

    async def list_balancers(
        self, cluster_uid: str, *, reads_parts: bool
    ) -> tuple[Balancer, ...] | Unanswered:
        """Return all balancers with all labels of an owner in this cluster, and groups without a balancer."""
        known = self._listing
        if not reads_parts and known is not None and self._is_valid(known, cluster_uid):
            listed = await self._list_loadbalancers(cluster_uid)
            if isinstance(listed, Unanswered):
                return listed
            if listed == known.balancers and self._is_valid(known, cluster_uid):
                return await self._build_listing(known)
        generation, activity = self.credential.generation, self._activity
        # read first, or the target group of a new balancer would count as a remnant
        groups = await self._list_groups(build_filter(cluster_uid))
        if isinstance(groups, Unanswered):
            return groups
        listed = await self._list_loadbalancers(cluster_uid)
        if isinstance(listed, Unanswered):
            return listed
        self._listing = _Listing(
            generation=generation,
            cluster_uid=cluster_uid,
            activity=activity,
            balancers=listed,
            groups=groups,
        )
        return await self._build_listing(self._listing)

    def _is_valid(self, listing: _Listing, cluster_uid: str) -> bool:
        """Whether its target groups are still those of the cluster, as far as this client knows."""
        now = (self.credential.generation, cluster_uid, self._activity)
        return now == (listing.generation, listing.cluster_uid, listing.activity)

    async def _list_loadbalancers(self, cluster_uid: str) -> tuple[LoadBalancer, ...] | Unanswered:
        """Return the balancers of the cluster in the order of their identities."""
        listed = await self._api.list_items(BALANCERS, build_filter(cluster_uid), LoadBalancer)
        if isinstance(listed, Unanswered):
            return listed
        present = (each for each in listed if _is_there(each) and _is_of(each, cluster_uid))
        return tuple(sorted(present, key=lambda each: each.identity))

    async def _build_listing(self, listing: _Listing) -> tuple[Balancer, ...] | Unanswered:
        observed = await self._observe(listing.balancers, listing.groups, is_listing=True)
        if isinstance(observed, Unanswered):
            return observed
        if self.credential.generation != listing.generation:
            return Unanswered("unauthorized", "the credential changed while balancers were listed")
        found = [plan.build_balancer(each) for each in observed]
        owners = {each.owner for each in found}
        for group in listing.groups:
            owner = read_owner(group.labels)
            if owner is not None and owner.cluster_uid == listing.cluster_uid and owner not in owners:
                found.append(plan.build_remnant(group, owner))
        return tuple(found)

    async def get_balancer(self, balancer_id: str) -> Balancer | NotFound | Unanswered:
        """Return the balancer with exactly this identity, or a target group that is left of one."""
        self._activity += 1  # it may show other target groups than the last listing
        if balancer_id.startswith(REMNANT_PREFIX):
            group = await self._api.get_item(GROUPS, balancer_id.removeprefix(REMNANT_PREFIX), TargetGroup)
            owner = read_owner(group.labels) if isinstance(group, TargetGroup) else None
            if not isinstance(group, TargetGroup):
                return group
            return NotFound() if owner is None else plan.build_remnant(group, owner)
        found = await self._api.get_item(BALANCERS, balancer_id, LoadBalancer)
        if not isinstance(found, LoadBalancer):
            return found
        if not _is_there(found):
            return NotFound()
        owner = read_owner(found.labels)
        groups: tuple[TargetGroup, ...] | Unanswered = ()
        if owner is not None:
            groups = await self._list_groups(build_filter(owner.cluster_uid, owner.service_uid))
        if isinstance(groups, Unanswered):
            return groups
        observed = await self._observe((found,), groups)
        return observed if isinstance(observed, Unanswered) else plan.build_balancer(observed[0])

    async def _list_groups(self, query: Mapping[str, str]) -> tuple[TargetGroup, ...] | Unanswered:
        """Return the target groups with our labels; one is read again if the list leaves its targets out."""
        listed = await self._api.list_items(GROUPS, query, TargetGroup)
        if isinstance(listed, Unanswered):
            return listed
        groups = []
        for group in listed:
            found: TargetGroup | NotFound | Unanswered = group
            if not _has_targets(group):
                found = await self._api.get_item(GROUPS, group.identity, TargetGroup)
            if isinstance(found, TargetGroup) and not all(each.target for each in found.attachments or ()):
                found = Unanswered("malformed", f"target group {group.identity}: an attachment has no target")
            if isinstance(found, Unanswered):
                return found
            if isinstance(found, TargetGroup):
                groups.append(found)
        return tuple(groups)

    async def _observe(
        self, balancers: Iterable[LoadBalancer], groups: tuple[TargetGroup, ...], *, is_listing: bool = False
    ) -> list[ObservedBalancer] | Unanswered:
        """Return the balancers with all that belongs to them."""
        observed = []
        for each in balancers:
            owner = read_owner(each.labels)
            own = [group for group in groups if owner is not None and read_owner(group.labels) == owner]
            listeners = await self._read_listeners(each, may_be_empty=is_listing and not own)
            if isinstance(listeners, Unanswered):
                return listeners
            balancer = msgspec.structs.replace(each, listeners=None)  # they may be incomplete there
            observed.append(ObservedBalancer(balancer=balancer, listeners=listeners, groups=tuple(own)))
        return observed

    async def _read_listeners(
        self, balancer: LoadBalancer, *, may_be_empty: bool
    ) -> tuple[Listener, ...] | Unanswered:
        """Return the listeners.

        Before a write, an empty embedded list is verified by the list of listeners. After a listing, only a
        balancer with target groups may be written.
        """
        embedded = balancer.listeners
        if embedded is not None and all(map(_is_complete, embedded)) and (embedded or may_be_empty):
            return embedded
        return await self._api.list_items(f"{BALANCERS}/{balancer.identity}/listeners", {}, Listener)

    # ---- writes

    async def create_balancer(
        self, desired: DesiredBalancer, targets: tuple[Target, ...], owner: Owner
    ) -> WriteResult:
        """Create the balancer, which has neither ports nor targets before it is ready."""
        if not desired.may_open_ports or not desired.subnet:
            return WriteRejection(kind="invalid", reason="a field of the Service is invalid")
        deadline = set_deadline(self.write_deadline_seconds)
        body = msgspec.json.encode(plan.build_creation(desired, owner))
        created = await self._write("POST", BALANCERS, body, read_created, deadline)
        if isinstance(created, WriteRejection):
            self._subnets.pop(self._build_subnet_key(desired), None)  # it may be gone
        if not isinstance(created, str):
            return explain_failed_write(created)
        await self._wait_until(
            lambda found: isinstance(found, LoadBalancer) and found.status == "ready",
            created,
            deadline,
            max_seconds=desired.defaults.creation.creation_poll_interval,
        )
        return WriteSuccess(balancer_id=created)

    async def change_balancer(self, balancer_id: str, change: Change) -> WriteResult:
        """Make one change."""
        if not ID.fullmatch(balancer_id) or change.refusal:
            reason = change.refusal or f"{balancer_id!r} is not an identity"
            return WriteRejection(kind="invalid", reason=reason)
        deadline = set_deadline(self.write_deadline_seconds)
        result = await self._write(change.method, change.path, change.body or None, read_accepted, deadline)
        if isinstance(result, WriteRejection) and result.kind == "invalid":
            return msgspec.structs.replace(result, target=change.target)
        return WriteSuccess() if isinstance(result, bool) else explain_failed_write(result)

    async def delete_balancer(self, balancer_id: str, *, keeps_address: bool) -> WriteResult | NotFound:
        """Delete it, or the target group that is left of one. A reserved address stays."""
        identity = balancer_id.removeprefix(REMNANT_PREFIX)
        if not ID.fullmatch(identity):
            return WriteRejection(kind="invalid", reason=f"{balancer_id!r} is not an identity")
        path = BALANCERS if identity == balancer_id else GROUPS
        deadline = set_deadline(self.write_deadline_seconds)
        deleted = await self._write(
            "DELETE", f"{path}/{identity}", None, read_deletion, deadline, is_deletion=True
        )
        if isinstance(deleted, NotFound):
            return deleted
        if not isinstance(deleted, bool):
            return explain_failed_write(deleted)
        if path == GROUPS or await self._wait_until(
            lambda found: isinstance(found, NotFound), identity, deadline
        ):
            return WriteSuccess()
        return UnknownOutcome(reason="the deletion does not end by the deadline")

    async def _write(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: ReadResponse[AnswerT],
        deadline: float,
        *,
        is_deletion: bool = False,  # of a whole object; to detach a target is a DELETE, too
    ) -> AnswerT | WriteRejection | Unanswered:
        try:
            return await self._api.write(method, path, body, read, deadline=deadline, is_deletion=is_deletion)
        finally:
            self._activity += 1

    async def _wait_until(
        self,
        is_done: Callable[[LoadBalancer | NotFound | Unanswered], bool],
        identity: str,
        deadline: float,
        *,
        max_seconds: float = _MAX_POLL_SECONDS,
    ) -> bool:
        """Poll the balancer; return False if it is not done by the deadline."""
        answers = poll(
            lambda: self._api.get_item(BALANCERS, identity, LoadBalancer),
            deadline=deadline,
            first_seconds=self._first_poll_seconds,
            max_seconds=max_seconds,
        )
        async for answer in answers:
            found = answer
            if isinstance(found, LoadBalancer) and not _is_there(found):
                found = NotFound()
            if is_done(found):
                return True
        return False


def _is_there(balancer: LoadBalancer) -> bool:
    return balancer.status != "deleted"  # the Go client reads it as gone


def _is_of(balancer: LoadBalancer, cluster_uid: str) -> bool:
    """Whether it is of the cluster: the API may ignore the filter."""
    owner = read_owner(balancer.labels)
    return owner is not None and owner.cluster_uid == cluster_uid


def _is_complete(listener: Listener) -> bool:
    return listener.target_group is not None and listener.allowed_sources is not None


def _has_targets(group: TargetGroup) -> bool:
    return group.attachments is not None and all(each.target for each in group.attachments)
