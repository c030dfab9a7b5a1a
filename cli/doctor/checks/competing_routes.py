"""Other controllers that make routes to pods in the same networks, or write NetworkUnavailable. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from cli.cluster.cloud_accounts import AccountProcess, list_accounts
from cli.cluster.kube_objects import Container
from cli.cluster.unavailable import Unavailable, list_known
from cli.doctor.checks.competing_controllers import (
    list_own_workloads,
    report_several_accounts,
    report_unknown_workloads,
    runs_controller,
)
from cli.doctor.findings import Check, Finding
from cli.doctor.snapshot import InstallationSnapshot
from cli.lines import format_names
from libs.common.contract.instances import get_provider
from libs.common.contract.node import NETWORK_UNAVAILABLE, Node
from services.cloud.core.balancers.balancer_record import read_balancer_record

_NAMES: Final = ("node-route-controller", "route")
_ROUTES_ENABLED: Final = "HCLOUD_NETWORK_ROUTES_ENABLED"  # in the environment of hcloud-ccm
_NATIVE_MESSAGE: Final = "RouteController "  # of k8s.io/cloud-provider
_STOP: Final = (
    "stop its route controller (--configure-cloud-routes=false, or --controllers=*,-node-route-controller; "
    f"at Hetzner {_ROUTES_ENABLED}=false), or remove routes from the account"
)


def check_routes(seen: InstallationSnapshot) -> Check:
    """Check that only one controller has the routes of a network, and writes NetworkUnavailable."""
    accounts = tuple(each for each in list_accounts(seen.workloads) if each.network)
    if not accounts:
        return "no account makes routes; another controller, or the CNI, may"
    yield from _find_shared_networks(accounts)
    yield from _find_shared_projects(accounts, _list_recorded_anchors(seen))
    ours = list_own_workloads(seen)
    for workload in seen.workloads:
        is_running = str(workload) not in ours and workload.desired_pods
        if is_running and any(map(_makes_routes, workload.pod.containers)):
            names = format_names({each.account.name for each in accounts})
            yield Finding.wrong(
                f"{workload} and account {names} both make routes to the pods of Nodes", _STOP
            )
    if isinstance(seen.nodes, Unavailable):
        yield Finding.unavailable("NetworkUnavailable of Nodes is unknown", seen.nodes)
    yield from _find_native_conditions(list_known(seen.nodes), {each.provider for each in accounts})
    yield from report_unknown_workloads(seen)
    return f"no other controller found that makes the routes of {_describe(accounts)}"


def _find_shared_networks(accounts: tuple[AccountProcess, ...]) -> Iterator[Finding]:
    by_network: dict[tuple[str, str], list[AccountProcess]] = {}
    for each in accounts:
        if each.known_network:
            by_network.setdefault((each.provider, each.known_network), []).append(each)
    for (provider, network), having in by_network.items():
        names = [f"{each.account.name} in {each.place}" for each in having]
        yield from report_several_accounts(f"the routes of network {network} at {provider}", names, "routes")


def _list_recorded_anchors(seen: InstallationSnapshot) -> dict[str, str]:
    """Return the anchor of each account that the record of a load balancer names."""
    records = (read_balancer_record(each, seen.at) for each in list_known(seen.services))
    return {each.account: f"{each.anchor.kind}/{each.anchor.id}" for each in records if each and each.anchor}


def _find_shared_projects(
    accounts: tuple[AccountProcess, ...], recorded: Mapping[str, str]
) -> Iterator[Finding]:
    """Accounts of one project see the same servers: each writes NetworkUnavailable of all their Nodes."""
    by_project: dict[tuple[str, str], list[AccountProcess]] = {}
    for each in accounts:
        if anchor := each.anchor or recorded.get(each.account.name, ""):
            by_project.setdefault((each.provider, anchor), []).append(each)
    for (provider, anchor), having in by_project.items():
        if len({each.known_network for each in having} - {""}) > 1:
            names = format_names(f"{each.account.name} (network {each.network})" for each in having)
            yield Finding.wrong(
                f"accounts of one project at {provider}, which has {anchor}, make the routes of several "
                f"networks: {names}. Each writes {NETWORK_UNAVAILABLE} of the same Nodes",
                "leave the routes to one account of the project (routes in the chart value clouds)",
            )


def _makes_routes(container: Container) -> bool:
    """Whether it is a cloud controller manager whose route controller runs. That needs a cluster CIDR."""
    is_configured = container.last_flag_value("configure-cloud-routes", "true") != "false"
    has_cidr = bool(container.flag_values("cluster-cidr"))
    return has_cidr and is_configured and runs_controller(container, *_NAMES, variable=_ROUTES_ENABLED)


def _find_native_conditions(nodes: tuple[Node, ...], providers: set[str]) -> Iterator[Finding]:
    """Yield the Nodes with the condition of another controller: the account would have replaced it."""
    names = []
    for node in nodes:
        condition = node.find_condition(NETWORK_UNAVAILABLE)
        is_native = condition is not None and condition.message.startswith(_NATIVE_MESSAGE)
        if is_native and get_provider(node.spec.provider_id) in providers:
            names.append(node.name)
    if names:
        yield Finding.wrong(
            f"another route controller has written {NETWORK_UNAVAILABLE} of {format_names(names)}", _STOP
        )


def _describe(accounts: tuple[AccountProcess, ...]) -> str:
    return format_names(f"network {each.network} of account {each.account.name}" for each in accounts)
