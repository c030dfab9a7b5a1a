"""Accounts of clouds with load balancers or routes, by the flags of the processes that have them. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cli.cluster.kube_objects import Container, Workload
from libs.common.contract.controllers import NODE_ROUTE, SERVICE_LB, is_controller_selected
from libs.common.contract.instances import ROUTE_PROVIDERS
from libs.common.contract.services import LEASE_NAMESPACE
from services.cloud.core.balancers.balancer_record import BalancerAccount

_COMMANDS: Final = frozenset({"services", "services.cloud"})


class AccountProcess(msgspec.Struct, frozen=True, kw_only=True):
    """An account of a cloud with load balancers, by the flags of the process that has it."""

    account: BalancerAccount
    provider: str
    workload: str  # kind namespace/name
    lease_namespace: str
    is_ready: bool
    is_switched_on: bool  # service-lb-controller
    is_dry_run: bool


class RouteAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account of a cloud with routes, by the flags of the process that has it."""

    name: str
    provider: str
    network: str  # its id
    place: str  # of the process


def list_accounts(workloads: Iterable[Workload]) -> Iterator[AccountProcess]:
    """Yield the accounts of these workloads. One without load balancers has no class, and is no default."""
    for workload in workloads:
        for container in workload.pod.containers:
            if workload.desired_pods and not _COMMANDS.isdisjoint(container.command):
                yield from _list_container_accounts(workload, container)


def list_route_accounts(containers: Iterable[tuple[str, Container]]) -> Iterator[RouteAccount]:
    """Yield the accounts of these containers, each with the place of its process. A dry run has no routes."""
    for place, container in containers:
        is_dry_run = any(map(container.is_switched_on, ("route-dry-run", "observe-only")))
        is_on = is_controller_selected(container.controllers, NODE_ROUTE) and not is_dry_run
        if is_on and not _COMMANDS.isdisjoint(container.command):
            yield from _list_container_routes(place, container)


def _list_container_routes(place: str, container: Container) -> Iterator[RouteAccount]:
    networks = _read_by_account(container, "route-network")
    default = next((each.value for each in container.env if each.name == "HCLOUD_NETWORK"), "")
    for name, provider in _list_account_names(container):
        network = networks.get(name, default if provider == "hcloud" else "")
        if network and provider in ROUTE_PROVIDERS:
            yield RouteAccount(name=name, provider=provider, network=network, place=place)


def _list_container_accounts(workload: Workload, container: Container) -> Iterator[AccountProcess]:
    classes = _read_by_account(container, "load-balancer-class")
    default = container.last_flag_value("load-balancer-default-account")
    for name, provider in _list_account_names(container):
        yield AccountProcess(
            account=BalancerAccount(
                name=name, load_balancer_class=classes.get(name, ""), is_default=default == name
            ),
            provider=provider,
            workload=str(workload),
            lease_namespace=container.last_flag_value("leader-elect-resource-namespace", LEASE_NAMESPACE),
            is_ready=workload.ready_pods > 0,
            is_switched_on=is_controller_selected(container.controllers, SERVICE_LB),
            is_dry_run=any(map(container.is_switched_on, ("load-balancer-dry-run", "observe-only"))),
        )


def _list_account_names(container: Container) -> Iterator[tuple[str, str]]:
    """Yield name and provider of each account."""
    for text in _split(container, "cloud-account"):
        provider, _, rest = text.partition("/")
        yield rest.partition("/")[0], provider


def _read_by_account(container: Container, flag: str) -> dict[str, str]:
    return dict(text.split("=", 1) for text in _split(container, flag) if "=" in text)


def _split(container: Container, flag: str) -> tuple[str, ...]:
    return tuple(text for value in container.flag_values(flag) for text in value.split(","))
