"""What a service is, what it is given, and how a process is told to run it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from libs.common.bus.protocol import Bus
from libs.common.service.service_spec import ServiceSpec

if TYPE_CHECKING:  # metadata has no Kubernetes rights and never loads the Kubernetes client
    from libs.common.kube.api import KubeApi

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


class ServiceEnded(Exception):
    """Raised by `Service.run`: the process must end, and that is no defect (a lost Lease). Exit status 1."""


class Service(Protocol):
    """One service: built without I/O, run until cancelled."""

    spec: ServiceSpec

    async def run(self) -> None:
        """Work until cancelled; then finish what is in flight and return or raise CancelledError.

        An exception ends the whole process: raise only when nothing but a new process can help.
        """

    def problems(self) -> tuple[str, ...]:
        """Why the service is not ready, in words for /readyz?verbose; empty when it is."""


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a process gives its service: the outside world, time, randomness and identity."""

    bus: Bus
    kube: "KubeApi | None"  # None for a service whose wiring names no Kubernetes right
    monotonic: Callable[[], float]
    now: Callable[[], datetime]  # UTC
    random: random.Random
    identity: str  # "<host>_<uuid>", as in client-go's Leases

    def require_kube(self) -> "KubeApi":
        """The Kubernetes API. Raises LookupError for a service whose wiring names no right."""
        if self.kube is None:
            raise LookupError("this service has no Kubernetes rights in its wiring, so it gets no client")
        return self.kube


@dataclass(frozen=True, kw_only=True)
class ServiceDefinition(Generic[SettingsT]):
    """A service as `run_process` needs it."""

    spec: ServiceSpec
    settings: type[SettingsT]
    build: Callable[[Dependencies, SettingsT], Service]
    controller: str = ""  # of --controllers, without which the all-in-one leaves it out; "" = always
    is_enabled: Callable[[SettingsT], bool] = lambda settings: True  # whether the all-in-one runs it
