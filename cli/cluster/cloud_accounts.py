"""Accounts of clouds with load balancers or routes, by the flags of the processes that have them. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cli.cluster.kube_objects import Container, Workload
from libs.clouds.hcloud.balancers.desired import ROBOT_ENABLED
from libs.common.contract.controllers import NODE_ROUTE, SERVICE_LB, is_controller_selected
from libs.common.contract.instances import ROUTE_PROVIDERS
from libs.common.contract.services import (
    LEASE_NAMESPACE,
    LOAD_BALANCERS,
    ROUTES,
    ServiceSpec,
    expand_cloud,
)
from libs.common.go_values import parse_bool
from services.cloud.core.balancers.balancer_record import BalancerAccount

_COMMANDS: Final = frozenset({"services", "services.cloud"})


class AccountProcess(msgspec.Struct, frozen=True, kw_only=True):
    """An account of a cloud, by the flags of the process that has it."""

    account: BalancerAccount
    provider: str
    place: str  # of the process: kind namespace/name of its workload, or the name of its pod
    lease_namespace: str
    is_ready: bool
    is_switched_on: bool  # service-lb-controller
    is_dry_run: bool
    has_dedicated_targets: bool = False  # dedicated servers at Hetzner, by address
    # id of the network or router whose routes it makes, or a text for one that the credential file names;
    # "" = none, also in a dry run
    network: str = ""
    anchor: str = ""  # kind/id of an object of its project, if a flag names one

    @property
    def known_network(self) -> str:
        """The id of the network or router; "" if only the credential file names it."""
        return "" if self.network == _name_file_network(self.account.name) else self.network

    @property
    def spec(self) -> ServiceSpec:
        """Return its row of the service table, with the controllers that write for the account."""
        balances = self.is_switched_on and (self.account.is_default or self.account.load_balancer_class)
        chosen = ((LOAD_BALANCERS, balances), (ROUTES, self.network))
        return expand_cloud(self.account.name, *(controller for controller, is_on in chosen if is_on))


def list_accounts(workloads: Iterable[Workload]) -> Iterator[AccountProcess]:
    """Yield the accounts of these workloads. One without load balancers has no class, and is no default."""
    for workload in workloads:
        for container in workload.pod.containers if workload.desired_pods else ():
            yield from list_container_accounts(str(workload), container, is_ready=workload.ready_pods > 0)


def list_container_accounts(
    place: str, container: Container, *, is_ready: bool = True
) -> Iterator[AccountProcess]:
    """Yield the accounts of this container, which runs at that place."""
    if _COMMANDS.isdisjoint(container.command):
        return
    classes = _read_by_account(container, "load-balancer-class")
    default = container.last_flag_value("load-balancer-default-account")
    for text in _split(container, "cloud-account"):
        provider, _, rest = text.partition("/")
        name, _, anchor = rest.partition("/")
        yield AccountProcess(
            account=BalancerAccount(
                name=name, load_balancer_class=classes.get(name, ""), is_default=default == name
            ),
            provider=provider,
            place=place,
            lease_namespace=container.last_flag_value("leader-elect-resource-namespace", LEASE_NAMESPACE),
            is_ready=is_ready,
            is_switched_on=is_controller_selected(container.controllers, SERVICE_LB),
            is_dry_run=any(map(container.is_switched_on, ("load-balancer-dry-run", "observe-only"))),
            has_dedicated_targets=provider == "hcloud" and _is_robot_enabled(container, name),
            network=_find_route_network(container, name, provider),
            anchor=anchor,
        )


def _is_robot_enabled(container: Container, account: str) -> bool:
    options = _read_by_account(container, "load-balancer-option")
    default = next((each.value for each in container.env if each.name == ROBOT_ENABLED), "false")
    try:
        return parse_bool(options.get(f"{account}/{ROBOT_ENABLED}", default))
    except ValueError:  # the process does not start
        return False


def _find_route_network(container: Container, name: str, provider: str) -> str:
    is_dry_run = any(map(container.is_switched_on, ("route-dry-run", "observe-only")))
    is_on = is_controller_selected(container.controllers, NODE_ROUTE) and not is_dry_run
    if not is_on or provider not in ROUTE_PROVIDERS:
        return ""
    default = next((each.value for each in container.env if each.name == "HCLOUD_NETWORK"), "")
    found = _read_by_account(container, "route-network").get(name)
    if found is None:
        return default if provider == "hcloud" else ""
    return found or _name_file_network(name)


def _name_file_network(account: str) -> str:
    """Return the words for a router that the credential file names, which no command reads."""
    return f"(router-id of {account})"


def _read_by_account(container: Container, flag: str) -> dict[str, str]:
    """Return the value of each account, "" for one that stands alone."""
    return {name: value for name, _, value in (text.partition("=") for text in _split(container, flag))}


def _split(container: Container, flag: str) -> tuple[str, ...]:
    return tuple(text for value in container.flag_values(flag) for text in value.split(","))
