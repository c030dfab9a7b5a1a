"""What each service consumes, publishes, owns and may do: allow-lists and RBAC are checked against it."""

from typing import Literal

import msgspec

from libs.common.bus import Durable
from libs.common.signing_request import KUBELET_SERVING
from libs.common.subjects import (
    DEAD,
    DECIDED,
    ENRICHED_CSR,
    ENRICHED_NODE,
    FLOW,
    LEADING,
    NETWORKS,
    OBSERVED_CSR,
    OBSERVED_NODE,
    SNAPSHOT,
)

ServiceName = Literal["watcher", "metadata", "labeler", "csr", "ipam", "lifecycle"]


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """One RBAC rule, least privilege: `names` empty means every object."""

    group: str  # "" is the core group
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    namespace: str = ""  # "" = cluster scoped


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """One service's place in the flow."""

    service: ServiceName
    does: str  # in words, for --help
    hears: str  # for the documentation: in words
    durables: tuple[Durable, ...] = ()
    follows: tuple[str, ...] = ()  # filters of its ephemeral followers
    publishes: tuple[str, ...] = ()  # subject filters
    owns: tuple[str, ...] = ()  # fields and objects that nobody else writes
    provisions_stream: bool = False
    by_default: bool = True  # False: it runs only where it is asked for
    rights: tuple[Right, ...] = ()
    secrets: tuple[str, ...] = ()


LEASE_NAME = "cloud-controller-manager-talos"  # the reference's: only one of the two can lead
LEASE_NAMESPACE = "kube-system"
# Nothing else keeps ConfigMaps there: who may write pages cannot be kept, by name, from the others of a
# namespace, and in kube-system these are CoreDNS' configuration, ours, and the authority of NATS.
PAGES_NAMESPACE = "kube-node-lease"
LIFECYCLE_LEASE_NAME = "talos-ccm-lifecycle"  # who may delete Nodes: another question than who may label them
_CERTIFICATES = "certificates.k8s.io"

WATCHER = Wiring(
    service="watcher",
    does="tells the others of Nodes and requests for certificates as Kubernetes has them",
    hears="Nodes, and kubelets' CertificateSigningRequests, from the Kubernetes API",
    follows=(f"{FLOW}.>",),
    publishes=(f"{OBSERVED_NODE}.>", f"{OBSERVED_CSR}.>", SNAPSHOT, LEADING),
    owns=("stream", "durables", f"lease/{LEASE_NAMESPACE}/{LEASE_NAME}"),
    provisions_stream=True,
    rights=(
        Right(group="", resource="nodes", verbs=("list", "watch")),
        Right(group="certificates.k8s.io", resource="certificatesigningrequests", verbs=("list", "watch")),
        Right(
            group="coordination.k8s.io",
            resource="leases",
            verbs=("get", "update"),
            names=(LEASE_NAME,),
            namespace=LEASE_NAMESPACE,
        ),
        # RBAC cannot restrict `create` by name: the name is not known to the authorizer.
        Right(group="coordination.k8s.io", resource="leases", verbs=("create",), namespace=LEASE_NAMESPACE),
    ),
)

METADATA = Wiring(
    service="metadata",
    does="asks their machines over the Talos API",
    hears="observed nodes and requests for certificates; the Talos API of their machines",
    follows=(f"{FLOW}.>",),
    publishes=(
        f"{ENRICHED_NODE}.>",
        f"{ENRICHED_CSR}.>",
        NETWORKS,
        f"{DECIDED}.metadata.>",
        f"{DEAD}.metadata.>",
    ),
    secrets=("talosconfig",),
)

LABELER = Wiring(
    service="labeler",
    does="makes Nodes usable: addresses, providerID, labels, taints",
    hears="enriched nodes; follows observed ones",
    durables=(Durable(service="labeler", name="labeler-nodes", filter=f"{ENRICHED_NODE}.>"),),
    follows=(f"{FLOW}.>",),
    publishes=(f"{DECIDED}.labeler.>", f"{DEAD}.labeler.>"),
    owns=(
        "node/metadata.labels",
        "node/metadata.annotations",
        "node/spec.providerID",
        "node/spec.taints",
        "node/status.addresses",
        "node/status.conditions[TalosInitializationBlocked]",
    ),
    rights=(
        Right(group="", resource="nodes", verbs=("get", "patch")),
        Right(group="", resource="nodes/status", verbs=("patch",)),
        # Events about what lies in no namespace, such as a Node, live in `default`.
        Right(group="", resource="events", verbs=("create",), namespace="default"),
    ),
)

CSR = Wiring(
    service="csr",
    does="approves or denies what kubelets ask to serve with",
    hears="enriched requests for certificates; follows all that is known of Nodes",
    durables=(Durable(service="csr", name="csr-requests", filter=f"{ENRICHED_CSR}.>"),),
    follows=(f"{FLOW}.>",),
    publishes=(f"{DECIDED}.csr.>", f"{DEAD}.csr.>"),
    owns=("certificatesigningrequest/status.conditions",),
    rights=(
        Right(group=_CERTIFICATES, resource="certificatesigningrequests/approval", verbs=("patch",)),
        Right(group=_CERTIFICATES, resource="signers", verbs=("approve",), names=(KUBELET_SERVING,)),
        Right(group="", resource="events", verbs=("create",), namespace="default"),  # as the labeler's
    ),
)

IPAM = Wiring(
    service="ipam",
    does="gives Nodes their pod CIDRs",
    hears="enriched nodes and the cluster's networks; follows all that is known of Nodes",
    durables=(Durable(service="ipam", name="ipam-nodes", filter=f"{ENRICHED_NODE}.>"),),
    follows=(f"{FLOW}.>",),
    publishes=(f"{DECIDED}.ipam.>", f"{DEAD}.ipam.>"),
    owns=("node/spec.podCIDR", "node/spec.podCIDRs", f"configmap/{PAGES_NAMESPACE}/talos-ccm-pod-cidrs-*"),
    by_default=False,
    rights=(
        Right(group="", resource="nodes", verbs=("list", "patch")),
        # Which pages there are follows from the blocks: no list of names could be given beforehand.
        Right(
            group="",
            resource="configmaps",
            verbs=("get", "list", "create", "update"),
            namespace=PAGES_NAMESPACE,
        ),
        Right(group="", resource="events", verbs=("create",), namespace="default"),  # as the labeler's
    ),
)

LIFECYCLE = Wiring(
    service="lifecycle",
    does="deletes Nodes whose machine is proven to be gone",
    hears="all that is known of Nodes, which it follows",
    follows=(f"{FLOW}.>",),
    publishes=(f"{DECIDED}.lifecycle.>",),
    owns=(
        "node",  # whether it exists
        "node/spec.taints[node.cloudprovider.kubernetes.io/shutdown]",
        f"lease/{LEASE_NAMESPACE}/{LIFECYCLE_LEASE_NAME}",
    ),
    by_default=False,
    rights=(
        Right(group="", resource="nodes", verbs=("get", "patch", "delete")),
        Right(
            group="coordination.k8s.io",
            resource="leases",
            verbs=("get", "update"),
            names=(LIFECYCLE_LEASE_NAME,),
            namespace=LEASE_NAMESPACE,
        ),
        Right(group="coordination.k8s.io", resource="leases", verbs=("create",), namespace=LEASE_NAMESPACE),
        Right(group="", resource="events", verbs=("create",), namespace="default"),  # as the labeler's
    ),
)

READER = "reader"  # to NATS, whoever only looks: `talos-ccm`, a console
SERVICES: tuple[Wiring, ...] = (WATCHER, METADATA, LABELER, CSR, IPAM, LIFECYCLE)
BY_DEFAULT: tuple[Wiring, ...] = tuple(wiring for wiring in SERVICES if wiring.by_default)
# Of all services: the watcher, who makes them, need not know which of them run.
DURABLES: tuple[Durable, ...] = tuple(durable for wiring in SERVICES for durable in wiring.durables)
