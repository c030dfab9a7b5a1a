"""One question to one machine: asked, tried again once if its connection died, timed, read."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from typing import NoReturn, TypeVar

from libs.common.machine import FaultKind, MachineFault
from services.metadata.talos_api.channel import CallEnded, StreamLost, TalosChannel
from services.metadata.talos_api.checked import Unreadable
from services.metadata.talos_api.faults import fault_of_status
from services.metadata.talos_api.resources import GET, LIST, Asked
from services.metadata.talos_api.session import MachineUnavailable, TalosSession
from services.metadata.talos_api.talosconfig import Endpoint

T = TypeVar("T")

Observe = Callable[[str, float, bool], None]  # the request's name, its seconds, whether it failed
TraceHeaders = Callable[[], Mapping[str, str]]  # of the span in which the caller is, such as traceparent


class TalosCalls:
    """Get and List over a session. An empty machine is the endpoint's own."""

    def __init__(self, session: TalosSession, *, observe: Observe, trace_headers: TraceHeaders) -> None:
        self._session = session
        self._observe = observe
        self._trace_headers = trace_headers

    async def ask(
        self,
        asked: Asked,
        machine: str,
        deadline: float,
        read: Callable[[list[bytes]], T],
        *,
        absent: Callable[[], T] | None = None,
    ) -> T:
        """What `read` makes of the answer, or `absent()` if the resource does not exist and that is no fault.

        `deadline` is on the event loop's clock. Raises MachineUnavailable.
        """
        started = _now()
        try:
            found = await self._read(asked, machine, deadline, read, absent)
        except MachineUnavailable:  # a cancelled question is neither answered nor failed
            self._observe(asked.request, _now() - started, True)
            raise
        self._observe(asked.request, _now() - started, False)
        return found

    async def _read(
        self,
        asked: Asked,
        machine: str,
        deadline: float,
        read: Callable[[list[bytes]], T],
        absent: Callable[[], T] | None,
    ) -> T:
        refusing: dict[Endpoint, MachineFault] = {}
        lost: StreamLost | None = None
        while True:
            channel = await self._channel(machine, deadline, refusing)
            try:
                return read(await self._answers(channel, asked, machine, deadline))
            except CallEnded as ended:
                if ended.status.is_absent and absent is not None:
                    return absent()
                fault = fault_of_status(ended.status, step=asked.step, asked=_at(channel, machine))
                if not ended.status.is_of_the_endpoint:
                    raise MachineUnavailable(fault) from ended
                refusing[channel.endpoint] = fault
            except StreamLost as error:
                if lost is not None:
                    unavailable("refused", asked, channel, machine, f"connection lost twice: {error}", error)
                lost = error
            except Unreadable as error:
                unavailable("invalid", asked, channel, machine, str(error), error)
            except TimeoutError as error:
                unavailable("timeout", asked, channel, machine, "no answer in time", error)

    async def _channel(
        self, machine: str, deadline: float, refusing: dict[Endpoint, MachineFault]
    ) -> TalosChannel:
        try:
            return await self._session.channel(machine, "calls", deadline=deadline, without=refusing)
        except MachineUnavailable as error:
            for fault in refusing.values():  # says more than that no other endpoint is left
                raise MachineUnavailable(fault) from error
            raise

    async def _answers(
        self, channel: TalosChannel, asked: Asked, machine: str, deadline: float
    ) -> list[bytes]:
        path, request = _encoded(asked)
        return await channel.collect(
            path, request, self.headers(machine), deadline_seconds=max(0.0, deadline - _now())
        )

    def headers(self, machine: str) -> dict[str, str]:
        """What routes a call: apid reads `node`, one machine per call, and passes all other headers on."""
        return {**self._trace_headers(), **({"node": machine} if machine else {})}


def unavailable(  # noqa: PLR0917 - a fault is these words in this order
    kind: FaultKind, asked: Asked, channel: TalosChannel, machine: str, message: str, cause: Exception | None
) -> NoReturn:
    """Raise MachineUnavailable about that question."""
    fault = MachineFault(kind=kind, step=asked.step, endpoint=_at(channel, machine), message=message)
    raise MachineUnavailable(fault) from cause


def _at(channel: TalosChannel, machine: str) -> str:
    return f"{channel.endpoint} for {machine}" if machine else str(channel.endpoint)


@cache
def _encoded(asked: Asked) -> tuple[str, bytes]:
    return (GET, asked.get()) if asked.id else (LIST, asked.list())


def _now() -> float:
    return asyncio.get_running_loop().time()
