"""Connections to the endpoints of the current credentials; new credentials get new connections."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, Literal, Self

from libs.common.clocks import loop_time
from libs.common.contract.machine import CONNECT_STEP, FaultKind, MachineFault
from libs.talos.channel import TalosChannel
from libs.talos.connection import translate_connection_error
from libs.talos.credentials import Credentials, CredentialStore
from libs.talos.endpoint_selector import EndpointSelector
from libs.talos.talosconfig import CredentialsError, Endpoint

# A machine that floods its watches fills the window of their connection. Watches have their own connections,
# so that calls do not wait.
Purpose = Literal["calls", "watches"]
PURPOSES: Final[tuple[Purpose, ...]] = ("calls", "watches")


class MachineUnavailable(Exception):
    """The machine returned no facts; `fault` has the reason."""

    def __init__(self, fault: MachineFault) -> None:
        super().__init__(f"{fault.kind}: {fault.step}: {fault.message}")
        self.fault = fault

    @classmethod
    def because(cls, kind: FaultKind, step: str, message: str, endpoint: str = "") -> Self:
        """Return the error with the fault of these parts."""
        return cls(MachineFault(kind=kind, step=step, endpoint=endpoint, message=message))


@dataclass(eq=False)
class TalosSession:
    """Provides connected channels to machines over a working endpoint, with the current credentials."""

    store: CredentialStore
    _: KW_ONLY
    clock: Callable[[], datetime]
    connect_seconds: float

    def __post_init__(self) -> None:
        self.endpoint_selector = EndpointSelector()
        self._credentials: Credentials | None = None
        self._channels: dict[tuple[Endpoint, Purpose], TalosChannel] = {}
        self._retired: list[TalosChannel] = []

    def credentials(self) -> Credentials:
        """Return the current credentials. Raises MachineUnavailable (no_endpoint)."""
        try:
            found = self.store.current(self.clock())
        except CredentialsError as error:
            raise MachineUnavailable.because("no_endpoint", "credentials", str(error)) from error
        if self._credentials is None or found.digest != self._credentials.digest:
            self._adopt(found)
        return found

    async def channel(
        self, machine: str, purpose: Purpose, *, deadline: float, without: Collection[Endpoint] = ()
    ) -> TalosChannel:
        """Return a connected channel for that machine; `deadline` is on the event loop's clock.

        A failing endpoint gets a backoff, and the next one is tried. Raises MachineUnavailable.
        """
        for is_last in (False, True):
            credentials = self.credentials()
            candidates = [
                self._channels[endpoint, purpose]
                for endpoint in self.endpoint_selector.candidates(credentials.endpoints, machine, loop_time())
                if endpoint not in without
            ]
            found = await self._first_connected(credentials, candidates, deadline)
            if isinstance(found, TalosChannel):
                return found
            if is_last or found.kind != "certificate" or not self._reload_credentials(credentials):
                raise MachineUnavailable(found)
        raise AssertionError("unreachable: the last round returns or raises")

    async def _first_connected(
        self, credentials: Credentials, channels: Sequence[TalosChannel], deadline: float
    ) -> TalosChannel | MachineFault:
        fault: MachineFault | None = None
        for channel in channels:
            try:
                if not channel.is_connected:
                    async with asyncio.timeout_at(deadline):
                        await channel.wait_connected()
            except OSError as error:  # TimeoutError and ssl.SSLError among them
                problem = credentials.problem(self.clock())
                endpoint = channel.endpoint
                fault = translate_connection_error(error, endpoint=str(endpoint), certificate_problem=problem)
                # If the attempt is still running, only the deadline of this call has ended.
                if not channel.is_connecting and credentials is self._credentials:
                    self.endpoint_selector.mark_failed(endpoint, fault, loop_time())
            else:
                self.endpoint_selector.mark_healthy(channel.endpoint)
                return channel
        return fault or self.endpoint_selector.get_first_fault(credentials.endpoints) or _NO_OTHER

    def problem(self) -> str:
        """Return why no machine can be queried, now or soon, for readiness; "" without a problem."""
        try:
            credentials = self.credentials()
        except MachineUnavailable as error:
            return error.fault.message
        outage = self.endpoint_selector.get_outage_fault(credentials.endpoints, loop_time())
        return outage.message if outage else self.store.problem

    async def close(self) -> None:
        """Close every connection; running calls fail."""
        channels = [*self._channels.values(), *self._retired]
        await asyncio.gather(*(channel.close() for channel in channels))

    def _reload_credentials(self, credentials: Credentials) -> bool:
        """Reload credentials that Talos rejected; return whether they changed."""
        try:
            self.store.reload(self.clock())
            return self.credentials().digest != credentials.digest
        except (CredentialsError, MachineUnavailable):
            return False  # the rejection has the reason; the store keeps the problem of the file

    def _adopt(self, credentials: Credentials) -> None:
        for channel in self._channels.values():
            channel.retire()
        self._retired = [one for one in (*self._retired, *self._channels.values()) if one.is_busy]
        self._credentials = credentials
        self._channels = {
            (endpoint, purpose): TalosChannel(endpoint, credentials, connect_seconds=self.connect_seconds)
            for endpoint in credentials.endpoints
            for purpose in PURPOSES
        }
        self.endpoint_selector.reset()


_NO_OTHER = MachineFault(
    kind="no_endpoint", step=CONNECT_STEP, message="no other Talos endpoint is left to ask"
)
