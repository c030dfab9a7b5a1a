"""The load balancers of one project of Hetzner Cloud."""

import asyncio
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
from libs.clouds.cloud_writes import explain_failed_write, set_deadline
from libs.clouds.error_responses import collect_all, shorten_message
from libs.clouds.hcloud.balancers import plan
from libs.clouds.hcloud.balancers.action_times import FIRST_POLL_SECONDS
from libs.clouds.hcloud.balancers.action_waiter import ActionWaiter
from libs.clouds.hcloud.balancers.annotations import invalid_annotation
from libs.clouds.hcloud.balancers.desired import (
    BalancerOptions,
    DesiredBalancer,
    read_request,
    reject_services,
    set_certificates,
    set_network,
)
from libs.clouds.hcloud.balancers.documents import Action, LoadBalancer, ManagedCertificate, NamedObject
from libs.clouds.hcloud.balancers.plan import CLUSTER_LABEL, Change, build_balancer, build_creation
from libs.clouds.hcloud.balancers.write_responses import (
    ApiRejection,
    CreatedCertificate,
    StartedAction,
    StartedCreation,
    UpdatedBalancer,
    read_deletion,
    read_write,
)
from libs.clouds.hcloud.hcloud_api import ID, HcloudApi
from libs.clouds.instances import Credential, NotFound, Unanswered

WRITE_DEADLINE_SECONDS: Final = 30.0
# A change is about four requests: a look at the balancer, the write, and one or two for its end.
REQUESTS_PER_MINUTE: Final = 480
MAX_CONCURRENT: Final = 16
# A certificate is replaced by another one of its name.
NAME_AGE_SECONDS: Final = 600.0
_PATH: Final = "/load_balancers"


class HcloudBalancers:
    """Implements Balancers for the project of a token, which has to be one that may write."""

    has_outliving_parts = False
    plan_changes = staticmethod(plan.plan_changes)
    plan_adoption = staticmethod(plan.plan_adoption)
    plan_hand_back = staticmethod(plan.plan_hand_back)
    build_ingress = staticmethod(plan.build_ingress)

    def __init__(
        self,
        api: HcloudApi,
        options: BalancerOptions,
        *,
        write_deadline_seconds: float = WRITE_DEADLINE_SECONDS,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        first_poll_seconds: float = FIRST_POLL_SECONDS,
        name_age_seconds: float = NAME_AGE_SECONDS,
    ) -> None:
        self.write_deadline_seconds = write_deadline_seconds
        self._api = api.open_beside(requests_per_minute=requests_per_minute, max_concurrent=MAX_CONCURRENT)
        self._options = options
        self._actions = ActionWaiter(self._api, first_poll_seconds=first_poll_seconds)
        self._name_age_seconds = name_age_seconds
        # By generation, path, and name or id, each with the time until which it counts.
        self._named: dict[tuple[int, str, str], tuple[NamedObject, float]] = {}

    @property
    def credential(self) -> Credential:
        """The last reading of the token."""
        return self._api.session.credential

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    # ---- pure

    def read_request(self, request: BalancerRequest) -> ParsedRequest[DesiredBalancer]:
        """Return the desired balancer without targets."""
        return read_request(request, self._options)

    def plan_release(self, balancer: Balancer, *, keeps_address: bool) -> tuple[Change, ...]:
        """Return the changes that remove our targets, ports and tags."""
        return plan.plan_release(balancer)

    # ---- reads

    async def resolve_names(
        self, parsed: ParsedRequest[DesiredBalancer]
    ) -> ParsedRequest[DesiredBalancer] | Unanswered:
        """Replace the names of the network and of certificates by ids. Each is requested once in ten minutes.

        An id of a network is looked up, too: balancers would leave theirs for one that does not exist.
        The first unknown name of a certificate ends the requests: more of them would change nothing.
        """
        if parsed.desired.network is not None:
            network = await self._find_network(parsed.desired.network)
            if isinstance(network, Unanswered):
                return network
            parsed = set_network(parsed, None if network is None else network.id)
        ids: dict[str, int | None] = {}
        for name in parsed.desired.certificate_names:
            found = await self._find_named("/certificates", name)
            if isinstance(found, Unanswered):
                return found
            managed = parsed.desired.managed_certificate
            if managed is not None and found is None:
                body = msgspec.json.encode(managed, order="deterministic")
                return msgspec.structs.replace(parsed, needed=plan.Change(plan.CREATE_CERTIFICATE, body))
            if managed is not None and found is not None and (problem := _explain_unusable(found, managed)):
                return reject_services(parsed, problem)
            ids[name] = None if found is None else found.id
            if found is None:
                break
        return set_certificates(parsed, ids) if ids else parsed

    async def _find_network(self, network: int | str) -> NamedObject | Unanswered | None:
        if isinstance(network, str):
            return await self._find_named("/networks", network)
        known = (self.credential.generation, "/networks/", str(network))
        if (recent := self._recall(known)) is not None:
            return recent
        found = await self._api.get_item("/networks", "network", str(network), NamedObject)
        if not isinstance(found, NamedObject):
            return None if isinstance(found, NotFound) else found
        self._remember(known, found)
        return found

    async def _find_named(self, path: str, name: str) -> NamedObject | Unanswered | None:
        known = (self.credential.generation, path, name)
        if (recent := self._recall(known)) is not None:
            return recent
        found = await self._api.list_items(path, {"name": name}, NamedObject)
        if isinstance(found, Unanswered):
            return found
        for each in found:
            self._remember((known[0], path, each.name), each)
        return next((each for each in found if each.name == name), None)

    def _recall(self, known: tuple[int, str, str]) -> NamedObject | None:
        found, until = self._named.get(known, (None, 0.0))
        return found if asyncio.get_running_loop().time() < until else None

    def _remember(self, known: tuple[int, str, str], found: NamedObject) -> None:
        self._named[known] = (found, asyncio.get_running_loop().time() + self._name_age_seconds)

    async def list_balancers(
        self, cluster_uid: str, *, reads_parts: bool
    ) -> tuple[Balancer, ...] | Unanswered:
        """Return all balancers with all tags of an owner in this cluster."""
        selector = {"label_selector": f"{CLUSTER_LABEL}={cluster_uid}"}
        listed = await self._api.list_items(_PATH, selector, LoadBalancer)
        built = listed if isinstance(listed, Unanswered) else collect_all(map(build_balancer, listed))
        if isinstance(built, Unanswered):
            return built
        return tuple(each for each in built if each.owner and each.owner.cluster_uid == cluster_uid)

    async def get_balancer(self, balancer_id: str) -> Balancer | NotFound | Unanswered:
        """Return the balancer with exactly this id."""
        found = await self._api.get_item(_PATH, "load_balancer", balancer_id, LoadBalancer)
        return build_balancer(found) if isinstance(found, LoadBalancer) else found

    # ---- writes

    async def create_balancer(
        self, desired: DesiredBalancer, targets: tuple[Target, ...], owner: Owner
    ) -> WriteResult:
        """Create the balancer; without its targets, if the cloud rejects one of them."""
        if desired.certificate_names or isinstance(desired.network, str) or not desired.may_open_ports:
            return WriteRejection(kind="invalid", reason="a field of the Service is invalid")
        deadline = set_deadline(self.write_deadline_seconds)
        result = await self._create(desired, targets, owner, deadline)
        if isinstance(result, ApiRejection) and result.may_create_without_targets and targets:
            result = await self._create(desired, (), owner, deadline)
        if not isinstance(result, StartedCreation):
            return explain_failed_write(result)
        return await self._wait_for(result.action, deadline, str(result.load_balancer.id))

    async def change_balancer(self, balancer_id: str, change: Change) -> WriteResult:
        """Make one change; the outcome of an action that fails is unknown."""
        if change.action == plan.CREATE_CERTIFICATE:
            return await self._create_certificate(change)
        if not ID.fullmatch(balancer_id):
            return WriteRejection(kind="invalid", reason=f"{balancer_id!r} is not an id")
        deadline = set_deadline(self.write_deadline_seconds)
        path = f"{_PATH}/{balancer_id}"
        if change.action == "update":
            updated = await self._api.write(
                "PUT",
                path,
                change.body,
                lambda each: read_write(each, UpdatedBalancer),
                deadline=deadline,
            )
            return WriteSuccess() if isinstance(updated, UpdatedBalancer) else explain_failed_write(updated)
        started = await self._api.write(
            "POST",
            f"{path}/actions/{change.action}",
            change.body,
            lambda each: read_write(each, StartedAction),
            deadline=deadline,
        )
        if isinstance(started, ApiRejection) and started.is_of_a_target:
            return msgspec.structs.replace(started, target=plan.find_added_target(change))
        if not isinstance(started, StartedAction):
            return explain_failed_write(started)
        return await self._wait_for(started.action, deadline)

    async def delete_balancer(self, balancer_id: str, *, keeps_address: bool) -> WriteResult | NotFound:
        """Delete it; its addresses go with it."""
        if not ID.fullmatch(balancer_id):
            return WriteRejection(kind="invalid", reason=f"{balancer_id!r} is not an id")
        deadline = set_deadline(self.write_deadline_seconds)
        result = await self._api.write(
            "DELETE", f"{_PATH}/{balancer_id}", None, read_deletion, deadline=deadline
        )
        if isinstance(result, StartedAction):
            return await self._wait_for(result.action, deadline)
        return result if isinstance(result, WriteSuccess | NotFound) else explain_failed_write(result)

    async def _create(
        self, desired: DesiredBalancer, targets: tuple[Target, ...], owner: Owner, deadline: float
    ) -> StartedCreation | WriteRejection | Unanswered:
        body = msgspec.json.encode(build_creation(desired, targets, owner))
        return await self._api.write(
            "POST", _PATH, body, lambda each: read_write(each, StartedCreation), deadline=deadline
        )

    async def _create_certificate(self, change: Change) -> WriteResult:
        created = await self._api.write(
            "POST",
            "/certificates",
            change.body,
            lambda each: read_write(each, CreatedCertificate),
            deadline=set_deadline(self.write_deadline_seconds),
        )
        return WriteSuccess() if isinstance(created, CreatedCertificate) else explain_failed_write(created)

    async def _wait_for(self, action: Action, deadline: float, balancer_id: str = "") -> WriteResult:
        ended = await self._actions.wait_for(action, deadline)
        if ended.status == "success":
            return WriteSuccess(balancer_id=balancer_id)
        if ended.status == "running":
            return UnknownOutcome(reason=f"{action.command} does not end by the deadline")
        code = ended.error.code if ended.error else "without a code"
        return UnknownOutcome(reason=f"{action.command} failed: {code}")


def _explain_unusable(found: NamedObject, wanted: ManagedCertificate) -> InvalidField | None:
    """Return why the certificate cannot be used; None if it can, or the cloud may still issue it."""
    domains, status = ", ".join(found.domain_names), found.status
    if {*found.domain_names} != {*wanted.domain_names}:
        reason = f"certificate {found.name} is of {domains}, which cannot change: use another name"
    elif status is not None and status.issuance == "failed":
        code = shorten_message(status.error.code) if status.error else "without a code"
        reason = (
            f"Hetzner could not issue certificate {found.name} of {domains} ({code}): correct the cause, and "
            "retry it at Hetzner, or delete it there"
        )
    else:
        return None
    return invalid_annotation("http_managed_certificate_domains", reason)
