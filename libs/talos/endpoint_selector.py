"""Selects the Talos endpoint for each machine: always the same one while it is healthy."""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from libs.common.bus.delivery import exponential_step
from libs.common.contract.machine import MachineFault
from libs.talos.talosconfig import Endpoint

BACKOFF_FIRST_SECONDS: Final = 0.25
BACKOFF_CAP_SECONDS: Final = 5.0
MAX_DETOURS: Final = 10_000
UNTRIED_SECONDS: Final = 10.0  # an outage lasts until the next attempt, which may start this late


class _Backoff(msgspec.Struct, frozen=True):
    until: float
    failures: int
    fault: MachineFault


class EndpointSelector:
    """Records failing endpoints, and machines that an endpoint could not reach.

    A control plane keeps a connection to each queried machine, so a hash selects the endpoint of a machine
    permanently. `now` is monotonic, in seconds.
    """

    def __init__(self) -> None:
        self._backoffs: dict[Endpoint, _Backoff] = {}
        self._detours: dict[str, int] = {}

    def candidates(self, endpoints: Sequence[Endpoint], machine: str, now: float) -> list[Endpoint]:
        """Return the endpoints to try in order, failing ones last; none if all are in backoff."""
        order = sorted(endpoints, key=lambda one: (crc32(f"{one}|{machine}".encode()), str(one)))
        turn = self._detours.get(machine, 0) % max(1, len(order))
        order = order[turn:] + order[:turn]
        free = [one for one in order if self._is_free(one, now)]
        # Tried only after a free one has failed: an endpoint in backoff may be back.
        return free and [*free, *(one for one in order if one not in free)]

    def mark_failed(self, endpoint: Endpoint, fault: MachineFault, now: float) -> None:
        """Start a backoff after a failed connection: 0.25 s, doubled up to 5 s while it fails."""
        if not self._is_free(endpoint, now):
            return  # each waiter of one attempt reports it
        failures = self._backoffs[endpoint].failures + 1 if endpoint in self._backoffs else 1
        wait = exponential_step(failures, first=BACKOFF_FIRST_SECONDS, cap=BACKOFF_CAP_SECONDS)
        self._backoffs[endpoint] = _Backoff(until=now + wait, failures=failures, fault=fault)

    def mark_healthy(self, endpoint: Endpoint) -> None:
        """End the backoff after a successful connection."""
        self._backoffs.pop(endpoint, None)

    def use_next_endpoint(self, machine: str) -> None:
        """Use the next endpoint for a machine that was not reached: it may have another route."""
        if len(self._detours) >= MAX_DETOURS and machine not in self._detours:
            self._detours.clear()
        self._detours[machine] = self._detours.get(machine, 0) + 1

    def get_first_fault(self, endpoints: Sequence[Endpoint]) -> MachineFault | None:
        """Return the fault of the endpoint whose backoff ends first."""
        asides = [self._backoffs[endpoint] for endpoint in endpoints if endpoint in self._backoffs]
        return min(asides, key=lambda aside: aside.until).fault if asides else None

    def get_outage_fault(self, endpoints: Sequence[Endpoint], now: float) -> MachineFault | None:
        """Return why no endpoint is reachable; None if one is, or has not been tried for a while."""
        asides = [self._backoffs.get(endpoint) for endpoint in endpoints]
        refuse = all(aside is not None and now < aside.until + UNTRIED_SECONDS for aside in asides)
        return self.get_first_fault(endpoints) if refuse else None

    def reset(self) -> None:
        """Forget all backoffs, because new credentials may be accepted."""
        self._backoffs.clear()

    def _is_free(self, endpoint: Endpoint, now: float) -> bool:
        aside = self._backoffs.get(endpoint)
        return aside is None or aside.until <= now
