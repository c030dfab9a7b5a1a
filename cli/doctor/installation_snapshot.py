"""All that the checks are made of, as it was gathered; what was not, and why. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from cli.doctor.installation import Installation
from cli.doctor.kube_objects import LeaseItem, Pod, PodEvent, TalosAccount, Workload
from cli.doctor.required_permissions import AccessReviewResult
from cli.doctor.talos_credential_report import TalosCredentialReport
from cli.explain.certificate_signing_request import CertificateSigningRequest
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from libs.common.contract.node import Node

T = TypeVar("T")


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """Why something could not be looked at."""

    reason: str
    required_permission: str = (
        ""  # which one is missing, as `kubectl auth can-i` takes it: "list pods --namespace kube-system"
    )

    @property
    def fix(self) -> str:
        """What would make it known."""
        if self.required_permission:
            return "ask as somebody who may, or be given that right"
        return "ask again once that is mended"

    @property
    def commands(self) -> tuple[str, ...]:
        """How to see whether one may."""
        return (f"kubectl auth can-i {self.required_permission}",) if self.required_permission else ()


class RemoteClock(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's clock, asked between two moments of ours."""

    earliest: datetime  # what they say it is, at least
    latest: datetime  # and at most
    requested_at: datetime
    responded_at: datetime


class AbsentObject(msgspec.Struct, frozen=True):
    """It was looked for, and it is not there."""


NOT_QUERIED = Unavailable(reason="nobody has asked")


class InstallationSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Of one installation, at one moment."""

    at: datetime
    version: str  # of this command
    installation: Installation
    others: tuple[Installation, ...] = ()  # of ours, beside it
    workloads: tuple[Workload, ...] = ()
    everywhere: bool = True  # the workloads of all namespaces are known
    everywhere_why: str = ""  # why not
    pods: tuple[Pod, ...] | Unavailable = NOT_QUERIED  # of its namespace
    system_pods: tuple[Pod, ...] | Unavailable = NOT_QUERIED  # there and in kube-system
    last_lines: Mapping[str, str] = {}  # of pods that are not ready, by name
    events: tuple[PodEvent, ...] = ()  # of pods that are not ready
    nodes: tuple[Node, ...] | Unavailable = NOT_QUERIED
    requests: tuple[CertificateSigningRequest, ...] | Unavailable = NOT_QUERIED
    serving: Mapping[str, bool | Unavailable] = {}  # by Node without a request: its kubelet is to ask for one
    config: str | AbsentObject | Unavailable = NOT_QUERIED
    reviews: tuple[AccessReviewResult, ...] | Unavailable = NOT_QUERIED
    objects_there: Mapping[str, bool] = {}  # Roles and bindings by path, of those that are missed
    talos_account: TalosAccount | AbsentObject | Unavailable = NOT_QUERIED
    talos_kind: bool = True  # whether the cluster knows ServiceAccounts of talos.dev
    talos_service: bool | Unavailable = NOT_QUERIED  # whether default/talos is there
    talos: TalosCredentialReport | Unavailable = NOT_QUERIED
    server_clock: RemoteClock | Unavailable = NOT_QUERIED
    pod_clock: RemoteClock | Unavailable = NOT_QUERIED
    flow: FlowSnapshot | FlowUnavailable = FlowUnavailable(reason="nobody has asked")
    authority: str | AbsentObject | Unavailable = NOT_QUERIED  # of NATS: its certificate, PEM
    leases: tuple[LeaseItem, ...] | Unavailable = NOT_QUERIED  # of kube-system
    namespace_labels: Mapping[str, str] | Unavailable = NOT_QUERIED

    @property
    def now(self) -> datetime:
        """By the API server's clock, which those who write times keep to; by ours, where it is not known."""
        clock = self.server_clock
        return self.at if isinstance(clock, Unavailable) else self.at + (clock.earliest - clock.responded_at)
