"""The one table of services. Ports, NATS permissions, RBAC, chart, compose, controllers and docs follow it.

`make manifests` writes the generated files again. A new row goes last.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from libs.common.contract.instances import RECORD_ANNOTATION, RECORD_DIGEST_LABEL
from libs.common.contract.kube_service import BALANCER_ANNOTATION, CLASS_FINALIZER, CLEANUP_FINALIZER
from libs.common.contract.node import NETWORK_UNAVAILABLE
from libs.common.contract.signing_request import KUBELET_SERVING
from libs.common.contract.subjects import (
    ALL_SUBJECTS,
    CLOUD_REPORTS,
    DEAD_LETTERS,
    DECIDED,
    ENRICHED_CSR,
    ENRICHED_NODE,
    FLOW,
    INSTANCE_METADATA,
    INSTANCE_REPORTS,
    LEADING,
    NETWORKS,
    OBSERVED_CSR,
    OBSERVED_NODE,
    OBSERVED_SERVICE,
    PULSES,
    SNAPSHOT,
)


class Durable(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer with explicit acknowledgement and one filter, shared by a service's replicas."""

    service: str
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
    controllers: tuple[str, ...] = ()  # only where one of these is selected; () = always
    flag: str = ""  # only where this flag is set; "" = always


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    """The controller in --controllers and --cloud-config that selects a service."""

    name: str = ""  # "" = no controller; without a flag the service always runs
    aliases: tuple[str, ...] = ()
    display_name: str = ""  # the one of these names that texts use
    in_wildcard: bool = False  # `*` in --controllers selects it
    flag: str = ""  # flag that selects it if --controllers does not name it
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
        """Whether it runs without a flag that selects it."""
        return self.controller.in_wildcard or self.controller == Controller()


WATCHER_LEASE_NAME = "cloud-controller-manager-talos"  # the reference controller's name: only one can lead
LEASE_NAMESPACE = "kube-system"
# No other component stores ConfigMaps in this namespace. RBAC cannot restrict `create` by name, and page
# names are not known beforehand, so ipam may write every ConfigMap of the namespace. kube-system would
# include the configuration of CoreDNS and of this project, and the certificate authority of NATS.
RECORDS_NAMESPACE = CLAIM_PAGES_NAMESPACE = "kube-node-lease"
LIFECYCLE_LEASE_NAME = "talos-ccm-lifecycle"  # lifecycle elects its own leader, independent of the watcher
WATCHER_LEASE = ElectionLease(name=WATCHER_LEASE_NAME, flag="leader-elect-resource-name")
LIFECYCLE_LEASE = ElectionLease(name=LIFECYCLE_LEASE_NAME, flag="lifecycle-lease-name")
_CERTIFICATES = "certificates.k8s.io"
_COORDINATION = "coordination.k8s.io"

# Events about objects without a namespace, such as Nodes, are in `default`.
_CREATE_EVENTS = PolicyRule(group="", resource="events", verbs=("create",), namespace="default")


def _lease_rules(name: str) -> tuple[PolicyRule, ...]:
    return (
        PolicyRule(
            group=_COORDINATION,
            resource="leases",
            verbs=("get", "update"),
            resource_names=(name,),
            namespace=LEASE_NAMESPACE,
        ),
        # RBAC cannot restrict `create` by name: the authorizer does not know the name.
        PolicyRule(group=_COORDINATION, resource="leases", verbs=("create",), namespace=LEASE_NAMESPACE),
    )


# In the processes of cloud accounts, each of which has the load balancers of its own class of Services.
LOAD_BALANCERS = Controller(
    name="service-lb-controller", aliases=("service",), display_name="service-lb-controller"
)
# There, too: each account has the routes of one network.
ROUTES = Controller(name="node-route-controller", aliases=("route",), display_name="node-route-controller")
ACCOUNT_CONTROLLERS: tuple[Controller, ...] = (LOAD_BALANCERS, ROUTES)

WATCHER = ServiceSpec(
    service="watcher",
    description="publishes the Nodes and certificate requests of Kubernetes",
    input_description="Nodes, kubelets' CertificateSigningRequests, ServiceCIDRs and, for load balancers, "
    "Services, from the Kubernetes API",
    port=10458,  # the port of the reference controller; all services in one process serve it, too
    peak_mebibytes=64,
    lease=WATCHER_LEASE,
    follows=(f"{FLOW}.>",),
    publishes=(
        f"{OBSERVED_NODE}.>",
        f"{OBSERVED_CSR}.>",
        f"{OBSERVED_SERVICE}.>",
        SNAPSHOT,
        LEADING,
        f"{PULSES}.watcher.>",
    ),
    owns=("stream", "durables", f"lease/{LEASE_NAMESPACE}/{WATCHER_LEASE_NAME}"),
    provisions_stream=True,
    policy_rules=(
        PolicyRule(group="", resource="nodes", verbs=("list", "watch")),
        PolicyRule(
            group="certificates.k8s.io", resource="certificatesigningrequests", verbs=("list", "watch")
        ),
        PolicyRule(group="networking.k8s.io", resource="servicecidrs", verbs=("list", "watch")),
        PolicyRule(
            group="", resource="services", verbs=("list", "watch"), controllers=(LOAD_BALANCERS.name,)
        ),
        *_lease_rules(WATCHER_LEASE_NAME),
    ),
)

METADATA = ServiceSpec(
    service="metadata",
    description="queries the machines over the Talos API",
    input_description="observed Nodes and certificate requests; the Talos API of their machines",
    port=10459,
    peak_mebibytes=80,
    single_replica=True,
    follows=(f"{FLOW}.>",),
    publishes=(
        f"{ENRICHED_NODE}.>",
        f"{ENRICHED_CSR}.>",
        NETWORKS,
        f"{DECIDED}.metadata.>",
        f"{DEAD_LETTERS}.metadata.>",
        f"{PULSES}.metadata.>",
    ),
    secrets=("talosconfig",),
)

LABELER = ServiceSpec(
    service="labeler",
    description="initializes Nodes: addresses, providerID, labels, taints",
    input_description="enriched Nodes; follows all messages about Nodes, and what cloud accounts supply",
    port=10460,
    peak_mebibytes=84,
    controller=Controller(
        name="cloud-node",
        aliases=("cloud-node-controller",),
        display_name="cloud-node",
        in_wildcard=True,
        manages="labels, addresses, providerID",
    ),
    needs_talos=True,
    durables=(Durable(service="labeler", name="labeler-nodes", filter=f"{ENRICHED_NODE}.>"),),
    follows=(f"{FLOW}.>", INSTANCE_METADATA),
    publishes=(f"{DECIDED}.labeler.>", f"{DEAD_LETTERS}.labeler.>", f"{PULSES}.labeler.>"),
    owns=(
        "node/metadata.labels",
        "node/metadata.annotations",
        "node/spec.providerID",
        "node/spec.taints",
        "node/status.addresses",
        "node/status.conditions[TalosInitializationBlocked]",
    ),
    policy_rules=(
        PolicyRule(group="", resource="nodes", verbs=("get", "patch")),
        PolicyRule(group="", resource="nodes/status", verbs=("patch",)),
        _CREATE_EVENTS,
    ),
)

CSR = ServiceSpec(
    service="csr",
    description="approves or denies kubelets' requests for serving certificates",
    input_description="enriched certificate requests; follows all messages about Nodes and requests",
    port=10461,
    peak_mebibytes=77,
    controller=Controller(
        name="certificatesigningrequest-approving-controller",
        aliases=("node-csr-approval",),
        display_name="node-csr-approval",
        in_wildcard=True,
        manages="serving certificates",
    ),
    durables=(Durable(service="csr", name="csr-requests", filter=f"{ENRICHED_CSR}.>"),),
    follows=(f"{FLOW}.>",),
    publishes=(f"{DECIDED}.csr.>", f"{DEAD_LETTERS}.csr.>", f"{PULSES}.csr.>"),
    owns=("certificatesigningrequest/status.conditions",),
    policy_rules=(
        PolicyRule(group=_CERTIFICATES, resource="certificatesigningrequests/approval", verbs=("patch",)),
        PolicyRule(
            group=_CERTIFICATES, resource="signers", verbs=("approve",), resource_names=(KUBELET_SERVING,)
        ),
        _CREATE_EVENTS,
    ),
)

IPAM = ServiceSpec(
    service="ipam",
    description="allocates pod CIDRs to Nodes",
    input_description="enriched Nodes and the networks of the cluster; follows all messages about Nodes",
    port=10462,
    peak_mebibytes=84,  # not measured: the largest of the others
    controller=Controller(
        name="node-ipam-controller",
        aliases=("nodeipam",),
        display_name="node-ipam-controller",
        flag="allocate-node-cidrs",
        manages="pod CIDRs",
    ),
    needs_talos=True,
    durables=(Durable(service="ipam", name="ipam-nodes", filter=f"{ENRICHED_NODE}.>"),),
    follows=(f"{FLOW}.>",),
    publishes=(f"{DECIDED}.ipam.>", f"{DEAD_LETTERS}.ipam.>", f"{PULSES}.ipam.>"),
    owns=(
        "node/spec.podCIDR",
        "node/spec.podCIDRs",
        f"configmap/{CLAIM_PAGES_NAMESPACE}/talos-ccm-pod-cidrs-*",
    ),
    policy_rules=(
        PolicyRule(group="", resource="nodes", verbs=("list", "patch")),
        # The names of pages follow from the allocated blocks, so the rule cannot list them.
        PolicyRule(
            group="",
            resource="configmaps",
            verbs=("list", "create", "update"),
            namespace=CLAIM_PAGES_NAMESPACE,
        ),
        _CREATE_EVENTS,
    ),
)

LIFECYCLE = ServiceSpec(
    service="lifecycle",
    description="deletes Nodes whose machine is proven to be gone",
    input_description="follows all messages about Nodes, and reports of clouds",
    port=10463,
    peak_mebibytes=84,  # as ipam
    controller=Controller(
        name="cloud-node-lifecycle-controller",
        aliases=("cloud-node-lifecycle",),
        display_name="cloud-node-lifecycle",
        manages="Node deletion",
    ),
    lease=LIFECYCLE_LEASE,
    needs_talos=True,
    follows=(f"{FLOW}.>", INSTANCE_REPORTS),
    publishes=(f"{DECIDED}.lifecycle.>", f"{PULSES}.lifecycle.>"),
    owns=(
        "node",  # whether it exists
        "node/spec.taints[node.cloudprovider.kubernetes.io/shutdown]",
        f"node/metadata.annotations[{RECORD_ANNOTATION}]",
        f"node/metadata.labels[{RECORD_DIGEST_LABEL}]",
        f"lease/{LEASE_NAMESPACE}/{LIFECYCLE_LEASE_NAME}",
    ),
    policy_rules=(
        PolicyRule(group="", resource="nodes", verbs=("get", "patch", "delete")),
        *_lease_rules(LIFECYCLE_LEASE_NAME),
        _CREATE_EVENTS,
    ),
)


def get_cloud_lease_name(account: str) -> str:
    """Return the name of the Lease of the account's process."""
    return f"talos-ccm-cloud-{account}"


def get_route_record_name(account: str) -> str:
    """Return the name of the ConfigMap with the account's routes."""
    return f"talos-ccm-routes-{account}"


_ANY_ACCOUNT = "<account>"


def _only_for(controllers: Iterable[Controller], *rules: PolicyRule) -> Iterator[PolicyRule]:
    names = tuple(each.name for each in controllers)
    return (msgspec.structs.replace(rule, controllers=names) for rule in rules)


# The row of every cloud account: `expand_cloud` returns the row of one, which has a process and a NATS key of
# its own. One process of all services runs all accounts.
CLOUD = ServiceSpec(
    service="cloud",
    description="asks the cloud of one account about the instances of Nodes, and makes load balancers and "
    "routes",
    input_description="observed Nodes and Services; the API of the cloud",
    port=10465,  # the keeper of NATS has 10464
    peak_mebibytes=80,  # as metadata: not measured
    controller=Controller(flag="cloud-account"),
    single_replica=True,
    follows=(f"{FLOW}.>",),
    publishes=(f"{CLOUD_REPORTS}.>",),
    owns=(
        "load balancers with the tags of a Service",
        f"service/metadata.finalizers[{CLASS_FINALIZER}]",
        f"service/metadata.finalizers[{CLEANUP_FINALIZER}]",
        f"service/metadata.annotations[{BALANCER_ANNOTATION}]",
        "service/status.loadBalancer",
        "routes that its ConfigMap records",
        f"configmap/{RECORDS_NAMESPACE}/{get_route_record_name(_ANY_ACCOUNT)}",
        f"node/status.conditions[{NETWORK_UNAVAILABLE}]",
        f"lease/{LEASE_NAMESPACE}/{get_cloud_lease_name(_ANY_ACCOUNT)}",
    ),
    policy_rules=(
        *_only_for(
            (LOAD_BALANCERS,),
            PolicyRule(group="", resource="services", verbs=("get", "patch")),
            PolicyRule(group="", resource="services/status", verbs=("patch",)),
            # Its uid is that of the cluster.
            PolicyRule(group="", resource="namespaces", verbs=("get",), resource_names=(LEASE_NAMESPACE,)),
            # An Event about a Service is in the namespace of the Service.
            PolicyRule(group="", resource="events", verbs=("create",)),
        ),
        *_only_for(
            (ROUTES,),
            PolicyRule(group="", resource="nodes/status", verbs=("patch",)),
            PolicyRule(
                group="",
                resource="configmaps",
                verbs=("get", "update"),
                resource_names=(get_route_record_name(_ANY_ACCOUNT),),
                namespace=RECORDS_NAMESPACE,
            ),
            # RBAC cannot restrict `create` by name: the authorizer does not know the name.
            PolicyRule(group="", resource="configmaps", verbs=("create",), namespace=RECORDS_NAMESPACE),
            _CREATE_EVENTS,
        ),
        *_only_for(ACCOUNT_CONTROLLERS, *_lease_rules(get_cloud_lease_name(_ANY_ACCOUNT))),
    ),
    secrets=("cloud-credential",),
)
# Subjects, and names of Kubernetes objects, contain the name of an account.
ACCOUNT_PATTERN = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
ACCOUNT_FORM = "1 to 32 lower-case letters, digits and hyphens, the first and the last no hyphen"


def is_account_name(name: str) -> bool:
    """Return whether a cloud account may have this name."""
    return re.fullmatch(ACCOUNT_PATTERN, name) is not None


def expand_cloud(account: str, *controllers: Controller) -> ServiceSpec:
    """Return the row of one account with these controllers; it publishes only about this account.

    Without a controller it has no right in Kubernetes.
    """
    names = {each.name for each in controllers}
    rules = (rule for rule in CLOUD.policy_rules if names.intersection(rule.controllers))
    return msgspec.structs.replace(
        CLOUD,
        service=f"{CLOUD.service}-{account}",
        publishes=(f"{CLOUD_REPORTS}.{account}.>", f"{PULSES}.{CLOUD.service}-{account}.>"),
        policy_rules=tuple(
            msgspec.structs.replace(
                rule,
                resource_names=tuple(name.replace(_ANY_ACCOUNT, account) for name in rule.resource_names),
            )
            for rule in rules
        ),
    )


CONSOLE_PORT = 10467  # of the page
CONSOLE_EXPOSED = "console-exposed"  # the flag that exposes it, behind a login
# It is in no list of services that do work: nothing depends on it.
CONSOLE = ServiceSpec(
    service="console",
    description="serves a read-only web page about the flow",
    input_description="follows the whole stream",
    port=10466,
    peak_mebibytes=96,
    controller=Controller(flag="console"),
    single_replica=True,
    follows=(ALL_SUBJECTS,),
    # To ask whose token a user has posted, and what that user may read.
    policy_rules=tuple(
        PolicyRule(group=f"{group}.k8s.io", resource=resource, verbs=("create",), flag=CONSOLE_EXPOSED)
        for group, resource in (
            ("authentication", "tokenreviews"),
            ("authorization", "subjectaccessreviews"),
        )
    ),
)

READER_USER = "reader"  # the NATS user with read access, for `talos-ccm` and consoles
SERVICES: tuple[ServiceSpec, ...] = (
    WATCHER,
    METADATA,
    LABELER,
    CSR,
    IPAM,
    LIFECYCLE,
)
# Those that a controller's name selects: they act on what metadata publishes.
CONTROLLER_SERVICES: tuple[ServiceSpec, ...] = tuple(spec for spec in SERVICES if spec.controller.name)
NAMED_SERVICES: tuple[ServiceSpec, ...] = (*SERVICES, CONSOLE)  # all but those of cloud accounts
SERVICE_TABLE: tuple[ServiceSpec, ...] = (*SERVICES, CLOUD, CONSOLE)
# The chart installs services that need no machine after those that do.
CHART_ORDER: tuple[ServiceSpec, ...] = tuple(
    sorted(SERVICE_TABLE, key=lambda spec: bool(spec.controller.name) and not spec.needs_talos)
)
ALL_IN_ONE_PEAK_MEBIBYTES = 146  # as `peak_mebibytes`, of one process that runs all services
DEFAULT_SERVICES: tuple[ServiceSpec, ...] = tuple(spec for spec in SERVICES if spec.runs_by_default)
# The durables of all services: the watcher creates them, and does not know which services run.
DURABLES: tuple[Durable, ...] = tuple(durable for spec in SERVICES for durable in spec.durables)
LEASES: tuple[ElectionLease, ...] = tuple(spec.lease for spec in SERVICES if spec.lease is not None)
