"""The API servers that were met lately, and what belongs to each by its certificate."""

from collections.abc import Iterator
from typing import Final

import msgspec

from libs.common.kube_api.server_identity import ServerIdentity

KEPT_SECONDS: Final = 900.0  # an API server not met for that long is forgotten: its address may be another's
_MOST_KEPT: Final = 32


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint of the Kubernetes API. Without identities it is not known."""

    identities: tuple[ServerIdentity, ...] = ()
    fault: str = ""  # why the last attempt to read a certificate failed

    def has_name(self, dns: str) -> bool:
        """Whether a certificate has that DNS name, in any case."""
        return any(dns.lower() in each.names for each in self.identities)

    def has_address(self, ip: str) -> bool:
        """Whether a certificate has that address, in canonical form."""
        return any(ip in each.addresses for each in self.identities)


class MetServers:
    """Identities with the monotonic time at which each was last presented. The newest one is always kept."""

    def __init__(self) -> None:
        self._met: dict[ServerIdentity, float] = {}

    def add(self, identity: ServerIdentity, at: float) -> None:
        """That certificate was presented then."""
        self._met.pop(identity, None)
        self._met = dict(self._recent(at))
        self._met[identity] = at

    @property
    def identities(self) -> tuple[ServerIdentity, ...]:
        """In the order in which they were last met."""
        return tuple(self._met)

    def _recent(self, at: float) -> Iterator[tuple[ServerIdentity, float]]:
        for identity, met_at in list(self._met.items())[1 - _MOST_KEPT :]:
            if at - met_at < KEPT_SECONDS:
                yield identity, met_at
