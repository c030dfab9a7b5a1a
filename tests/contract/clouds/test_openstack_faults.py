"""Our client of OpenStack says "not found" and "deleted" only if Nova does, and lists nothing in part."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.clouds.account_session import AccountOptions
from libs.clouds.instances import Anchor, Deleted, Instance, Instances, NotFound, Unanswered
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.openstack_instances import OpenStackInstances
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.openstack.objects import Document, make_event
from libs.testbed.clouds.openstack.server import SimOpenStackServer
from libs.testbed.clouds.openstack.state import SimProject
from tests.bus_actors import wait_until
from tests.contract.clouds.accounts import (
    SECRET,
    OpenStackAccount,
    make_client,
    open_client,
    open_openstack,
)
from tests.tcp_server import serve_tcp

SERVERS = 150  # two pages
NOVA = "/compute/RegionOne/v2.1/servers/.*"
NEUTRON = "/network/RegionOne/v2.0/.*"


@pytest.fixture
async def account() -> AsyncIterator[OpenStackAccount]:
    async with open_openstack() as opened:
        opened.project.add_servers(SERVERS)
        yield opened


@pytest.fixture
def server(account: OpenStackAccount) -> SimOpenStackServer:
    return account.server


@pytest.fixture
def project(account: OpenStackAccount) -> SimProject:
    return account.project


@pytest.fixture
async def ours(account: OpenStackAccount, tmp_path: Path) -> AsyncIterator[Instances]:
    async with open_client(account, tmp_path) as opened:
        yield opened


def first_of(project: SimProject) -> str:
    return min(project.region.servers)


# ---- faults of a service


OUTCOMES = {
    "unauthorized": "unauthorized",
    "forbidden": "forbidden",
    "rate_limited": "rate_limited",
    "service_error": "server_error",
    "proxy_not_found": "malformed",
    "keystone_not_found": "malformed",
    "proxy_bad_gateway": "server_error",
    "echo": "server_error",
    "login_page": "malformed",
    "redirect": "malformed",
    "huge": "malformed",
    "cut_off": "unreachable",
}


@pytest.mark.parametrize(("fault", "outcome"), OUTCOMES.items())
async def test_a_fault_does_not_answer_for_the_project(
    server: SimOpenStackServer, ours: Instances, project: SimProject, fault: str, outcome: str
):
    server.add_fault(fault, NOVA)
    answer = await ours.get_anchor(Anchor("project", f"{project.id}@RegionOne"))
    assert isinstance(answer, Unanswered)
    assert answer.outcome == outcome


async def test_an_error_of_keystone_does_not_answer_for_a_network(
    server: SimOpenStackServer, ours: Instances, project: SimProject
):
    server.add_fault("keystone_not_found", NEUTRON)
    assert isinstance(await ours.find_anchor(), Unanswered)
    assert isinstance(await ours.get_anchor(Anchor("network", project.add_network())), Unanswered)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [*((name, outcome) for name, outcome in OUTCOMES.items() if name != "huge"), ("hang", "unreachable")],
)
async def test_a_fault_of_keystone_answers_nothing_and_reaches_no_service(
    account: OpenStackAccount, tmp_path: Path, fault: str, outcome: str
):
    server = account.server
    server.add_fault(fault, "/identity/.*tokens")
    options = AccountOptions(credential=account.write_credential(tmp_path), user_agent="talos-ccm/test")
    ours = OpenStackInstances(
        OpenStackApi(options, login_deadline_seconds=2.0 if fault == "hang" else HANG_SECONDS)
    )
    answer = await ours.get_instance(account.missing_id)
    again = await ours.get_instance(account.missing_id)
    await ours.close()
    assert isinstance(answer, Unanswered)
    assert answer.outcome in {outcome, "malformed"}
    assert SECRET not in answer.reason
    assert isinstance(again, Unanswered)
    assert again.outcome == "held_back"  # a wrong password must not lock the user out
    assert sum(each.method == "POST" for each in server.requests) <= 1
    assert not any(each.path.startswith(("/compute", "/network")) for each in server.requests)


# ---- "not found" in the service's own form


@pytest.mark.parametrize(
    "fault", ["no_version", "unknown_path", "another_not_found", "keystone_not_found", "proxy_not_found"]
)
async def test_only_nova_about_exactly_this_id_says_that_there_is_no_server(
    server: SimOpenStackServer, ours: Instances, project: SimProject, fault: str
):
    gone = project.add_server("gone")
    project.lose_server(gone)
    assert await ours.get_instance(gone) == NotFound()
    server.add_fault(fault, NOVA)
    answer = await ours.get_instance(gone)
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "malformed"


@pytest.mark.parametrize("fault", ["no_version", "down_cell"])
async def test_a_part_of_a_server_is_no_answer(
    server: SimOpenStackServer, ours: Instances, project: SimProject, fault: str
):
    server.add_fault(fault, NOVA)
    assert isinstance(await ours.get_instance(first_of(project)), Unanswered)


async def test_a_server_that_an_administrator_sees_in_another_project_is_no_answer(
    server: SimOpenStackServer, ours: Instances
):
    foreign = server.cloud.state.add_project("other").add_server("web-1")
    server.cloud.state.admins.add("web")
    answer = await ours.get_instance(foreign)
    assert answer == Unanswered("malformed", f"server {foreign} belongs to another project")


# ---- "deleted"


TERMINATED = make_event("compute_terminate_instance")
NO_DELETION: dict[str, tuple[str, str | None, list[Document]]] = {
    "another action": ("rebuild", None, [TERMINATED]),
    "failed action": ("delete", "Error", [TERMINATED]),
    "no event": ("delete", None, []),
    "another event": ("delete", None, [make_event("compute_stop_instance")]),
    "soft deletion": ("delete", None, [make_event("compute_soft_delete_instance")]),
    "not yet": ("delete", None, [make_event("compute_terminate_instance", None)]),
    "failed event": ("delete", None, [make_event("compute_terminate_instance", "Error")]),
    "also a failed event": ("delete", None, [TERMINATED, make_event("compute_detach", "Error")]),
}


async def test_nova_says_that_it_has_deleted_a_server(ours: Instances, project: SimProject):
    project.delete_server(deleted := project.add_server("gone"))
    assert await ours.get_instance(deleted) == Deleted()


@pytest.mark.parametrize(("action", "message", "events"), NO_DELETION.values(), ids=NO_DELETION)
async def test_anything_less_than_a_successful_deletion_is_only_not_found(
    ours: Instances, project: SimProject, action: str, message: str | None, events: list[Document]
):
    deleted = project.add_server("gone")
    project.delete_server(deleted, action=action, message=message, events=events)
    assert await ours.get_instance(deleted) == NotFound()


async def test_a_deletion_before_another_action_is_only_not_found(ours: Instances, project: SimProject):
    deleted = project.add_server("gone")
    project.delete_server(deleted)
    actions = project.region.actions[deleted]
    restored = actions[0] | {"action": "restore", "start_time": "2026-01-04T00:00:00.000000"}
    actions.append(restored)  # in any order
    assert await ours.get_instance(deleted) == NotFound()


async def test_the_deletion_of_another_server_is_only_not_found(ours: Instances, project: SimProject):
    deleted, other = project.add_server("gone"), project.add_server("other")
    project.delete_server(deleted)
    project.region.actions[deleted] = [
        each | {"instance_uuid": other} for each in project.region.actions[deleted]
    ]
    assert await ours.get_instance(deleted) == NotFound()


@pytest.mark.parametrize("fault", [*OUTCOMES, "lying_not_found", "no_version"])
@pytest.mark.parametrize("path", [".*/os-instance-actions", ".*/os-instance-actions/.*"])
async def test_without_the_action_a_server_is_only_not_found(
    server: SimOpenStackServer, ours: Instances, project: SimProject, fault: str, path: str
):
    project.delete_server(deleted := project.add_server("gone"))
    server.add_fault(fault, path)
    assert await ours.get_instance(deleted) == NotFound()


async def test_a_deletion_counts_only_after_the_server_was_not_found(ours: Instances, project: SimProject):
    """The deletion has ended, and the list of servers is behind."""
    server_id = project.add_server("gone")
    project.delete_server(server_id)
    project.region.servers[server_id] = project.region.deleted.pop(server_id)
    assert isinstance(await ours.get_instance(server_id), Instance)


@pytest.mark.parametrize("microversion", [(2, 50), (2, 21)])
async def test_a_cloud_that_shows_no_events_only_says_not_found(
    server: SimOpenStackServer, ours: Instances, project: SimProject, microversion: tuple[int, int]
):
    server.cloud.state.max_microversion = microversion
    project.delete_server(deleted := project.add_server("gone"))
    assert await ours.get_instance(deleted) == NotFound()
    found = await ours.get_instance(first_of(project))
    assert isinstance(found, Instance)
    assert found.instance_type == ""


async def test_a_cloud_without_actions_of_deleted_servers_is_not_asked(
    server: SimOpenStackServer, ours: Instances, project: SimProject
):
    server.cloud.state.max_microversion = (2, 20)
    answer = await ours.get_instance(first_of(project))
    assert answer == Unanswered("malformed", "login: Nova has no microversion 2.21")


STATES = {
    "ACTIVE": False,
    "ERROR": False,
    "PAUSED": False,
    "REBUILD": False,
    "UNKNOWN": False,
    "SHUTOFF": True,
    "SUSPENDED": True,
    "SHELVED": True,
    "SHELVED_OFFLOADED": True,
    "SOFT_DELETED": True,
}


@pytest.mark.parametrize(("status", "is_shut_down"), STATES.items())
async def test_a_server_in_any_state_exists(
    ours: Instances, project: SimProject, status: str, is_shut_down: bool
):
    found = await ours.get_instance(project.add_server("web", status=status))
    assert isinstance(found, Instance)
    assert found.is_shut_down == is_shut_down


# ---- lists


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("fault", [*OUTCOMES, "duplicate", "down_cell", "no_version"])
async def test_a_list_is_complete_or_no_answer(
    server: SimOpenStackServer, ours: Instances, fault: str, page: int
):
    server.add_fault(fault, ".*/servers/detail", after=page - 1, count=1)
    assert isinstance(await ours.list_instances(), Unanswered)


async def test_half_a_page_with_a_link_to_the_next_is_no_answer(
    server: SimOpenStackServer, ours: Instances, project: SimProject
):
    project.add_servers(100)
    server.add_fault("half_page", ".*/servers/detail", after=1, count=1)
    answer = await ours.list_instances()
    assert answer == Unanswered("malformed", "/servers: a page is not full")


async def test_a_full_page_without_a_link_to_the_next_is_no_answer(
    server: SimOpenStackServer, ours: Instances, project: SimProject
):
    server.add_fault("no_link", ".*/servers/detail", count=1)
    answer = await ours.list_instances()
    assert answer == Unanswered("malformed", "/servers: the list ends too early")


@pytest.mark.parametrize(("count", "max_limit"), [(0, 1000), (100, 1000), (200, 1000), (250, 30)])
async def test_a_list_has_every_server_whatever_the_size_of_its_pages(
    tmp_path: Path, count: int, max_limit: int
):
    async with open_openstack() as account, open_client(account, tmp_path) as ours:
        account.server.cloud.state.max_limit = max_limit
        account.server.cloud.state.add_project("other").add_servers(5)
        expected = account.project.add_servers(count)
        listed = await ours.list_instances()
    assert isinstance(listed, tuple)
    assert {each.id for each in listed} == set(expected)


async def test_a_server_that_went_between_two_pages_is_no_answer_if_it_was_the_mark(
    server: SimOpenStackServer, ours: Instances, project: SimProject
):
    def delete_mark(request: SimRequest) -> None:
        if "marker" in request.query:
            project.region.servers.pop(request.query["marker"])

    server.before_answer = delete_mark
    answer = await ours.list_instances()
    assert isinstance(answer, Unanswered)
    assert "badRequest" in answer.reason


async def test_names_are_compared_exactly_and_may_be_there_twice(ours: Instances, project: SimProject):
    expected = {project.add_server("a.b"), project.add_server("a.b")}
    for other in ("axb", "a.b.c", "A.B", "xa.b"):
        project.add_server(other)
    found = await ours.find_by_name("a.b")
    assert isinstance(found, tuple)
    assert {each.id for each in found} == expected


# ---- anchors


async def test_only_a_network_of_the_project_is_an_anchor_and_without_one_the_project(
    server: SimOpenStackServer, ours: Instances, project: SimProject
):
    shared = server.cloud.state.add_project("other").add_network(shared=True)
    without_network = Anchor("project", f"{project.id}@RegionOne")
    assert await ours.find_anchor() == without_network
    assert await ours.get_anchor(without_network) == without_network
    assert await ours.get_anchor(Anchor("project", f"{project.id}@RegionTwo")) == NotFound()
    assert isinstance(await ours.get_anchor(Anchor("network", shared)), Unanswered)
    network = project.add_network()
    project.add_network()
    assert await ours.find_anchor() == Anchor("network", network)


# ---- credential, project and region


async def test_the_credential_of_another_project_finds_neither_server_nor_anchor(
    server: SimOpenStackServer, ours: Instances, project: SimProject, tmp_path: Path
):
    anchors = (Anchor("network", project.add_network()), Anchor("project", f"{project.id}@RegionOne"))
    assert isinstance(await ours.get_instance(first_of(project)), Instance)
    assert [await ours.get_anchor(each) for each in anchors] == list(anchors)
    OpenStackAccount(server, user="other").write_credential(tmp_path)
    assert [await ours.get_anchor(each) for each in anchors] == [NotFound(), NotFound()]
    assert await ours.get_instance(first_of(project)) == NotFound()


async def test_a_corrected_password_is_used_at_once(
    account: OpenStackAccount, ours: Instances, project: SimProject, tmp_path: Path
):
    account.write_credential(tmp_path, "wrong")
    answer = await ours.get_instance(first_of(project))
    assert answer == Unanswered("unauthorized", "login: HTTP 401")
    account.write_credential(tmp_path)
    assert isinstance(await ours.get_instance(first_of(project)), Instance)


async def test_one_login_serves_many_queries_until_the_token_ends_or_is_revoked(
    server: SimOpenStackServer, ours: Instances, project: SimProject
):
    def count_logins() -> int:
        return sum(each.method == "POST" for each in server.requests)

    for _ in range(3):
        await ours.get_instance(first_of(project))
    assert count_logins() == 1
    server.cloud.state.tokens.clear()
    revoked = await ours.get_instance(first_of(project))
    assert isinstance(revoked, Unanswered)
    assert revoked.outcome == "unauthorized"
    assert isinstance(await ours.get_instance(first_of(project)), Instance)
    assert count_logins() == 2


async def test_each_region_has_its_own_servers(tmp_path: Path):
    async with open_openstack("north", "south") as account:
        in_north = account.project.add_server("web-1")
        south = account.server.cloud.state.enter_region(account.project.id, "south")
        in_south = south.add_server("web-1")
        ours = make_client("openstack", account.write_credential(tmp_path, region="south"))
        found = await ours.get_instance(in_south)
        assert isinstance(found, Instance)
        assert found.region == "south"
        assert await ours.get_instance(in_north) == NotFound()
        for region in ("", "west"):
            account.write_credential(tmp_path, region=region)
            answer = await ours.get_instance(in_south)
            assert isinstance(answer, Unanswered)
            assert answer.outcome == "malformed"
        await ours.close()


async def test_requests_and_logins_are_within_the_budget_and_observed(
    account: OpenStackAccount, project: SimProject, tmp_path: Path
):
    seen: list[tuple[str, bool]] = []
    async with open_client(
        account,
        tmp_path,
        requests_per_minute=3,
        observe=lambda outcome, seconds: seen.append((outcome, seconds > 0)),
    ) as ours:
        for _ in range(2):
            await ours.get_instance(first_of(project))
        await ours.get_instance("00000000-0000-0000-0000-000000000000")
        listing = asyncio.create_task(ours.list_instances())
        await wait_until(lambda: len(seen) == 6, "its first page")
        await asyncio.sleep(0)
        assert not listing.done(), "its second page is one request too many"
        listing.cancel()
        await asyncio.gather(listing, return_exceptions=True)
    # the first one is the login
    outcomes = ["found", "found", "found", "not_found", "not_found", "found"]
    assert seen == [(outcome, True) for outcome in outcomes]
    assert len(account.server.requests) <= 9


async def test_an_endpoint_in_clear_text_gets_neither_credential_nor_token(
    account: OpenStackAccount, tmp_path: Path
):
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))

    async with serve_tcp(serve) as port:
        file = account.write_credential(tmp_path, endpoint=f"http://127.0.0.2:{port}")
        ours = make_client("openstack", file)
        answer = await ours.get_instance(account.missing_id)
        await ours.close()
    assert isinstance(answer, Unanswered)
    assert received == []
