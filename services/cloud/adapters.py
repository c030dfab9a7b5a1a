"""Opens the clients of an account's cloud, by the name of its provider."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import Balancers
from libs.clouds.hcloud.balancers.hcloud_balancers import REQUESTS_PER_MINUTE, HcloudBalancers
from libs.clouds.hcloud.hcloud_api import HcloudApi
from libs.clouds.hcloud.hcloud_instances import DEDICATED_PREFIXES, HcloudInstances
from libs.clouds.hcloud.hcloud_routes import HcloudRoutes
from libs.clouds.instances import Instances
from libs.clouds.openstack.balancers.octavia_balancers import (
    REQUESTS_PER_MINUTE as OCTAVIA_REQUESTS_PER_MINUTE,
)
from libs.clouds.openstack.balancers.octavia_balancers import OctaviaBalancers
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.openstack_instances import OpenStackInstances
from libs.clouds.openstack.openstack_routes import OpenStackRoutes
from libs.clouds.routes import Routes
from libs.clouds.thalassa.balancers.thalassa_balancers import (
    REQUESTS_PER_MINUTE as THALASSA_REQUESTS_PER_MINUTE,
)
from libs.clouds.thalassa.balancers.thalassa_balancers import ThalassaBalancers
from libs.clouds.thalassa.thalassa_api import ThalassaApi
from libs.clouds.thalassa.thalassa_instances import ThalassaInstances
from services.cloud.balancer_options import DEFAULT_SUBNET, read_hcloud_options


class CloudClients(msgspec.Struct, frozen=True, kw_only=True):
    """The clients of one account, which share its credential and rate limit."""

    instances: Instances
    balancers: Balancers[Any, Any] | None = None  # None: switched off
    routes: Routes | None = None  # None: switched off
    needs_ipv4: bool = False  # whether load balancers reach targets by IPv4 only
    uses_addresses: bool = False  # whether they know targets by address only
    address_prefixes: tuple[str, ...] = ()  # of providerIDs whose machines are targets by address

    async def close(self) -> None:
        """Close all connections."""
        for each in (self.balancers, self.routes):
            if each is not None:
                await each.close()
        await self.instances.close()


def _open_hcloud(
    options: AccountOptions, balancers: Mapping[str, str] | None, network: str | None
) -> CloudClients:
    api = HcloudApi(options)
    routes = None if network is None else HcloudRoutes(api, network)
    clients = CloudClients(instances=HcloudInstances(api), routes=routes)
    if balancers is None:
        return clients
    of_balancers = read_hcloud_options(balancers)
    return msgspec.structs.replace(
        clients,
        balancers=HcloudBalancers(
            api,
            of_balancers,
            requests_per_minute=max(REQUESTS_PER_MINUTE, options.requests_per_minute),
        ),
        needs_ipv4=True,
        address_prefixes=DEDICATED_PREFIXES if of_balancers.robot_enabled else (),
    )


def _open_openstack(
    options: AccountOptions, balancers: Mapping[str, str] | None, router: str | None
) -> CloudClients:
    api = OpenStackApi(options)
    routes = None if router is None else OpenStackRoutes(api, router)
    clients = CloudClients(instances=OpenStackInstances(api), routes=routes)
    if balancers is None:
        return clients
    return msgspec.structs.replace(
        clients,
        balancers=OctaviaBalancers(
            api, balancers, requests_per_minute=max(OCTAVIA_REQUESTS_PER_MINUTE, options.requests_per_minute)
        ),
        needs_ipv4=True,
        uses_addresses=True,
    )


def _open_thalassa(
    options: AccountOptions, balancers: Mapping[str, str] | None, network: str | None
) -> CloudClients:
    api = ThalassaApi(options)
    clients = CloudClients(instances=ThalassaInstances(api))
    if balancers is None:
        return clients
    return msgspec.structs.replace(
        clients,
        balancers=ThalassaBalancers(
            api,
            balancers.get(DEFAULT_SUBNET, ""),
            requests_per_minute=max(THALASSA_REQUESTS_PER_MINUTE, options.requests_per_minute),
        ),
    )


# By the name in settings. The second argument has the options of load balancers, None without them, and the
# third the network of routes: None without them, "" for that in the credential file.
ADAPTERS: Final[
    Mapping[str, Callable[[AccountOptions, Mapping[str, str] | None, str | None], CloudClients]]
] = {
    "hcloud": _open_hcloud,
    "openstack": _open_openstack,
    "thalassa": _open_thalassa,
}
