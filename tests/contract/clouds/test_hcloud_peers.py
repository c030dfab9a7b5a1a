"""The simulated Hetzner Cloud API as three clients see it: the cloud's own in Python and in Go, and ours."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import hcloud
import pytest

from libs.clouds.instances import Anchor, InstanceAddress, NotFound
from libs.testbed.clouds.go_clients import query_hcloud
from libs.testbed.clouds.hcloud.server import SimHcloudServer
from tests.contract.clouds.accounts import SECRET, HcloudAccount, open_client, open_hcloud

READER = "a-token-that-only-reads"
# a target has one of the three fields
OTHER_TARGETS = re.compile(r".*\.targets\.(server|ip|label_selector): not in the answer")
Row = tuple[str, bool, str, str]  # of a server: name, whether it is off, location, type


class Account(NamedTuple):
    project: HcloudAccount
    web_1: int
    off: int
    moved: int  # a server that went to another project
    anchors: dict[str, int]
    expected: dict[int, Row]

    @property
    def server(self) -> SimHcloudServer:
        return self.project.server


@pytest.fixture(scope="module")
async def account() -> AsyncIterator[Account]:
    async with open_hcloud() as opened:
        server, project = opened.server, opened.project
        project.add_image("daily", image_type="backup")
        project.add_certificate()
        web_server = project.add_server("target", ipv4="192.0.2.1")
        project.add_balancer(
            "web",
            services=[{"protocol": "https", "health_check": {"protocol": "http"}}],
            targets=[{"type": "server", "server": {"id": web_server}}],
        )
        server.cloud.tokens[READER] = project
        server.cloud.read_only.add(READER)
        anchors = {
            "network": project.add_network(),
            "ssh_key": project.add_ssh_key("one"),
            "firewall": project.add_firewall(),
            "volume": project.add_volume(),
            "snapshot": project.add_image(),
        }
        private = [(anchors["network"], "10.0.1.7")]
        web_1 = project.add_server(
            "web-1", location="ash", ipv4="192.0.2.7", ipv6="2001:db8:7::/64", private=private
        )
        many = project.add_servers(120)
        off = project.add_server("web-2", status="off")
        moved = project.add_server("moved")
        project.move_server(moved, server.cloud.add_project("token-of-another"))
        expected: dict[int, Row] = {
            number: (f"server-{i}", False, "fsn1", "cx22") for i, number in enumerate(many)
        }
        expected[web_server] = ("target", False, "fsn1", "cx22")
        expected |= {web_1: ("web-1", False, "ash", "cx22"), off: ("web-2", True, "fsn1", "cx22")}
        yield Account(opened, web_1, off, moved, anchors, expected)


@pytest.mark.real_servers  # builds a program in Go
async def test_the_module_in_go_agrees_and_its_schema_has_exactly_these_fields(account: Account):
    asked = [account.web_1, account.off, account.moved]
    report = await query_hcloud(account.server.endpoint, SECRET, asked, "web-2")

    assert report.error == ""
    assert [each for each in report.unlike or () if not OTHER_TARGETS.fullmatch(each)] == []
    servers = report.servers or ()
    assert {each.id: (each.name, each.status == "off", each.location, each.type) for each in servers} == (
        account.expected
    )
    web_1 = next(each for each in servers if each.id == account.web_1)
    assert (web_1.ipv4, web_1.ipv6) == ("192.0.2.7", "2001:db8:7::/64")
    assert web_1.private == (f"{account.anchors['network']} 10.0.1.7",)
    assert list(report.found.values()) == ["web-1", "web-2", ""]
    assert report.by_name == account.off
    assert report.anchors == {"networks": 1, "ssh_keys": 1, "firewalls": 1, "volumes": 1, "images": 1}
    assert 0 < report.remains < report.limit == 3600


@pytest.mark.real_servers
async def test_the_module_in_go_reports_the_codes_of_errors(account: Account):
    report = await query_hcloud(account.server.endpoint, "unknown-token", [], "web-2")
    assert report.error == "unauthorized"


async def test_the_library_in_python_agrees(account: Account):
    def ask(client: Any) -> None:
        servers = client.servers.get_all()
        assert {
            each.id: (each.name, each.status == "off", each.location.name, each.server_type.name)
            for each in servers
        } == account.expected
        web_1 = client.servers.get_by_id(account.web_1)
        assert (web_1.public_net.ipv4.ip, web_1.public_net.ipv6.ip) == ("192.0.2.7", "2001:db8:7::/64")
        assert [(each.network.id, each.ip) for each in web_1.private_net] == [
            (account.anchors["network"], "10.0.1.7")
        ]
        assert client.servers.get_by_name("web-2").id == account.off
        lists = {
            "network": client.networks.get_all(),
            "ssh_key": client.ssh_keys.get_all(),
            "firewall": client.firewalls.get_all(),
            "volume": client.volumes.get_all(),
            "snapshot": client.images.get_all(type=["snapshot"]),
        }
        assert {kind: [each.id for each in found] for kind, found in lists.items()} == {
            kind: [number] for kind, number in account.anchors.items()
        }

    await asyncio.to_thread(ask, make_library(account))


@pytest.mark.parametrize(
    ("code", "token", "call"),
    [
        ("not_found", SECRET, lambda client, account: client.servers.get_by_id(account.moved)),
        ("unauthorized", "unknown-token", lambda client, account: client.servers.get_all()),
        ("forbidden", READER, lambda client, account: client.ssh_keys.create("a", "ssh-ed25519 AAAA")),
        ("invalid_input", SECRET, lambda client, account: client.servers.get_list(per_page=51)),
    ],
)
async def test_the_library_in_python_reads_the_codes_of_errors(
    account: Account, code: str, token: str, call: Callable[[hcloud.Client, Account], object]
):
    with pytest.raises(hcloud.APIException) as error:
        await asyncio.to_thread(call, make_library(account, token), account)
    assert error.value.code == code


async def test_our_client_agrees(account: Account, tmp_path: Path):
    async with open_client(account.project, tmp_path) as ours:
        listed = await ours.list_instances()
        assert isinstance(listed, tuple)
        assert {
            int(each.id): (each.name, each.is_shut_down, each.region, each.instance_type) for each in listed
        } == account.expected

        web_1 = await ours.get_instance(str(account.web_1))
        assert web_1 == next(each for each in listed if each.id == str(account.web_1))
        assert web_1.zone == "ash-dc1"
        assert web_1.addresses == (
            InstanceAddress("192.0.2.7"),
            InstanceAddress("2001:db8:7::1"),
            InstanceAddress("10.0.1.7", str(account.anchors["network"])),
        )
        assert await ours.get_instance(str(account.moved)) == NotFound()
        found = await ours.find_by_name("web-2")
        assert isinstance(found, tuple)
        assert [each.id for each in found] == [str(account.off)]
        assert await ours.find_by_name("web") == ()

        for kind, number in account.anchors.items():
            assert await ours.get_anchor(Anchor(kind, str(number))) == Anchor(kind, str(number))
            assert await ours.get_anchor(Anchor(kind, str(account.moved))) == NotFound()


def make_library(account: Account, token: str = SECRET) -> hcloud.Client:
    return hcloud.Client(token, api_endpoint=account.server.endpoint, timeout=10)
