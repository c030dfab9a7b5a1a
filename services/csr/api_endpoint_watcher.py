"""Reads the API server's certificate periodically, on a separate connection that needs no permission."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from random import Random
from typing import Final

from libs.common.bus.delivery import backoff_seconds
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.server_identity import ServerIdentity
from services.csr.core.decision import ApiEndpoint

log = logging.getLogger(__name__)

READ_INTERVAL_SECONDS: Final = 60.0  # each handshake may reach another API server, or a renewed certificate
# A short interval at the start finds the API servers behind a load balancer within seconds.
FIRST_READS: Final = 10
FIRST_READ_INTERVAL_SECONDS: Final = 1.0
_MAX_BACKOFF_SECONDS: Final = 30.0
# since the last handshake that showed an identity; a load balancer may hide a server for hours
RETENTION_SECONDS: Final = 86_400.0
_MAX_IDENTITIES: Final = 32  # a cluster has up to seven API servers, which renew rarely
_NOT_READ: Final = "the certificate of the API server has not been read yet"


@dataclass(eq=False)
class ApiEndpointWatcher:
    """Keeps the identities of the API servers. A failed handshake keeps the known identities."""

    kube: KubeApi
    _: KW_ONLY
    on_change: Callable[[], None]  # called when the set of known identities changes
    clock: Callable[[], float]  # monotonic, in seconds
    random: Random

    def __post_init__(self) -> None:
        self._seen_at: dict[ServerIdentity, float] = {}
        self._reads = 0
        self._failures = 0
        self.endpoint = ApiEndpoint()

    async def run(self) -> None:
        """Read the certificate periodically until cancelled."""
        while True:
            wait_seconds = await self.read()
            await asyncio.sleep(wait_seconds)

    async def read(self) -> float:
        """Read the certificate once; return the seconds until the next read."""
        try:
            identity = await self.kube.fetch_server_identity()
        except KubeError as error:
            self._failures += 1
            if error.message != self.endpoint.fault:
                log.warning("cannot read the certificate of the API server", extra={"reason": error.message})
            self.endpoint = ApiEndpoint(identities=self.endpoint.identities, fault=error.message)
            return min(backoff_seconds(self._failures, self.random.random()), _MAX_BACKOFF_SECONDS)
        self._failures = 0
        self._reads += 1
        self._seen_at = add_handshake(self._seen_at, identity, self.clock())
        before, self.endpoint = self.endpoint, ApiEndpoint(identities=tuple(self._seen_at))
        if set(before.identities) != set(self.endpoint.identities):
            fields = {"names": sorted(identity.names), "addresses": sorted(identity.addresses)}
            log.info("API server certificate read", extra=fields)
            self.on_change()
        return FIRST_READ_INTERVAL_SECONDS if self._reads < FIRST_READS else READ_INTERVAL_SECONDS

    def problems(self) -> tuple[str, ...]:
        """Return why requests wait until an operator acts or the API server answers."""
        if self.endpoint.identities:
            return ()
        why = f" ({self.endpoint.fault})" if self.endpoint.fault else ""
        return (f"{_NOT_READ}{why}: requests for more than a node name wait until then",)


def add_handshake(
    seen_at: Mapping[ServerIdentity, float], identity: ServerIdentity, now: float
) -> dict[ServerIdentity, float]:
    """Return the identities with the monotonic time of their last handshake, after one with `identity`.

    They are in the order of their last handshakes. Those without a handshake for a day expire, except the
    newest.
    """
    others = [each for each in seen_at.items() if each[0] != identity][1 - _MAX_IDENTITIES :]
    return {each: at for each, at in others if now - at < RETENTION_SECONDS} | {identity: now}
