"""The snapshot that the checks evaluate: that of the cluster, and the details of one installation. Pure."""

from collections.abc import Mapping

import msgspec

from cli.cluster.installation import Installation
from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_objects import TalosAccount, Workload
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.cluster.snapshot import ClusterSnapshot
from cli.cluster.unavailable import NOT_QUERIED, RemoteClock, Unavailable
from cli.doctor.required_permissions import AccessReview
from cli.inside.talos_credential import TalosCredentialReport
from libs.common.contract.kube_service import KubeService


class AccessReviews(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all reviews; of missing permissions, whether Role and binding exist, by path."""

    results: tuple[AccessReview, ...] = ()
    existing: Mapping[str, bool] = {}


class UnreadyPods(msgspec.Struct, frozen=True, kw_only=True):
    """The Events and the last log lines of unready pods, the lines by the pod's name."""

    events: tuple[KubeEvent, ...] = ()
    last_lines: Mapping[str, str] = {}


class TalosObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of Talos in Kubernetes."""

    account: TalosAccount | Unavailable | None = NOT_QUERIED
    has_kind: bool = True  # whether the cluster has the kind ServiceAccount of talos.dev
    has_service: bool | Unavailable = NOT_QUERIED  # whether the Service default/talos exists


class CredentialProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The credential report of metadata's pod, and the pod's clock."""

    report: TalosCredentialReport
    clock: RemoteClock


class InstallationSnapshot(ClusterSnapshot, frozen=True, kw_only=True):
    """The state of one installation."""

    version: str  # of this command
    installation: Installation
    others: tuple[Installation, ...] = ()  # further installations of this project
    workloads: tuple[Workload, ...] = ()
    is_cluster_wide: bool = True  # the workloads of all namespaces are known
    unready: UnreadyPods = UnreadyPods()
    system_pods: tuple[Pod, ...] | Unavailable = NOT_QUERIED  # in kube-system
    upstream_leases: tuple[LeaseState, ...] | Unavailable = NOT_QUERIED  # of other cloud controllers
    services: tuple[KubeService, ...] | Unavailable = ()  # () also where no account makes load balancers
    # by Node without a request: whether its kubelet requests serving certificates
    serving: Mapping[str, bool | Unavailable] = {}
    reviews: AccessReviews | Unavailable = NOT_QUERIED
    talos_objects: TalosObjects = TalosObjects()
    talos: CredentialProbe | Unavailable = NOT_QUERIED
    clock: RemoteClock | Unavailable = NOT_QUERIED  # of the API server
    authority: str | Unavailable | None = NOT_QUERIED  # PEM of the NATS authority; None: it is absent
    namespace_labels: Mapping[str, str] | Unavailable = NOT_QUERIED
