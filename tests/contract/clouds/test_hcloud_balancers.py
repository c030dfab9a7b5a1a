"""Writes of the simulated Hetzner Cloud API, driven by the cloud's own library in Python."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

import hcloud
import pytest
from hcloud.actions.domain import ActionFailedException
from hcloud.load_balancer_types.domain import LoadBalancerType
from hcloud.load_balancers.domain import (
    LoadBalancerAlgorithm,
    LoadBalancerHealthCheck,
    LoadBalancerHealthCheckHttp,
    LoadBalancerService,
    LoadBalancerServiceHttp,
    LoadBalancerTarget,
    LoadBalancerTargetIP,
    LoadBalancerTargetLabelSelector,
)
from hcloud.networks.domain import Network, NetworkRoute
from hcloud.servers.domain import Server

from libs.testbed.clouds.go_clients import HcloudBalancer, query_hcloud
from tests.contract.clouds.accounts import SECRET, HcloudAccount, open_hcloud

ResultT = TypeVar("ResultT")


class Account:
    """A project, and the library as its client."""

    def __init__(self, opened: HcloudAccount) -> None:
        self.server, self.project = opened.server, opened.project
        self._client = hcloud.Client(
            SECRET, api_endpoint=self.server.endpoint, timeout=10, poll_interval=0.01
        )
        self._client._client._retry_max_retries = 0  # conflicts are what the tests look at

    async def ask(self, call: Callable[[Any], ResultT]) -> ResultT:
        return await asyncio.to_thread(call, self._client)

    async def expect(self, code: str, call: Callable[[Any], object]) -> None:
        """The call is refused with this code."""
        with pytest.raises(hcloud.APIException) as error:
            await self.ask(call)
        assert error.value.code == code

    async def get(self, number: int) -> Any:
        return await self.ask(lambda client: client.load_balancers.get_by_id(number))


@pytest.fixture
async def account() -> AsyncIterator[Account]:
    async with open_hcloud() as opened:
        yield Account(opened)


def create(client: Any, name: str = "web", **options: Any) -> Any:
    lb11 = client.load_balancer_types.get_by_name("lb11")
    location = client.locations.get_by_name("fsn1")
    options = {"load_balancer_type": lb11, "location": location} | options
    created = client.load_balancers.create(name, **options)
    created.action.wait_until_finished()
    return created.load_balancer


def tcp(port: int, **options: Any) -> LoadBalancerService:
    check = LoadBalancerHealthCheck(protocol="tcp", port=30_000 + port, interval=15, timeout=10, retries=3)
    defaults: dict[str, Any] = {
        "destination_port": 30_000 + port,
        "proxyprotocol": False,
        "health_check": check,
    }
    options = defaults | options
    return LoadBalancerService(protocol="tcp", listen_port=port, **options)


async def test_a_balancer_is_created_with_everything_in_one_request(account: Account):
    server = account.project.add_server("one", ipv4="192.0.2.1")

    def run(client: Any) -> Any:
        target = LoadBalancerTarget(type="server", server=client.servers.get_by_id(server))
        return create(
            client,
            labels={"cluster": "c", "service": "s"},
            services=[tcp(80)],
            targets=[target],
            algorithm=LoadBalancerAlgorithm(type="least_connections"),
        )

    created = await account.ask(run)
    found = await account.get(created.id)
    assert (found.name, found.location.name, found.load_balancer_type.max_targets) == ("web", "fsn1", 25)
    assert found.algorithm.type == "least_connections"
    assert [(each.listen_port, each.health_check.port) for each in found.services] == [(80, 30_080)]
    assert [(each.server.id, each.use_private_ip) for each in found.targets] == [(server, False)]
    assert found.public_net.enabled
    assert found.public_net.ipv4.ip in account.project.list_public_addresses()
    assert not await account.ask(lambda client: client.load_balancers.get_by_name("other"))
    assert [
        (each.command, each.labels) for each in account.project.journal if each.kind == "load_balancers"
    ] == [("create", {"cluster": "c", "service": "s"})]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("cluster=one", {"a", "b"}),
        ("cluster==one,service=s", {"a"}),
        ("cluster", {"a", "b", "c"}),
        ("!cluster", {"d"}),
        ("cluster!=one", {"c", "d"}),
        ("cluster in (one, two),!service", {"b", "c"}),
        ("cluster notin (one)", {"c", "d"}),
        ("example.com/uid=x", {"c"}),
    ],
)
async def test_lists_are_filtered_by_labels(account: Account, selector: str, expected: set[str]):
    for name, labels in {
        "a": {"cluster": "one", "service": "s"},
        "b": {"cluster": "one"},
        "c": {"cluster": "two", "example.com/uid": "x"},
        "d": {},
    }.items():
        account.project.add_balancer(name, labels=labels)
    found = await account.ask(lambda client: client.load_balancers.get_all(label_selector=selector))
    assert {each.name for each in found} == expected
    await account.expect("invalid_input", lambda client: client.load_balancers.get_all(label_selector="=x"))


async def test_labels_are_replaced_and_a_deleted_balancer_is_gone(account: Account):
    balancer = await account.ask(lambda client: create(client, labels={"a": "1", "b": "2"}))
    await account.ask(lambda client: client.load_balancers.update(balancer, labels={"a": "3"}))
    found = await account.get(balancer.id)
    assert (found.name, found.labels) == ("web", {"a": "3"})
    account.project.actions.seconds = 0.05
    deletion = await account.ask(lambda client: client.load_balancers.delete(balancer))
    assert deletion.action.command == "delete_load_balancer"
    assert (await account.get(balancer.id)).id == balancer.id
    await account.ask(lambda client: deletion.action.wait_until_finished())
    await account.expect("not_found", lambda client: client.load_balancers.get_by_id(balancer.id))
    assert [each.command for each in account.project.journal] == ["create", "update", "delete"]


async def test_targets_come_and_go(account: Account):
    account.project.dedicated_addresses.add("203.0.113.9")
    server = account.project.add_server("one", ipv4="192.0.2.1")
    account.project.update_server(server, labels={"pool": "web"})
    balancer = await account.ask(create)

    def make_targets(client: Any) -> list[LoadBalancerTarget]:
        return [
            LoadBalancerTarget(type="server", server=client.servers.get_by_id(server), use_private_ip=False),
            LoadBalancerTarget(type="ip", ip=LoadBalancerTargetIP(ip="203.0.113.9")),
            LoadBalancerTarget(
                type="label_selector",
                label_selector=LoadBalancerTargetLabelSelector(selector="pool=web"),
                use_private_ip=False,
            ),
        ]

    def change(client: Any, method: str, targets: list[LoadBalancerTarget]) -> None:
        for each in targets:
            getattr(client.load_balancers, method)(balancer, each).wait_until_finished()

    await account.ask(lambda client: change(client, "add_target", make_targets(client)))
    await account.expect(
        "target_already_defined", lambda client: change(client, "add_target", make_targets(client)[:1])
    )
    found = await account.get(balancer.id)
    assert [each.type for each in found.targets] == ["server", "ip", "label_selector"]
    assert [each.server.id for each in found.targets[2].targets] == [server]
    await account.ask(lambda client: change(client, "remove_target", make_targets(client)))
    assert (await account.get(balancer.id)).targets == []
    await account.expect("not_found", lambda client: change(client, "remove_target", make_targets(client)))


async def test_services_come_change_and_go(account: Account):
    certificate = account.project.add_certificate()
    balancer = await account.ask(create)

    def run(client: Any) -> None:
        check = LoadBalancerHealthCheck(
            protocol="http",
            port=32_000,
            interval=5,
            timeout=3,
            retries=2,
            http=LoadBalancerHealthCheckHttp(
                domain="example.com", path="/healthz", response="", tls=False, status_codes=["200"]
            ),
        )
        https = LoadBalancerService(
            protocol="https",
            listen_port=443,
            destination_port=30_443,
            proxyprotocol=True,
            health_check=check,
            http=LoadBalancerServiceHttp(
                certificates=[client.certificates.get_by_id(certificate)], sticky_sessions=True
            ),
        )
        balancer.add_service(tcp(80)).wait_until_finished()
        balancer.add_service(https).wait_until_finished()
        balancer.update_service(tcp(80, destination_port=31_000)).wait_until_finished()

    await account.ask(run)
    first, second = (await account.get(balancer.id)).services
    assert (first.destination_port, first.health_check.port) == (31_000, 30_080)
    assert (second.http.cookie_name, second.http.sticky_sessions) == ("HCLBSTICKY", True)
    assert [each.id for each in second.http.certificates] == [certificate]
    assert (second.health_check.http.path, second.health_check.http.status_codes) == ("/healthz", ["200"])
    await account.expect("source_port_already_used", lambda client: balancer.add_service(tcp(443)))
    await account.ask(lambda client: balancer.delete_service(first).wait_until_finished())
    assert [each.listen_port for each in (await account.get(balancer.id)).services] == [443]
    await account.expect("not_found", lambda client: balancer.delete_service(first))


async def test_one_action_of_a_balancer_runs_at_a_time(account: Account):
    one = await account.ask(lambda client: create(client, "one"))
    other = await account.ask(lambda client: create(client, "other"))
    account.project.actions.seconds = 3600
    action = await account.ask(lambda client: one.add_service(tcp(80)))
    assert action.status == "running"
    await account.expect("conflict", lambda client: one.add_service(tcp(81)))
    await account.expect("conflict", lambda client: one.update(labels={}))
    account.project.busy_code = "locked"
    await account.expect("locked", lambda client: one.delete())
    second = await account.ask(lambda client: other.add_service(tcp(80)))
    assert (await account.get(one.id)).services == []
    ids = {"id": [action.id, second.id]}
    polled = await account.ask(
        lambda client: client._client.request(method="GET", url="/actions", params=ids)
    )
    assert [(each["id"], each["status"]) for each in polled["actions"]] == [
        (action.id, "running"),
        (second.id, "running"),
    ]


@pytest.mark.parametrize("method", ["add_target", "remove_target"])
async def test_a_server_may_be_deleted_while_its_target_changes(account: Account, method: str):
    server = account.project.add_server("one", ipv4="192.0.2.1")
    balancer = await account.ask(create)
    if method == "remove_target":
        await account.ask(lambda client: add_targets(balancer, [server_target(server)]))
    account.project.actions.seconds = 0.05
    action = await account.ask(lambda client: getattr(balancer, method)(server_target(server)))
    account.project.remove("servers", server)
    await account.ask(lambda client: action.wait_until_finished())
    assert (await account.get(balancer.id)).targets == []


async def test_a_balancer_may_be_deleted_in_another_way_while_it_is_deleted(account: Account):
    balancer = await account.ask(create)
    account.project.actions.seconds = 0.05
    deletion = await account.ask(lambda client: balancer.delete())
    account.project.remove("load_balancers", balancer.id)
    await account.ask(lambda client: deletion.action.wait_until_finished())
    assert [each.command for each in account.project.journal] == ["create", "delete"]


async def test_a_network_is_changed_by_one_action_at_a_time(account: Account):
    network = Network(id=account.project.add_network())
    one = await account.ask(lambda client: create(client, "one"))
    other = await account.ask(lambda client: create(client, "other"))
    account.project.actions.seconds = 3600
    await account.ask(lambda client: one.attach_to_network(network))
    await account.expect("conflict", lambda client: other.attach_to_network(network))
    await account.expect(
        "conflict", lambda client: client.networks.add_route(network, make_route("10.244.1.0/24"))
    )
    await account.ask(lambda client: other.add_service(tcp(80)))


async def test_an_action_that_fails_changes_nothing(account: Account):
    balancer = await account.ask(create)
    account.project.actions.fail_next("add_service", "timeout")
    with pytest.raises(ActionFailedException) as error:
        await account.ask(lambda client: balancer.add_service(tcp(80)).wait_until_finished())
    assert dict(error.value.action.error or {})["code"] == "timeout"
    assert (await account.get(balancer.id)).services == []
    await account.ask(lambda client: balancer.add_service(tcp(80)).wait_until_finished())
    assert [each.status for each in await account.ask(lambda client: balancer.get_actions())] == [
        "success",
        "error",
        "success",
    ]


def server_target(number: int, *, private: bool = False) -> LoadBalancerTarget:
    server: Any = Server(id=number)
    return LoadBalancerTarget(type="server", server=server, use_private_ip=private)


def add_services(balancer: Any, ports: Iterable[int]) -> None:
    for each in ports:
        balancer.add_service(tcp(each)).wait_until_finished()


def add_targets(balancer: Any, targets: Iterable[LoadBalancerTarget]) -> None:
    for each in targets:
        balancer.add_target(each).wait_until_finished()


async def test_a_balancer_has_the_limits_of_its_type(account: Account):
    servers = [account.project.add_server(f"s-{number}", ipv4=f"192.0.2.{number}") for number in range(26)]
    balancer = await account.ask(create)
    await account.ask(lambda client: add_targets(balancer, map(server_target, servers[:25])))
    too_many = server_target(servers[25])
    await account.expect("resource_limit_exceeded", lambda client: balancer.add_target(too_many))
    await account.ask(lambda client: add_services(balancer, range(1, 6)))
    await account.expect("resource_limit_exceeded", lambda client: balancer.add_service(tcp(6)))

    lb11, lb21 = LoadBalancerType(name="lb11"), LoadBalancerType(name="lb21")
    await account.ask(lambda client: balancer.change_type(lb21).wait_until_finished())
    await account.ask(lambda client: balancer.add_target(too_many).wait_until_finished())
    await account.expect("invalid_load_balancer_type", lambda client: balancer.change_type(lb11))

    account.project.remove("servers", servers[0])
    assert len((await account.get(balancer.id)).targets) == 25


async def test_a_network_gives_private_targets_and_replaces_the_public_interface(account: Account):
    project = account.project
    network = Network(id=project.add_network())
    inside = project.add_server("inside", private=[(network.id, "10.0.1.7")])
    outside = project.add_server("outside", ipv4="192.0.2.1")
    balancer = await account.ask(create)

    not_attached = "load_balancer_not_attached_to_network"
    await account.expect(
        not_attached, lambda client: balancer.add_target(server_target(inside, private=True))
    )
    await account.expect(
        "resolve_cloud_public_targets_error", lambda client: balancer.add_target(server_target(inside))
    )
    await account.expect(not_attached, lambda client: balancer.disable_public_interface())
    await account.expect(
        "ip_not_available", lambda client: balancer.attach_to_network(network, ip="10.0.1.7")
    )
    await account.expect(
        "no_subnet_available", lambda client: balancer.attach_to_network(network, ip_range="10.0.9.0/24")
    )
    await account.ask(lambda client: balancer.attach_to_network(network, ip="10.0.1.5").wait_until_finished())
    await account.expect("load_balancer_already_attached", lambda client: balancer.attach_to_network(network))
    await account.expect(
        "resolve_cloud_private_targets_error",
        lambda client: balancer.add_target(server_target(outside, private=True)),
    )
    await account.ask(lambda client: add_targets(balancer, [server_target(outside)]))
    await account.expect("targets_without_use_private_ip", lambda client: balancer.disable_public_interface())
    await account.ask(lambda client: balancer.remove_target(server_target(outside)).wait_until_finished())
    await account.ask(lambda client: add_targets(balancer, [server_target(inside, private=True)]))
    await account.ask(lambda client: balancer.disable_public_interface().wait_until_finished())
    await account.expect(
        "load_balancer_public_interface_disabled",
        lambda client: balancer.add_target(server_target(outside)),
    )
    found = await account.get(balancer.id)
    assert [(each.network.id, each.ip) for each in found.private_net] == [(network.id, "10.0.1.5")]
    assert not found.public_net.enabled
    await account.ask(lambda client: balancer.enable_public_interface().wait_until_finished())
    await account.ask(lambda client: balancer.detach_from_network(network).wait_until_finished())
    assert (await account.get(balancer.id)).private_net == []


async def test_algorithm_protection_and_names_of_addresses_change(account: Account):
    balancer = await account.ask(create)
    ipv4 = balancer.public_net.ipv4.ip
    least = LoadBalancerAlgorithm(type="least_connections")
    await account.ask(lambda client: balancer.change_algorithm(least).wait_until_finished())
    await account.ask(lambda client: balancer.change_dns_ptr(ipv4, "lb.example.com").wait_until_finished())
    await account.ask(lambda client: balancer.change_protection(delete=True).wait_until_finished())
    found = await account.get(balancer.id)
    assert (found.algorithm.type, found.public_net.ipv4.dns_ptr) == ("least_connections", "lb.example.com")
    await account.expect("protected", lambda client: balancer.delete())
    await account.expect("not_found", lambda client: balancer.change_dns_ptr("192.0.2.1", "lb.example.com"))


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("uniqueness_error", {"name": "used"}),
        ("resource_limit_exceeded", {"labels": {"quota": "none"}}),
        ("invalid_input", {"labels": {"a b": "c"}}),
        ("invalid_input", {"labels": {"uid": "c/d"}}),
        ("invalid_input", {"location": None}),
        ("invalid_input", {"load_balancer_type": LoadBalancerType(name="lb99")}),
        ("invalid_input", {"services": [tcp(80, destination_port=65_536)]}),
        ("source_port_already_used", {"services": [tcp(80), tcp(80)]}),
        ("resource_limit_exceeded", {"services": [tcp(port) for port in range(1, 7)]}),
        ("invalid_input", {"targets": [server_target(5)]}),
        ("load_balancer_not_attached_to_network", {"public_interface": False}),
        ("ip_not_owned", {"targets": [LoadBalancerTarget(type="ip", ip=LoadBalancerTargetIP(ip="8.8.8.8"))]}),
        ("forbidden", {"labels": {"token": "reader"}}),
    ],
)
async def test_what_cannot_be_created_leaves_nothing_behind(
    account: Account, code: str, options: dict[str, Any]
):
    project = account.project
    project.add_balancer("used")
    labels = options.get("labels", {})
    if labels.get("quota"):
        project.quotas["load_balancers"] = 1
    if labels.get("token"):
        account.server.cloud.read_only.add(SECRET)
    await account.expect(code, lambda client: create(client, **options))
    assert [each["name"] for each in project.tables["load_balancers"].values()] == ["used"]
    assert not project.actions.documents


@pytest.mark.parametrize(
    ("code", "path", "body"),
    [
        ("invalid_input", "add_target", {"type": "server"}),
        ("invalid_input", "add_target", {"type": "label_selector", "label_selector": {"selector": "a b"}}),
        ("invalid_input", "add_target", {"type": "ip", "ip": {"ip": "203.0.113.9"}, "use_private_ip": True}),
        ("cloud_resource_ip_not_allowed", "add_target", {"type": "ip", "ip": {"ip": "192.0.2.1"}}),
        ("invalid_input", "add_service", {"protocol": "tcp", "listen_port": 80}),
        (
            "invalid_input",
            "add_service",
            {"protocol": "tcp", "listen_port": 80, "destination_port": 80, "http": {}},
        ),
        ("invalid_input", "add_service", {"protocol": "http", "http": []}),
        (
            "resource_limit_exceeded",
            "add_service",
            {"protocol": "https", "http": {"certificates": list(range(11))}},
        ),
        ("load_balancer_not_attached_to_network", "detach_from_network", {"network": 5}),
        ("invalid_input", "change_protection", {}),
        ("not_found", "reboot", {}),
        ("invalid_input", "/load_balancers", {"name": "b", "load_balancer_type": "lb11"}),
        ("invalid_input", "/load_balancers", {"name": "b", "load_balancer_type": "lb11", "location": "moon"}),
        ("invalid_input", "/load_balancers", {"name": "b", "load_balancer_type": "lb11", "unknown": 1}),
        ("invalid_input", "/certificates", {"name": "uploaded", "certificate": "PEM"}),
        ("json_error", "/load_balancers", []),
        ("invalid_input", "/actions", None),
        ("invalid_input", "/load_balancers?page=0", None),
        ("not_found", "/floating_ips", None),
        ("rate_limit_exceeded", "/load_balancers", None),
    ],
)
async def test_a_request_of_another_form_is_refused(account: Account, code: str, path: str, body: object):
    """A path without a slash is an action of a balancer that is attached to a network; no body is a GET."""
    account.project.add_server("one", ipv4="192.0.2.1")
    balancer = account.project.add_balancer("web", network=account.project.add_network())
    if code == "rate_limit_exceeded":
        account.project.bucket.take(account.project.bucket.remaining)
    url = path if path.startswith("/") else f"/load_balancers/{balancer}/actions/{path}"
    method = "GET" if body is None else "POST"
    await account.expect(code, lambda client: client._client.request(method=method, url=url, json=body))


async def test_a_certificate_in_use_stays(account: Account):
    managed = await account.ask(
        lambda client: client.certificates.create_managed("managed", ["example.com"], labels={"a": "b"})
    )
    await account.ask(lambda client: managed.action.wait_until_finished())
    uploaded = await account.ask(lambda client: client.certificates.create("uploaded", "PEM", "KEY"))
    await account.expect(
        "uniqueness_error", lambda client: client.certificates.create("uploaded", "PEM", "KEY")
    )
    https = LoadBalancerService(
        protocol="https",
        listen_port=443,
        destination_port=30_443,
        proxyprotocol=False,
        http=LoadBalancerServiceHttp(certificates=[uploaded]),
    )
    account.project.add_balancer("before")
    balancer = await account.ask(lambda client: create(client, services=[https]))
    await account.expect("resource_in_use", lambda client: client.certificates.delete(uploaded))
    await account.ask(lambda client: balancer.delete().action.wait_until_finished())
    await account.ask(lambda client: client.certificates.delete(uploaded))
    left = await account.ask(lambda client: client.certificates.get_all())
    assert [(each.name, each.type, each.labels) for each in left] == [("managed", "managed", {"a": "b"})]
    assert left[0].status.issuance == "completed"


def make_route(destination: str, gateway: str = "10.0.1.9") -> NetworkRoute:
    return NetworkRoute(destination=destination, gateway=gateway)


async def test_routes_come_and_go(account: Account):
    network = Network(id=account.project.add_network())
    route = make_route("10.244.1.0/24")
    account.project.actions.seconds = 0.05
    first = await account.ask(lambda client: client.networks.add_route(network, route))
    await account.expect("conflict", lambda client: client.networks.add_route(network, route))
    await account.ask(lambda client: first.wait_until_finished())
    account.project.actions.seconds = 0

    async def read() -> list[tuple[str, str]]:
        seen = await account.ask(lambda client: client.networks.get_by_id(network.id))
        return [(each.destination, each.gateway) for each in seen.routes]

    await account.ask(lambda client: client.networks.add_route(network, make_route("0.0.0.0/0")))
    assert await read() == [("10.244.1.0/24", "10.0.1.9"), ("0.0.0.0/0", "10.0.1.9")]
    await account.expect(
        "invalid_input", lambda client: client.networks.add_route(network, make_route("0.0.0.0/0"))
    )
    other_gateway = make_route("10.244.1.0/24", "10.0.1.8")
    await account.expect("not_found", lambda client: client.networks.delete_route(network, other_gateway))
    await account.ask(lambda client: client.networks.delete_route(network, route))
    assert await read() == [("0.0.0.0/0", "10.0.1.9")]


@pytest.mark.parametrize(
    ("code", "route"),
    [
        ("invalid_input", make_route("10.244.1.0/25")),  # overlaps the route that exists
        ("invalid_input", make_route("10.0.0.0/8")),  # overlaps the subnet
        ("invalid_input", make_route("8.8.8.0/24")),
        ("invalid_input", make_route("fd00::/64")),
        ("invalid_input", make_route("10.244.2.1/24")),
        ("invalid_input", make_route("10.244.2.0/24", "10.0.0.1")),
        ("invalid_input", make_route("10.244.2.0/24", "192.168.0.1")),
        ("resource_limit_exceeded", make_route("10.244.2.0/24")),
    ],
)
async def test_a_route_keeps_the_rules_of_its_network(account: Account, code: str, route: NetworkRoute):
    network = Network(id=account.project.add_network())
    await account.ask(lambda client: client.networks.add_route(network, make_route("10.244.1.0/24")))
    account.project.max_routes = 1
    await account.expect(code, lambda client: client.networks.add_route(network, route))


async def test_a_request_may_be_lost_before_after_or_long_before_it_takes_effect(account: Account):
    faults, tables = account.server.faults, account.project.tables["load_balancers"]

    async def lose(effect: str) -> None:
        """Send a create whose answer is lost."""
        account.server.add_fault(
            "proxy_bad_gateway", "/load_balancers", method="POST", count=1, effect=effect
        )
        with pytest.raises(hcloud.APIException):
            await account.ask(lambda client: create(client, f"lost-{effect}"))
        faults.clear()

    await lose("never")
    assert not tables
    await lose("later")
    assert not tables
    await lose("now")
    assert [each["name"] for each in tables.values()] == ["lost-now"]
    assert [answer.status for answer in account.server.release()] == [201]
    assert [each["name"] for each in tables.values()] == ["lost-now", "lost-later"]


async def test_a_crash_point_lies_between_the_effect_and_the_answer(account: Account):
    seen: list[tuple[str, int]] = []
    account.server.after_answer = lambda request, answer: seen.append((request.method, answer.status))
    balancer = await account.ask(create)
    await account.ask(lambda client: balancer.delete())
    assert ("POST", 201) in seen
    assert seen[-1] == ("DELETE", 201)
    times = [each.at for each in account.project.journal]
    assert times == sorted(times)


@pytest.mark.real_servers  # builds a program in Go
async def test_the_module_in_go_drives_the_whole_life_of_a_balancer(account: Account):
    project = account.project
    network = project.add_network()
    one, two = (
        project.add_server(f"server-{number}", private=[(network, f"10.0.1.{number}")]) for number in (7, 8)
    )
    certificate = project.add_certificate()
    project.actions.seconds = 0.05
    changes = {"servers": [one, two], "network": network, "certificate": certificate}
    report = (await query_hcloud(account.server.endpoint, SECRET, [], "web", changes)).changes

    assert report.steps == (
        "create: ok",
        "create_again: uniqueness_error",
        "add_target: ok",
        "while_it_runs: conflict",
        "add_target_again: target_already_defined",
        "add_service: ok",
        "add_service_again: source_port_already_used",
        "update_service: ok",
        "remove_target: ok",
        "disable_public_interface: ok",
        "change_type: ok",
        "add_route: ok",
        "add_route_again: invalid_input",
        "protect: ok",
        "delete_protected: protected",
        "unprotect: ok",
        "delete: ok",
        "delete_again: not_found",
    )
    assert report.balancer == HcloudBalancer(
        name="go",
        labels={"cluster": "c"},
        type="lb21",
        services=("tcp 80 30080 10256", "https 443 30443 30443"),
        targets=(f"{two} true",),
        private=f"{network} 10.0.1.2",
        public=False,
    )
    assert report.routes == ("10.244.1.0/24 10.0.1.9",)
    assert not project.tables["load_balancers"]
