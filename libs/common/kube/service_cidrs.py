"""ServiceCIDR objects (Kubernetes 1.33): ranges of Service addresses that were added to a running cluster."""

from typing import Final

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.kube.objects import Resource


class ServiceCidrSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges: one, or one of each family. Immutable."""

    cidrs: tuple[str, ...] = ()


class ServiceCidr(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a ServiceCIDR that this client reads.

    It counts until it is gone. While it terminates, Services still have addresses of its ranges (KEP-1880).
    """

    metadata: ObjectMeta
    spec: ServiceCidrSpec = ServiceCidrSpec()

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name


# v1 is served since 1.33. Before, the API is beta and off by default, and nobody can add a range without it.
SERVICE_CIDRS: Final[Resource[ServiceCidr]] = Resource(
    plural="servicecidrs", path="/apis/networking.k8s.io/v1/servicecidrs", item=ServiceCidr
)
