"""The interface of a service, its dependencies, its definition for a process, and how to run its parts."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from libs.common.bus.protocol import Bus
from libs.common.contract.services import ServiceSpec

if TYPE_CHECKING:  # metadata has no Kubernetes rights and never loads the Kubernetes client
    from libs.common.kube.api import KubeApi

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


class ServiceEnded(Exception):
    """Raised by `Service.run` to end the process without a defect, such as a lost Lease. Exit status 1."""


class Service(Protocol):
    """One service, built without I/O; it runs until cancelled."""

    spec: ServiceSpec

    async def run(self) -> None:
        """Run until cancelled; then finish the work in flight and return or raise CancelledError.

        An exception ends the whole process: raise one only if a restart is necessary.
        """

    def problems(self) -> tuple[str, ...]:
        """Return why the service is not ready, in words for /readyz?verbose; empty if it is ready."""


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a process passes to a service: bus, Kubernetes client, clocks, randomness and identity."""

    bus: Bus
    kube: "KubeApi | None"  # None for a service whose spec has no policy rules
    monotonic: Callable[[], float]
    now: Callable[[], datetime]  # UTC
    random: random.Random
    identity: str  # "<host>_<uuid>", as in client-go's Leases

    def require_kube(self) -> "KubeApi":
        """Return the Kubernetes API. Raises LookupError for a service whose spec has no policy rules."""
        if self.kube is None:
            raise LookupError("this service has no policy rules in its spec, so it gets no Kubernetes client")
        return self.kube


@dataclass(frozen=True, kw_only=True)
class ServiceDefinition(Generic[SettingsT]):
    """The spec, the settings type and the constructor of a service."""

    spec: ServiceSpec
    settings: type[SettingsT]
    build: Callable[[Dependencies, SettingsT], Service]
    # Returns the services that run in place of this one with these settings, such as one for each account.
    expand: "Callable[[SettingsT], tuple[ServiceDefinition[SettingsT], ...]] | None" = None


async def run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all parts until they return; the failure of one cancels the others and raises an ExceptionGroup."""
    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part)


async def run_every(seconds: float, work: Callable[[], None]) -> NoReturn:
    """Call `work` after each interval, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        work()
