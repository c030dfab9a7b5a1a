"""All that the checks are made of, as it was gathered; what was not, and why. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from cli.doctor.installation import Installation
from cli.doctor.objects import LeaseItem, Pod, PodEvent, TalosAccount, Workload
from cli.doctor.rights import Reviewed
from cli.doctor.talos_seen import TalosSeen
from cli.explain.filed import Filed
from cli.inside.seen import FlowSeen, Unknown
from libs.common.node import Node

T = TypeVar("T")


class NotSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Why something could not be looked at."""

    why: str
    right: str = (
        ""  # which one is missing, as `kubectl auth can-i` takes it: "list pods --namespace kube-system"
    )

    @property
    def fix(self) -> str:
        """What would make it known."""
        if self.right:
            return "ask as somebody who may, or be given that right"
        return "ask again once that is mended"

    @property
    def commands(self) -> tuple[str, ...]:
        """How to see whether one may."""
        return (f"kubectl auth can-i {self.right}",) if self.right else ()


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's clock, asked between two moments of ours."""

    said_from: datetime  # what they say it is, at least
    said_until: datetime  # and at most
    asked: datetime
    answered: datetime


class Absent(msgspec.Struct, frozen=True):
    """It was looked for, and it is not there."""


NOT_ASKED = NotSeen(why="nobody has asked")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Of one installation, at one moment."""

    at: datetime
    version: str  # of this command
    installation: Installation
    others: tuple[Installation, ...] = ()  # of ours, beside it
    workloads: tuple[Workload, ...] = ()
    everywhere: bool = True  # the workloads of all namespaces are known
    everywhere_why: str = ""  # why not
    pods: tuple[Pod, ...] | NotSeen = NOT_ASKED  # of its namespace
    system_pods: tuple[Pod, ...] | NotSeen = NOT_ASKED  # there and in kube-system
    last_lines: Mapping[str, str] = {}  # of pods that are not ready, by name
    events: tuple[PodEvent, ...] = ()  # of pods that are not ready
    nodes: tuple[Node, ...] | NotSeen = NOT_ASKED
    requests: tuple[Filed, ...] | NotSeen = NOT_ASKED
    serving: Mapping[str, bool | NotSeen] = {}  # by Node without a request: its kubelet is to ask for one
    config: str | Absent | NotSeen = NOT_ASKED
    reviews: tuple[Reviewed, ...] | NotSeen = NOT_ASKED
    objects_there: Mapping[str, bool] = {}  # Roles and bindings by path, of those that are missed
    talos_account: TalosAccount | Absent | NotSeen = NOT_ASKED
    talos_kind: bool = True  # whether the cluster knows ServiceAccounts of talos.dev
    talos_service: bool | NotSeen = NOT_ASKED  # whether default/talos is there
    talos: TalosSeen | NotSeen = NOT_ASKED
    server_clock: Moment | NotSeen = NOT_ASKED
    pod_clock: Moment | NotSeen = NOT_ASKED
    flow: FlowSeen | Unknown = Unknown(reason="nobody has asked")
    authority: str | Absent | NotSeen = NOT_ASKED  # of NATS: its certificate, PEM
    leases: tuple[LeaseItem, ...] | NotSeen = NOT_ASKED  # of kube-system
    namespace_labels: Mapping[str, str] | NotSeen = NOT_ASKED

    @property
    def now(self) -> datetime:
        """By the API server's clock, which those who write times keep to; by ours, where it is not known."""
        clock = self.server_clock
        return self.at if isinstance(clock, NotSeen) else self.at + (clock.said_from - clock.answered)
