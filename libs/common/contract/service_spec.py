"""The type of one row of the service table: name, port, controller, Lease, messages and permissions."""

import msgspec


class Durable(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer with explicit acknowledgement and one filter, shared by a service's replicas."""

    service: str  # the service in whose name dead letters are published, whatever process consumes
    name: str
    filter: str
    ack_wait_seconds: float = 30.0


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True):
    """One RBAC rule with least privilege; empty `resource_names` means every object."""

    group: str  # "" is the core group
    resource: str
    verbs: tuple[str, ...]
    resource_names: tuple[str, ...] = ()
    namespace: str = ""  # "" = cluster scoped


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    """The controller in --controllers and --cloud-config that selects a service."""

    name: str = ""  # "" = the service always runs
    aliases: tuple[str, ...] = ()
    display_name: str = ""  # the one of these names that texts use
    in_wildcard: bool = False  # `*` in --controllers selects it
    flag: str = ""  # boolean flag that selects it if --controllers does not name it
    manages: str = ""  # what it manages of a Node, for `talos-ccm explain`


class ElectionLease(msgspec.Struct, frozen=True, kw_only=True):
    """The Lease of a service that elects a leader."""

    name: str  # default name
    flag: str  # flag that sets another name


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one service in the flow, and its permissions."""

    service: str
    description: str  # for --help
    input_description: str  # for the documentation
    port: int  # of health and metrics, in a process of its own
    # Resident memory of its process while 1000 nodes join at once (docs/performance.md, there in MB). The
    # chart requests it.
    peak_mebibytes: int
    controller: Controller = Controller()
    lease: ElectionLease | None = None
    durables: tuple[Durable, ...] = ()
    follows: tuple[str, ...] = ()  # filters of its ephemeral followers
    publishes: tuple[str, ...] = ()  # subject filters
    owns: tuple[str, ...] = ()  # fields and objects that no other service writes
    provisions_stream: bool = False
    needs_talos: bool = False  # it has nothing to do if no machine is queried
    single_replica: bool = False  # several replicas would repeat its work
    policy_rules: tuple[PolicyRule, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def runs_by_default(self) -> bool:
        """Whether the default --controllers=* selects it."""
        return not self.controller.name or self.controller.in_wildcard
