"""Settings of routes: the network of each account."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from libs.common.contract.controllers import NODE_ROUTE, is_controller_selected
from libs.common.contract.events import ClusterNetworksObserved
from libs.common.contract.instances import ROUTE_PROVIDERS, ROUTER_IN_FILE
from libs.common.settings import flags
from services.cloud.balancer_settings import BalancerSettings, split_pairs
from services.cloud.core.routes.destinations import is_network


class AccountRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The network, or the router, whose routes an account has; "" is that in the credential file."""

    network: str
    is_dry_run: bool = False


class RouteSettings(BalancerSettings, frozen=True, kw_only=True):
    """The flags of routes, of all accounts, beside those of load balancers."""

    route_networks: Annotated[
        tuple[str, ...],
        flags.Flag(
            "route-network",
            "Accounts with routes to the pods of Nodes, each as account=network, such as prod=4711. "
            "The network, by its id, gets the routes; at openstack it is a router, and prod alone takes "
            "router-id of [Route] in the credential file. It needs node-route-controller in --controllers, "
            f"and a credential that may write. Providers: {', '.join(ROUTE_PROVIDERS)}. At hcloud, the "
            "default is HCLOUD_NETWORK.",
            flags.ROUTES,
        ),
    ] = ()
    route_pod_networks: Annotated[
        tuple[str, ...],
        flags.Flag(
            "route-pod-network",
            "Pod networks of the cluster, each as account=CIDR, such as prod=10.244.0.0/16. The account "
            "creates no route outside of them: a kubelet may register its Node with any pod CIDR. Default: "
            "those in the machine config of a control plane. Pools of ipam outside of these need the flag.",
            flags.ROUTES,
        ),
    ] = ()
    route_dry_run: Annotated[
        bool,
        flags.Flag(
            "route-dry-run",
            "Only log what would change; write neither to the cloud nor to Nodes.",
            flags.ROUTES,
        ),
    ] = False

    def find_routes(self, provider: str, account: str) -> AccountRoutes | None:
        """Return the network of the account; None if it has no routes."""
        if not is_controller_selected(self.controllers, NODE_ROUTE):
            return None
        default = self.hcloud_network if provider == "hcloud" else ""
        network = self._networks.get(account, default or None)
        is_dry_run = self.route_dry_run or self.observe_only
        return None if network is None else AccountRoutes(network=network, is_dry_run=is_dry_run)

    def find_pod_networks(self, account: str, observed: object) -> tuple[str, ...]:
        """Return the networks inside which the account creates routes; () while they are unknown."""
        chosen = tuple(network for name, network in split_pairs(self.route_pod_networks) if name == account)
        reported = observed.pod_cidrs if isinstance(observed, ClusterNetworksObserved) else ()
        return chosen or reported

    def find_route_problems(self, providers: Mapping[str, str]) -> Iterator[str]:
        """Yield the invalid settings; `providers` has that of each account."""
        for text in self.route_networks:
            account, separator, network = text.partition("=")
            is_in_file = not separator and providers.get(account) == ROUTER_IN_FILE
            if account not in providers or not (network or is_in_file):
                form = "account=network, with an account of --cloud-account"
                yield f"--route-network={text}: the form is {form}"
            elif providers[account] not in ROUTE_PROVIDERS:
                clouds = " and ".join(ROUTE_PROVIDERS)
                yield f"--route-network={text}: only accounts of {clouds} have routes: remove it"
        for text in self.route_pod_networks:
            account, _, network = text.partition("=")
            if account not in providers or not is_network(network):
                form = "account=CIDR, with an account of --cloud-account and a network without host bits"
                yield f"--route-pod-network={text}: the form is {form}"

    def find_route_warnings(self) -> Iterator[str]:
        """Yield settings without effect."""
        is_on = is_controller_selected(self.controllers, NODE_ROUTE)
        if is_on and not self.route_networks and not self.hcloud_network:
            yield "--controllers: node-route-controller has no effect without --route-network"
        if self.route_networks and not is_on:
            yield "--route-network has no effect: --controllers lacks node-route-controller"

    @property
    def _networks(self) -> Mapping[str, str]:
        return dict(split_pairs(self.route_networks))
