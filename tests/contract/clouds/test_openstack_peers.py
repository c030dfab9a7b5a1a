"""The simulated OpenStack as three clients see it: openstacksdk, gophercloud, and ours."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import openstack
import pytest
from keystoneauth1.exceptions import Unauthorized
from openstack import exceptions
from openstack.connection import Connection

from libs.clouds.instances import Anchor, Deleted, InstanceAddress, NotFound
from libs.testbed.clouds.go_clients import OpenStackQuery, query_openstack
from libs.testbed.clouds.openstack.server import SimOpenStackServer
from tests.contract.clouds.accounts import SECRET, OpenStackAccount, open_client, open_openstack

# the library warns of its own parts that its next versions will not have
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")

Row = tuple[str, bool, str, str]  # of a server: name, whether it is off, zone, type


class Account(NamedTuple):
    opened: OpenStackAccount
    project: str
    web_1: str
    off: str
    deleted: str
    foreign: str  # a server of another project
    network: str
    expected: dict[str, Row]

    @property
    def server(self) -> SimOpenStackServer:
        return self.opened.server


@pytest.fixture(scope="module")
async def account() -> AsyncIterator[Account]:
    async with open_openstack() as opened:
        project = opened.project
        addresses = {"private": [("10.0.1.7", "fixed"), ("2001:db8::7", "fixed"), ("192.0.2.7", "floating")]}
        web_1 = project.add_server("web-1", zone="az-2", flavor="c2", addresses=addresses)
        many = project.add_servers(250)
        off = project.add_server("web-2", status="SHUTOFF")
        deleted = project.add_server("web-3")
        project.delete_server(deleted)
        network = project.add_network()
        foreign = opened.server.cloud.state.add_project("other").add_server("web-1")
        expected: dict[str, Row] = {
            server_id: (f"server-{i}", False, "nova", "m1.small") for i, server_id in enumerate(many)
        }
        expected |= {web_1: ("web-1", False, "az-2", "c2"), off: ("web-2", True, "nova", "m1.small")}
        yield Account(opened, project.id, web_1, off, deleted, foreign, network, expected)


async def test_the_library_agrees(account: Account):
    def ask(cloud: Connection) -> None:
        servers = list(cloud.compute.servers(limit=100))
        assert {
            each.id: (
                each.name,
                each.status == "SHUTOFF",
                each.availability_zone,
                each.flavor.original_name,
            )
            for each in servers
        } == account.expected
        web_1 = cloud.compute.get_server(account.web_1)
        assert [each["addr"] for each in web_1.addresses["private"]] == [
            "10.0.1.7",
            "2001:db8::7",
            "192.0.2.7",
        ]
        assert (web_1.project_id, cloud.current_project_id) == (account.project, account.project)
        assert [each.id for each in cloud.compute.servers(name="^web-2$")] == [account.off]
        assert [each.action for each in cloud.compute.server_actions(account.deleted)] == ["delete", "create"]
        assert [each.id for each in cloud.network.networks()] == [account.network]
        assert cloud.network.get_network(account.network).project_id == account.project

    await asyncio.to_thread(ask, connect(account))


@pytest.mark.parametrize(
    ("error", "password", "call"),
    [
        (exceptions.NotFoundException, SECRET, lambda cloud, a: cloud.compute.get_server(a.foreign)),
        (exceptions.NotFoundException, SECRET, lambda cloud, a: cloud.compute.get_server(a.deleted)),
        (exceptions.NotFoundException, SECRET, lambda cloud, a: cloud.network.get_network(a.web_1)),
        (Unauthorized, "wrong", lambda cloud, a: cloud.compute.get_server(a.web_1)),
        (exceptions.ForbiddenException, SECRET, lambda cloud, a: cloud.compute.delete_server(a.web_1)),
    ],
)
async def test_the_library_reads_the_errors(
    account: Account,
    error: type[Exception],
    password: str,
    call: Callable[[Connection, Account], object],
):
    with pytest.raises(error):
        await asyncio.to_thread(call, connect(account, password=password), account)


@pytest.mark.real_servers  # builds a program in Go
async def test_the_module_in_go_agrees(account: Account):
    report = await query_openstack(
        OpenStackQuery(
            auth_url=f"{account.server.endpoint}/identity/v3",
            id="web-id",
            secret="web-secret",
            region="RegionOne",
            servers=(account.web_1, account.deleted, account.foreign),
            name="^web-1$",
        )
    )
    assert report.error == ""
    assert {each.id: (each.name, each.status == "SHUTOFF", each.zone) for each in report.servers or ()} == {
        server_id: row[:3] for server_id, row in account.expected.items()
    }
    assert {each.project for each in report.servers or ()} == {account.project}
    assert report.found == {account.web_1: "web-1", account.deleted: "", account.foreign: ""}
    assert report.actions is not None
    assert report.actions[account.deleted][0] == "delete compute_terminate_instance Success"
    assert report.actions[account.foreign] == ()
    assert report.by_name == (account.web_1,)
    assert report.networks == (f"{account.network} {account.project}",)


@pytest.mark.real_servers
async def test_the_module_in_go_reads_a_wrong_credential(account: Account):
    url = f"{account.server.endpoint}/identity/v3"
    report = await query_openstack(
        OpenStackQuery(auth_url=url, id="web-id", secret="wrong", region="RegionOne")
    )
    assert "401" in report.error


async def test_our_client_agrees(account: Account, tmp_path: Path):
    async with open_client(account.opened, tmp_path) as ours:
        listed = await ours.list_instances()
        assert isinstance(listed, tuple)
        assert {
            each.id: (each.name, each.is_shut_down, each.zone, each.instance_type) for each in listed
        } == (account.expected)
        assert {each.region for each in listed} == {"RegionOne"}

        web_1 = await ours.get_instance(account.web_1)
        assert web_1 == next(each for each in listed if each.id == account.web_1)
        assert web_1.addresses == (
            InstanceAddress("10.0.1.7", "private"),
            InstanceAddress("2001:db8::7", "private"),
            InstanceAddress("192.0.2.7"),
        )
        assert await ours.get_instance(account.foreign) == NotFound()
        assert await ours.get_instance(account.deleted) == Deleted()
        found = await ours.find_by_name("web-1")
        assert isinstance(found, tuple)
        assert [each.id for each in found] == [account.web_1]
        assert await ours.find_by_name("web") == ()

        network = Anchor("network", account.network)
        assert await ours.find_anchor() == network
        assert await ours.get_anchor(network) == network
        assert await ours.get_anchor(Anchor("network", account.web_1)) == NotFound()


def connect(account: Account, *, password: str = SECRET) -> Any:
    return openstack.connect(
        load_yaml_config=False,
        load_envvars=False,
        auth={
            "auth_url": f"{account.server.endpoint}/identity",
            "username": "web",
            "password": password,
            "project_name": "web",
            "user_domain_name": "Default",
            "project_domain_name": "Default",
        },
        region_name="RegionOne",
        api_timeout=10,
    )
