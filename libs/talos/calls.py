"""Makes one Talos call to one machine: retries it once after a lost connection, times and parses it."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import TypeVar

from libs.common.clocks import loop_time
from libs.common.contract.machine import MachineFault
from libs.talos.channel import CallEnded, StreamLost, TalosChannel
from libs.talos.cosi_messages import Resource
from libs.talos.faults import translate_status
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import GET, LIST, ResourceRef
from libs.talos.session import MachineUnavailable, TalosSession
from libs.talos.talosconfig import Endpoint
from libs.talos.validation import parse_resources

T = TypeVar("T")

Observe = Callable[[str, float, bool], None]  # request name, seconds, whether it failed
TraceHeaders = Callable[[], Mapping[str, str]]  # headers of the caller's span, such as traceparent


@dataclass(eq=False)
class TalosCalls:
    """Get and List over a session. An empty machine name means the endpoint itself."""

    session: TalosSession
    _: KW_ONLY
    observe: Observe
    trace_headers: TraceHeaders

    async def query(
        self,
        ref: ResourceRef,
        machine: str,
        deadline: float,
        read: Callable[[list[Resource]], T],
        *,
        absent: Callable[[], T] | None = None,
    ) -> T:
        """Make one call and return the parsed response.

        Return `absent()` if the resource does not exist and that is no fault.

        `deadline` is on the event loop's clock. Raises MachineUnavailable.
        """
        started = loop_time()
        try:
            found = await self._read(ref, machine, deadline, read, absent)
        except MachineUnavailable:  # a cancelled query is not observed
            self.observe(ref.metric_label, loop_time() - started, True)
            raise
        self.observe(ref.metric_label, loop_time() - started, False)
        return found

    async def _read(
        self,
        ref: ResourceRef,
        machine: str,
        deadline: float,
        read: Callable[[list[Resource]], T],
        absent: Callable[[], T] | None,
    ) -> T:
        refusing: dict[Endpoint, MachineFault] = {}
        lost: StreamLost | None = None
        while True:
            channel = await self._channel(machine, deadline, refusing)
            route = f"{channel.endpoint} for {machine}" if machine else str(channel.endpoint)
            try:
                answers = await channel.collect(
                    *_encode_request(ref),
                    self.build_headers(machine),
                    deadline_seconds=max(0.0, deadline - loop_time()),
                )
                return read(parse_resources(ref, answers))
            except CallEnded as ended:
                if ended.status.is_absent and absent is not None:
                    return absent()
                fault = translate_status(ended.status, step=ref.step, asked=route)
                if not ended.status.is_endpoint_error:
                    raise MachineUnavailable(fault) from ended
                refusing[channel.endpoint] = fault
            except StreamLost as error:
                if lost is not None:
                    message = f"connection lost twice: {error}"
                    raise MachineUnavailable.because("refused", ref.step, message, route) from error
                lost = error
            except InvalidResponse as error:
                raise MachineUnavailable.because("invalid", ref.step, str(error), route) from error
            except TimeoutError as error:
                message = "no answer in time"
                raise MachineUnavailable.because("timeout", ref.step, message, route) from error

    async def _channel(
        self, machine: str, deadline: float, refusing: dict[Endpoint, MachineFault]
    ) -> TalosChannel:
        try:
            return await self.session.channel(machine, "calls", deadline=deadline, without=refusing)
        except MachineUnavailable as error:
            for fault in refusing.values():  # it says more than the lack of another endpoint
                raise MachineUnavailable(fault) from error
            raise

    def build_headers(self, machine: str) -> dict[str, str]:
        """Return the headers of a call: apid routes by `node` and forwards all other headers."""
        return {**self.trace_headers(), **({"node": machine} if machine else {})}


@cache
def _encode_request(ref: ResourceRef) -> tuple[str, bytes]:
    return (GET, ref.get()) if ref.id else (LIST, ref.list())
