"""Writes of the simulated Hetzner Cloud API, driven by the cloud's own library in Python."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import hcloud
import pytest
from hcloud.actions.domain import ActionFailedException
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

from tests.contract.clouds.accounts import SECRET, HcloudAccount, open_hcloud

ResultT = TypeVar("ResultT")
Ask = Callable[[Callable[[Any], ResultT]], Awaitable[ResultT]]


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
    await account.ask(lambda client: other.add_service(tcp(80)))
    assert (await account.get(one.id)).services == []


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
