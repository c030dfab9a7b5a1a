"""The data of all checks at one moment: each part, or why it is unavailable. Pure."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from cli.cluster.certificate_signing_request import CertificateSigningRequest
from cli.cluster.installation import Installation
from cli.cluster.kube_objects import LeaseItem, PodEvent, TalosAccount, Workload
from cli.cluster.pods import Pod
from cli.cluster.unavailable import NOT_QUERIED, AbsentObject, RemoteClock, Unavailable
from cli.doctor.required_permissions import AccessReviewResult
from cli.doctor.talos_credential_report import TalosCredentialReport
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from libs.common.contract.node import Node


class InstallationSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The data about one installation at one moment."""

    at: datetime
    version: str  # of this command
    installation: Installation
    others: tuple[Installation, ...] = ()  # further installations of this project
    workloads: tuple[Workload, ...] = ()
    everywhere: bool = True  # the workloads of all namespaces are known
    everywhere_why: str = ""  # why they are not known
    pods: tuple[Pod, ...] | Unavailable = NOT_QUERIED  # in its namespace
    system_pods: tuple[Pod, ...] | Unavailable = NOT_QUERIED  # in kube-system
    last_lines: Mapping[str, str] = {}  # of unready pods, by name
    events: tuple[PodEvent, ...] = ()  # of unready pods
    nodes: tuple[Node, ...] | Unavailable = NOT_QUERIED
    requests: tuple[CertificateSigningRequest, ...] | Unavailable = NOT_QUERIED
    # by Node without a request: whether its kubelet requests serving certificates
    serving: Mapping[str, bool | Unavailable] = {}
    config: str | AbsentObject | Unavailable = NOT_QUERIED
    reviews: tuple[AccessReviewResult, ...] | Unavailable = NOT_QUERIED
    # Roles and bindings of missing permissions, by path: whether they exist
    objects_there: Mapping[str, bool] = {}
    talos_account: TalosAccount | AbsentObject | Unavailable = NOT_QUERIED
    talos_kind: bool = True  # whether the cluster has the kind ServiceAccount of talos.dev
    talos_service: bool | Unavailable = NOT_QUERIED  # whether the Service default/talos exists
    talos: TalosCredentialReport | Unavailable = NOT_QUERIED
    server_clock: RemoteClock | Unavailable = NOT_QUERIED
    pod_clock: RemoteClock | Unavailable = NOT_QUERIED
    flow: FlowSnapshot | FlowUnavailable = FlowUnavailable(reason="not queried")
    authority: str | AbsentObject | Unavailable = NOT_QUERIED  # the certificate of the NATS authority, PEM
    leases: tuple[LeaseItem, ...] | Unavailable = NOT_QUERIED  # of kube-system and the watcher's namespace
    namespace_labels: Mapping[str, str] | Unavailable = NOT_QUERIED

    @property
    def now(self) -> datetime:
        """Return the time by the API server's clock, which most writers follow; else the local time."""
        clock = self.server_clock
        return self.at if isinstance(clock, Unavailable) else self.at + (clock.earliest - clock.responded_at)
