"""The names of the Kubernetes objects and hosts of NATS, as in the chart, and the rights of the bootstrap."""

from typing import Final

import msgspec

from libs.common.contract.services import NAMED_SERVICES, READER_USER, PolicyRule, expand_cloud

SEED: Final = "seed.nk"
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"


class ResourceNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of one installation; `prefix` is the chart's full name."""

    namespace: str
    prefix: str
    cluster_domain: str = "cluster.local"
    cloud_accounts: tuple[str, ...] = ()

    @property
    def nats(self) -> str:
        """The StatefulSet of the servers, and the Service for clients."""
        return f"{self.prefix}-nats"

    @property
    def authority(self) -> str:
        """The Secret with the CA's key, and the ConfigMap with its certificate."""
        return f"{self.nats}-ca"

    def seed_secret(self, user: str) -> str:
        """The Secret with that user's seed."""
        return f"{self.nats}-{user}"

    @property
    def users(self) -> tuple[str, ...]:
        """The NATS users with a key: each service, each cloud account, and two that only read."""
        specs = (*NAMED_SERVICES, *map(expand_cloud, self.cloud_accounts))
        return (*(spec.service for spec in specs), READER_USER)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of all Secrets."""
        return (*map(self.seed_secret, self.users), self.authority)

    def list_hosts(self) -> tuple[str, ...]:
        """Return every host name by which a client in the cluster or another server may reach a server."""
        of_service = (self.nats, f"{self.nats}-headless", f"*.{self.nats}-headless")
        tails = (
            "",
            f".{self.namespace}",
            f".{self.namespace}.svc",
            f".{self.namespace}.svc.{self.cluster_domain}",
        )
        return (*(name + tail for name in of_service for tail in tails), "localhost", "127.0.0.1", "::1")

    def list_routes(self, replicas: int) -> tuple[str, ...]:
        """Return the host of each server of a NATS cluster."""
        tail = f"{self.nats}-headless.{self.namespace}.svc.{self.cluster_domain}"
        return tuple(f"{self.nats}-{number}.{tail}" for number in range(replicas))


def list_policy_rules(names: ResourceNames) -> tuple[PolicyRule, ...]:
    """Return its RBAC rules, all in the namespace of the installation."""
    namespace = names.namespace
    return (
        PolicyRule(
            group="", resource="secrets", verbs=("get",), resource_names=names.secrets, namespace=namespace
        ),
        # RBAC cannot restrict `create` by name: the name is not known to the authorizer.
        PolicyRule(group="", resource="secrets", verbs=("create",), namespace=namespace),
        PolicyRule(
            group="",
            resource="configmaps",
            verbs=("get", "update"),
            resource_names=(names.authority,),
            namespace=namespace,
        ),
        PolicyRule(group="", resource="configmaps", verbs=("create",), namespace=namespace),
    )
