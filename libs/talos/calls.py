"""One question to one machine: asked, tried again once if its connection died, timed, read."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from typing import NoReturn, TypeVar

from libs.common.contract.machine import FaultKind, MachineFault
from libs.talos.channel import CallEnded, StreamLost, TalosChannel
from libs.talos.faults import translate_status
from libs.talos.resources import GET, LIST, ResourceRef
from libs.talos.session import MachineUnavailable, TalosSession
from libs.talos.talosconfig import Endpoint
from libs.talos.validation import InvalidResponse

T = TypeVar("T")

Observe = Callable[[str, float, bool], None]  # the request's name, its seconds, whether it failed
TraceHeaders = Callable[[], Mapping[str, str]]  # of the span in which the caller is, such as traceparent


class TalosCalls:
    """Get and List over a session. An empty machine is the endpoint's own."""

    def __init__(self, session: TalosSession, *, observe: Observe, trace_headers: TraceHeaders) -> None:
        self._session = session
        self._observe = observe
        self._trace_headers = trace_headers

    async def query(
        self,
        ref: ResourceRef,
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
            found = await self._read(ref, machine, deadline, read, absent)
        except MachineUnavailable:  # a cancelled question is neither answered nor failed
            self._observe(ref.metric_label, _now() - started, True)
            raise
        self._observe(ref.metric_label, _now() - started, False)
        return found

    async def _read(
        self,
        ref: ResourceRef,
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
                return read(await self._collect(channel, ref, machine, deadline))
            except CallEnded as ended:
                if ended.status.is_absent and absent is not None:
                    return absent()
                fault = translate_status(ended.status, step=ref.step, asked=_describe_route(channel, machine))
                if not ended.status.is_endpoint_error:
                    raise MachineUnavailable(fault) from ended
                refusing[channel.endpoint] = fault
            except StreamLost as error:
                if lost is not None:
                    raise_unavailable(
                        "refused", ref, channel, machine, f"connection lost twice: {error}", error
                    )
                lost = error
            except InvalidResponse as error:
                raise_unavailable("invalid", ref, channel, machine, str(error), error)
            except TimeoutError as error:
                raise_unavailable("timeout", ref, channel, machine, "no answer in time", error)

    async def _channel(
        self, machine: str, deadline: float, refusing: dict[Endpoint, MachineFault]
    ) -> TalosChannel:
        try:
            return await self._session.channel(machine, "calls", deadline=deadline, without=refusing)
        except MachineUnavailable as error:
            for fault in refusing.values():  # says more than that no other endpoint is left
                raise MachineUnavailable(fault) from error
            raise

    async def _collect(
        self, channel: TalosChannel, ref: ResourceRef, machine: str, deadline: float
    ) -> list[bytes]:
        path, request = _encode_request(ref)
        return await channel.collect(
            path, request, self.build_headers(machine), deadline_seconds=max(0.0, deadline - _now())
        )

    def build_headers(self, machine: str) -> dict[str, str]:
        """What routes a call: apid reads `node`, one machine per call, and passes all other headers on."""
        return {**self._trace_headers(), **({"node": machine} if machine else {})}


def raise_unavailable(  # noqa: PLR0917 - a fault is these words in this order
    kind: FaultKind,
    ref: ResourceRef,
    channel: TalosChannel,
    machine: str,
    message: str,
    cause: Exception | None,
) -> NoReturn:
    """Raise MachineUnavailable about that question."""
    fault = MachineFault(
        kind=kind, step=ref.step, endpoint=_describe_route(channel, machine), message=message
    )
    raise MachineUnavailable(fault) from cause


def _describe_route(channel: TalosChannel, machine: str) -> str:
    return f"{channel.endpoint} for {machine}" if machine else str(channel.endpoint)


@cache
def _encode_request(ref: ResourceRef) -> tuple[str, bytes]:
    return (GET, ref.get()) if ref.id else (LIST, ref.list())


def _now() -> float:
    return asyncio.get_running_loop().time()
