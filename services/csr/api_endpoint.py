"""The names and addresses in the certificates of the API servers."""

from typing import Final

import msgspec

from libs.common.kube.server_identity import ServerIdentity

# since the last handshake that showed it; a load balancer may hide a server for hours
RETENTION_SECONDS: Final = 86_400.0
_MAX_IDENTITIES: Final = 32  # a cluster has up to seven API servers, which renew rarely
_SERVICE_NAME: Final = "kubernetes.default.svc"  # in-cluster clients verify this name


class ApiEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint of the Kubernetes API; unknown while it has no identities."""

    identities: tuple[ServerIdentity, ...] = ()
    fault: str = ""  # why the last attempt to read a certificate failed

    @property
    def is_api_server(self) -> bool:
        """Whether a certificate is kube-apiserver's own, not that of a proxy that terminates TLS."""
        return self.has_name(_SERVICE_NAME)

    @property
    def cluster_domains(self) -> frozenset[str]:
        """The domains of the cluster's Services, such as "cluster.local"."""
        prefix = f"{_SERVICE_NAME}."
        names = (name for each in self.identities for name in each.names)
        return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def has_name(self, dns: str) -> bool:
        """Whether a certificate contains that DNS name, in any case."""
        return any(dns.lower() in each.names for each in self.identities)

    def has_address(self, ip: str) -> bool:
        """Whether a certificate contains that address, in canonical form."""
        return any(ip in each.addresses for each in self.identities)


class ServerIdentityCache:
    """Server identities with the monotonic time of their last handshake. The newest one never expires."""

    def __init__(self) -> None:
        self._seen_at: dict[ServerIdentity, float] = {}

    def add(self, identity: ServerIdentity, now: float) -> None:
        """Record a handshake and expire the identities of which no handshake happened for a day."""
        self._seen_at.pop(identity, None)
        others = list(self._seen_at.items())[1 - _MAX_IDENTITIES :]
        self._seen_at = {each: seen_at for each, seen_at in others if now - seen_at < RETENTION_SECONDS}
        self._seen_at[identity] = now

    @property
    def identities(self) -> tuple[ServerIdentity, ...]:
        """The identities in the order of their last handshakes."""
        return tuple(self._seen_at)
