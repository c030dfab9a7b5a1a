"""The names and addresses of the API servers, as their certificates have them."""

from typing import Final

import msgspec

from libs.common.kube.server_identity import ServerIdentity

RETENTION_SECONDS: Final = (
    86_400.0  # since it was last seen in a handshake; behind a balancer that may take hours
)
_MAX_IDENTITIES: Final = 32  # identities; a cluster has up to seven API servers, which renew rarely
_SERVICE_NAME: Final = "kubernetes.default.svc"  # in-cluster clients verify it


class ApiEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint of the Kubernetes API. Without identities it is not known."""

    identities: tuple[ServerIdentity, ...] = ()
    fault: str = ""  # why the last attempt to read a certificate failed

    @property
    def is_api_server(self) -> bool:
        """Whether a certificate is one that kube-apiserver has: not that of a proxy which ends TLS."""
        return self.has_name(_SERVICE_NAME)

    def has_name(self, dns: str) -> bool:
        """Whether a certificate has that DNS name, in any case."""
        return any(dns.lower() in each.names for each in self.identities)

    def has_address(self, ip: str) -> bool:
        """Whether a certificate has that address, in canonical form."""
        return any(ip in each.addresses for each in self.identities)


class ServerIdentityCache:
    """Identities with the monotonic time at which each was last seen in a handshake. The newest one stays."""

    def __init__(self) -> None:
        self._seen_at: dict[ServerIdentity, float] = {}

    def add(self, identity: ServerIdentity, now: float) -> None:
        """Record a handshake and expire what was not seen for a day."""
        self._seen_at.pop(identity, None)
        others = list(self._seen_at.items())[1 - _MAX_IDENTITIES :]
        self._seen_at = {each: seen_at for each, seen_at in others if now - seen_at < RETENTION_SECONDS}
        self._seen_at[identity] = now

    @property
    def identities(self) -> tuple[ServerIdentity, ...]:
        """In the order of their last handshakes."""
        return tuple(self._seen_at)
