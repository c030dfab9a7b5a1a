"""Services, and the account of their load balancers, for tests of its steps."""

from typing import Any

from libs.common.contract.kube_service import KubeService, KubeServiceMeta, KubeServiceSpec, ServicePort
from services.cloud.core.balancers.balancer_record import BalancerAccount
from tests.builders import NOW

ACCOUNT = BalancerAccount(name="prod", load_balancer_class="talos-ccm/prod")


def make_service(
    *,
    annotations: dict[str, str] | None = None,
    kind: str = "LoadBalancer",
    own_class: str | None = ACCOUNT.load_balancer_class,
    **spec: Any,
) -> KubeService:
    """A Service that selects the account, without a record."""
    return KubeService(
        metadata=KubeServiceMeta(
            namespace="shop",
            name="web",
            uid="uid-web",
            resource_version="100",
            creation_timestamp=NOW,
            annotations=annotations or {},
        ),
        spec=KubeServiceSpec(
            type=kind,
            load_balancer_class=own_class,
            ports=(ServicePort(name="http", port=80, node_port=30080),),
            **spec,
        ),
    )
