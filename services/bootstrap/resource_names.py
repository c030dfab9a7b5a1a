"""What NATS' objects are called: Secrets, ConfigMap, hosts. The chart says the same names."""

from typing import Final

import msgspec

from libs.common.contract.services import READER_USER, SERVICES

KEY_USERS: Final = (*(wiring.service for wiring in SERVICES), READER_USER)
SEED: Final = "seed.nk"
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"


class ResourceNames(msgspec.Struct, frozen=True, kw_only=True):
    """Of one installation; `prefix` is the chart's full name."""

    namespace: str
    prefix: str
    cluster_domain: str = "cluster.local"

    @property
    def nats(self) -> str:
        """What runs the servers, and the Service that clients ask for."""
        return f"{self.prefix}-nats"

    @property
    def authority(self) -> str:
        """The Secret with the CA's key, and the ConfigMap with its certificate."""
        return f"{self.nats}-ca"

    def seed_secret(self, user: str) -> str:
        """The Secret with that user's seed."""
        return f"{self.nats}-{user}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every Secret there is."""
        return (*map(self.seed_secret, KEY_USERS), self.authority)

    def list_hosts(self) -> tuple[str, ...]:
        """Whatever a client in the cluster, or another server, may call a server."""
        of_service = (self.nats, f"{self.nats}-headless", f"*.{self.nats}-headless")
        tails = (
            "",
            f".{self.namespace}",
            f".{self.namespace}.svc",
            f".{self.namespace}.svc.{self.cluster_domain}",
        )
        return (*(name + tail for name in of_service for tail in tails), "localhost", "127.0.0.1", "::1")

    def list_routes(self, replicas: int) -> tuple[str, ...]:
        """The host of each server of a cluster; none for a single one."""
        if replicas == 1:
            return ()
        tail = f"{self.nats}-headless.{self.namespace}.svc.{self.cluster_domain}"
        return tuple(f"{self.nats}-{number}.{tail}" for number in range(replicas))
