"""The interface of every cloud adapter to load balancers: pure plans, and one change at a time."""

from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Final, Generic, Literal, Protocol, TypeVar

import msgspec

from libs.clouds.instances import Credential, NotFound, Unanswered
from libs.common.cloud_config.model import NodeSelectorTerm

# Types of a Node's addresses by which clouds can reach it
ADDRESS_TYPES: Final = ("InternalIP", "ExternalIP")
# A warning of clouds that cannot keep a client at its Node.
AFFINITY_IGNORED: Final = "sessionAffinity ClientIP is ignored: the load balancer selects a Node by itself"

# A change that runs for longer is reported on the Service. Virtual machines are built in five minutes.
BUSY_SECONDS: Final = 900.0

# ---- the desired state, in plain data: adapters import neither Kubernetes' types nor messages


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port of a Service. `node_port` is 0 if the Service has none."""

    name: str
    protocol: str  # TCP, UDP or SCTP
    port: int
    node_port: int
    app_protocol: str = ""


class Target(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A Node that receives traffic: an instance of this cloud by id, or a machine elsewhere by address."""

    instance_id: str = ""
    address: str = ""


class BalancerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a Service that describe its load balancer. The adapter reads its annotations."""

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str]
    ports: tuple[Port, ...]
    source_ranges: tuple[str, ...] = ()
    ip_families: tuple[str, ...] = ()
    load_balancer_ip: str = ""
    # of externalTrafficPolicy Local; 0 = traffic may go to every Node
    health_check_node_port: int = 0
    keeps_clients: bool = False  # sessionAffinity ClientIP: a client stays at its Node
    creates_balancer: bool = True  # False: the Service names one that exists


class InvalidField(msgspec.Struct, frozen=True, kw_only=True):
    """A value that this cloud cannot read or enforce. `field` names it as the user wrote it.

    `reason` names the value and the valid ones; it follows the field and a colon.
    """

    field: str
    reason: str
    is_unknown: bool = False  # no such field: others are named first, as an Event has 1024 characters

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


DesiredT = TypeVar("DesiredT")


class ParsedRequest(msgspec.Struct, Generic[DesiredT], frozen=True, kw_only=True):
    """The desired balancer without targets, and all fields that this cloud cannot enforce.

    While a field is invalid, nothing is created, and no port of an existing balancer is opened. The part that
    the field describes is not changed: `desired` names that part, and its plans leave it out.
    """

    desired: DesiredT
    invalid: tuple[InvalidField, ...] = ()
    warnings: tuple[str, ...] = ()  # what is left out, such as a UDP port beside TCP ports
    # Which Nodes are targets, in the form of `match_selector`: () = all, None = unreadable. Then no Node
    # becomes a target, and no Node stops being one by its labels.
    node_selector: tuple[NodeSelectorTerm, ...] | None = ()
    # Which of its Node's addresses is a target by address: the first of these types. None = unreadable. Then
    # no such target comes, and none goes.
    address_types: tuple[str, ...] | None = ADDRESS_TYPES
    # A change of no balancer, which the desired one needs first: a free object with a unique name, which a
    # repeated request cannot create twice, and which stays.
    needed: Hashable | None = None
    busy_seconds: float = BUSY_SECONDS
    # Whether an address that can outlive its balancer stays, free for another use.
    keeps_address: bool = False


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a balancer: tags that are part of the request which creates it.

    Accounts may share a project. Without the account in the tags, a user who edits a Service's record could
    have one account delete the balancer of another.
    """

    cluster_uid: str  # of the Namespace kube-system
    service_uid: str
    account: str


# ---- the observed state


class Balancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer that exists. The adapter alone reads `details`."""

    id: str
    name: str
    created_at: datetime
    owner: Owner | None  # None: no tag of this project
    has_foreign_tags: bool  # of another controller of load balancers, or a part of ours
    is_busy: bool  # a change runs: the cloud refuses another one
    is_protected: bool  # the cloud refuses to delete it, or it existed before the Service
    targets: tuple[Target, ...]
    details: object
    native_uid: str = ""  # of the Service for which the cloud's own controller has it
    # by the cloud's clock; None = not busy, or unknown
    busy_since: datetime | None = None
    is_building: bool = False  # the cloud builds it for the first time
    has_failed: bool = False  # the cloud could not build or change it, and refuses changes
    warnings: tuple[str, ...] = ()  # changes by other clients, which stay
    # What it uses and what outlives it, named for operators: addresses that users reserved, certificates
    kept_objects: tuple[str, ...] = ()
    created_addresses: tuple[str, ...] = ()  # the same; they outlive it only where the Service keeps them
    # A paid part of a balancer that does not exist any more. It is deleted at the end, and never recorded.
    is_remnant: bool = False


class Ingress(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the Service's status: an address, or a hostname."""

    ip: str = ""
    hostname: str = ""
    is_proxy: bool = False  # ipMode Proxy; of an address only


# ---- the result of a write

# "busy": another change of this balancer runs. "limit": quota or the limit of its type. "in_use": the cloud
# keeps the object, as it is protected. Each is reported on the Service, and retried with a growing pause.
RejectionKind = Literal["busy", "limit", "in_use", "invalid", "unauthorized", "rate_limited", "held_back"]


class WriteSuccess(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud has finished the change. `balancer_id` names what it created."""

    balancer_id: str = ""
    is_building: bool = False  # the cloud still builds what it created, or has failed to


class WriteRejection(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud reports, in the form of its own errors, that nothing has changed; or nothing was sent."""

    kind: RejectionKind
    reason: str
    retry_after_seconds: float | None = None
    # The added target that alone is the reason, if the balancer exists. Another addition may succeed.
    target: Target | None = None


class UnknownOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The request was sent, and no answer proves its result: it may still take effect.

    Nothing is sent again before a listing that began a minute after the deadline.
    """

    reason: str


WriteResult = WriteSuccess | WriteRejection | UnknownOutcome

# One change; `str` names it for operators
ChangeT = TypeVar("ChangeT", bound=Hashable)
PlannedT_co = TypeVar("PlannedT_co", bound=Hashable, covariant=True)  # the same, where it is only returned


class BalancerPlanner(Protocol[DesiredT, PlannedT_co]):
    """The pure part of an adapter: what an annotation means, and how a balancer differs from it."""

    # Whether a change may create a part that outlives its balancer. A Service then ends only when no change
    # of unknown result can take effect any more.
    has_outliving_parts: bool

    def read_request(self, request: BalancerRequest) -> ParsedRequest[DesiredT]:
        """Return the desired balancer without targets."""
        ...

    def plan_changes(
        self, desired: DesiredT, targets: tuple[Target, ...], balancer: Balancer
    ) -> tuple[PlannedT_co, ...]:
        """Return what differs, as changes that the cloud accepts now, in their order; empty if nothing does.

        Removals of targets come first, then additions. Make one of them, read the balancer, and plan again:
        the first that the cloud has not rejected a moment ago. So a rejected value blocks nothing else. A
        balancer that has failed gets nothing that it lacks.
        """
        ...

    def plan_release(self, balancer: Balancer, *, keeps_address: bool) -> tuple[PlannedT_co, ...]:
        """Return the changes that remove our targets, ports and, at last, tags; empty if none is left.

        For a protected balancer, which has to stay. Nothing else of it is changed, but an address that this
        project added is deleted, or kept without tags.
        """
        ...

    def plan_adoption(
        self, desired: DesiredT, targets: tuple[Target, ...], balancer: Balancer, owner: Owner
    ) -> PlannedT_co | InvalidField:
        """Return the change that gives the balancer our tags, and takes those of the cloud's own controller.

        Without the latter, the balancer was prepared: it is protected from then on. An invalid field names
        why the Service cannot use it.
        """
        ...

    def plan_hand_back(self, balancer: Balancer, service_uid: str) -> PlannedT_co | InvalidField:
        """Return the change that replaces our tags by those of the cloud's own controller.

        An invalid field names why that controller cannot have it.
        """
        ...

    def build_ingress(self, desired: DesiredT, balancer: Balancer) -> tuple[Ingress, ...] | None:
        """Return the entries of the status, in their order; empty = clients cannot reach it yet.

        None leaves the status unchanged: a field that describes it is invalid.
        """
        ...


class Balancers(BalancerPlanner[DesiredT, ChangeT], Protocol[DesiredT, ChangeT]):
    """The load balancers of one project, by the credential of its account.

    No call raises. Reads and writes share the rate limit of the project. A write ends by its deadline:
    `write_deadline_seconds` after it began, with any result. Writes of one balancer follow one another.
    """

    write_deadline_seconds: float

    @property
    def credential(self) -> Credential: ...

    # ---- reads

    async def resolve_names(self, parsed: ParsedRequest[DesiredT]) -> ParsedRequest[DesiredT] | Unanswered:
        """Replace names, such as those of certificates, by ids; an unknown name is an invalid field.

        Needed before each plan. Nothing is sent if there is no name.
        """
        ...

    async def list_balancers(
        self, cluster_uid: str, *, reads_parts: bool
    ) -> tuple[Balancer, ...] | Unanswered:
        """Return all balancers with the tags of this cluster, of any account: every page, or no answer.

        Without `reads_parts`, parts that can outlive their balancer may be those of the last listing, unless
        this client has read or changed a balancer since, or a balancer is another one.
        """
        ...

    async def get_balancer(self, balancer_id: str) -> Balancer | NotFound | Unanswered:
        """Return the balancer with exactly this id and any tags."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    # ---- writes: the caller leads, and has read the Service and the balancer before

    async def create_balancer(
        self, desired: DesiredT, targets: tuple[Target, ...], owner: Owner
    ) -> WriteResult:
        """Create the balancer in one request: tags and ports are part of it, and targets as far as they fit.

        Changes add the rest.
        """
        ...

    async def change_balancer(self, balancer_id: str, change: ChangeT) -> WriteResult:
        """Make one change, and return when the cloud has finished it. "" is for `ParsedRequest.needed`."""
        ...

    async def delete_balancer(self, balancer_id: str, *, keeps_address: bool) -> WriteResult | NotFound:
        """Delete it. "Not found" is no success: another project's credential gets the same answer.

        An address that can outlive it is deleted first, or kept without our tags.
        """
        ...
