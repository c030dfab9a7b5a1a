"""Opens the clients of an account's cloud, by the name of its provider."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import Balancers
from libs.clouds.hcloud.balancers.annotations import ENVIRONMENT_PREFIX, Annotations, read_defaults
from libs.clouds.hcloud.balancers.desired import BalancerOptions
from libs.clouds.hcloud.balancers.hcloud_balancers import REQUESTS_PER_MINUTE, HcloudBalancers
from libs.clouds.hcloud.hcloud_api import ID, HcloudApi
from libs.clouds.hcloud.hcloud_instances import HcloudInstances
from libs.clouds.hcloud.hcloud_routes import HcloudRoutes
from libs.clouds.instances import Instances
from libs.clouds.openstack.balancers.annotations import CONFIG_KEYS
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

_NETWORK: Final = "HCLOUD_NETWORK"
_DEFAULT_SUBNET: Final = "defaultSubnet"  # as in the config file of Thalassa's controller


class CloudClients(msgspec.Struct, frozen=True, kw_only=True):
    """The clients of one account, which share its credential and rate limit."""

    instances: Instances
    balancers: Balancers[Any, Any] | None = None  # None: switched off
    routes: Routes | None = None  # None: switched off
    needs_ipv4: bool = False  # whether load balancers reach targets by IPv4 only
    uses_addresses: bool = False  # whether they know targets by address only

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
    return msgspec.structs.replace(
        clients,
        balancers=HcloudBalancers(
            api,
            _read_hcloud_options(balancers),
            requests_per_minute=max(REQUESTS_PER_MINUTE, options.requests_per_minute),
        ),
        needs_ipv4=True,
    )


def _read_hcloud_options(texts: Mapping[str, str]) -> BalancerOptions:
    """Return the options of load balancers. Raises ValueError."""
    unknown = [name for name in texts if name != _NETWORK and not name.startswith(ENVIRONMENT_PREFIX)]
    if unknown:
        raise ValueError(f"the options of load balancers have an unknown name {min(unknown)}")
    network = texts.get(_NETWORK, "")
    if not network.isprintable() or (network.isdecimal() and not ID.fullmatch(network)):
        raise ValueError(f"{_NETWORK} is {network!r}, and not the id or name of a network")
    defaults = read_defaults(texts)
    if isinstance(defaults, Annotations):
        return BalancerOptions(
            network=int(network) if network.isdecimal() else network or None, defaults=defaults
        )
    raise ValueError("; ".join(map(str, defaults)))


def _open_openstack(
    options: AccountOptions, balancers: Mapping[str, str] | None, router: str | None
) -> CloudClients:
    api = OpenStackApi(options)
    routes = None if router is None else OpenStackRoutes(api, router)
    clients = CloudClients(instances=OpenStackInstances(api), routes=routes)
    if balancers is None:
        return clients
    unknown = balancers.keys() - CONFIG_KEYS
    if unknown:
        raise ValueError(f"the options of load balancers have an unknown name {min(unknown)}")
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
    if unknown := balancers.keys() - {_DEFAULT_SUBNET}:
        raise ValueError(f"the options of load balancers have an unknown name {min(unknown)}")
    return msgspec.structs.replace(
        clients,
        balancers=ThalassaBalancers(
            api,
            balancers.get(_DEFAULT_SUBNET, ""),
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
