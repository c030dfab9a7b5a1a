"""Our client of OpenStack says "not found" and "deleted" only if Nova does, and lists nothing in part."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.clouds.account_session import AccountOptions
from libs.clouds.instances import Anchor, Deleted, Instance, Instances, NotFound, Unanswered
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.openstack_instances import OpenStackInstances
from libs.common.client_tls import without_system_authorities
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.openstack.objects import Document, make_event
from libs.testbed.clouds.openstack.server import SimOpenStack, SimOpenStackServer
from libs.testbed.clouds.openstack.state import SimProject
from tests.contract.clouds.accounts import make_client
from tests.contract.clouds.openstack_account import open_account, write_cloud_conf
from tests.tcp_server import serve_tcp

SERVERS = 150  # two pages
NOVA = "/compute/RegionOne/v2.1/servers/.*"
NEUTRON = "/network/RegionOne/v2.0/.*"
KEYSTONE = "/identity/.*"
SERVER_ID = "0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11"


@pytest.fixture(autouse=True)
def no_authorities() -> Iterator[None]:
    """No server here has TLS, and the system's authorities take a tenth of a second for each login."""
    with without_system_authorities():
        yield


@pytest.fixture
async def server() -> AsyncIterator[SimOpenStackServer]:
    async with SimOpenStackServer.start(SimOpenStack()) as running:
        yield running


@pytest.fixture
def project(server: SimOpenStackServer) -> SimProject:
    made = server.cloud.state.add_project("web")
    made.add_servers(SERVERS)
    return made


@pytest.fixture
async def ours(server: SimOpenStackServer, project: SimProject, tmp_path: Path) -> AsyncIterator[Instances]:
    async with open_account(server.endpoint, tmp_path) as opened:
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
async def test_a_fault_answers_no_question(
    server: SimOpenStackServer, project: SimProject, tmp_path: Path, fault: str, outcome: str
):
    network = project.add_network()
    questions = (
        lambda ours: ours.list_instances(),
        lambda ours: ours.get_instance(first_of(project)),
        lambda ours: ours.find_by_name("server-1"),
        lambda ours: ours.find_anchor(),
        lambda ours: ours.get_anchor(Anchor("network", network)),
        lambda ours: ours.get_anchor(Anchor("project", f"{project.id}@RegionOne")),
    )
    server.add_fault(fault, NOVA)
    server.add_fault(fault, NEUTRON)
    for question in questions:
        async with open_account(server.endpoint, tmp_path) as ours:  # a 429 silences the client for a while
            answer = await question(ours)
        assert isinstance(answer, Unanswered)
        assert answer.outcome == outcome
        assert "secret" not in answer.reason
    assert {each.method for each in server.requests if not each.path.startswith("/identity")} == {"GET"}


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [*((name, outcome) for name, outcome in OUTCOMES.items() if name != "huge"), ("hang", "unreachable")],
)
async def test_a_fault_of_keystone_answers_nothing_and_reaches_no_service(
    server: SimOpenStackServer, project: SimProject, tmp_path: Path, fault: str, outcome: str
):
    server.add_fault(fault, KEYSTONE + "tokens")
    file = write_cloud_conf(tmp_path, server.endpoint)
    options = AccountOptions(credential=file, user_agent="talos-ccm/test")
    ours = OpenStackInstances(OpenStackApi(options, login_deadline_seconds=2.0))
    answer = await ours.get_instance(first_of(project))
    again = await ours.get_instance(first_of(project))
    await ours.close()
    assert isinstance(answer, Unanswered)
    assert answer.outcome in {outcome, "malformed"}
    assert "secret" not in answer.reason
    assert isinstance(again, Unanswered)
    assert again.outcome == "held_back"  # a wrong password must not lock the user out
    assert sum(each.method == "POST" for each in server.requests) <= 1
    assert not any(each.path.startswith(("/compute", "/network")) for each in server.requests)


async def test_silence_answers_no_question(server: SimOpenStackServer, project: SimProject, tmp_path: Path):
    server.add_fault("hang", NOVA)
    async with open_account(server.endpoint, tmp_path, deadline_seconds=0.1) as ours, asyncio.timeout(10):
        answer = await ours.get_instance(first_of(project))
    assert answer == Unanswered("unreachable", f"/servers/{first_of(project)}: no answer within 0.1 s")


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


@pytest.mark.parametrize("fault", ["wrong_id", "login_page", "no_version", "down_cell"])
async def test_a_part_of_a_server_or_another_one_is_no_answer(
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


async def test_a_soft_deleted_server_exists(ours: Instances, project: SimProject):
    server_id = first_of(project)
    project.soft_delete_server(server_id)
    found = await ours.get_instance(server_id)
    assert isinstance(found, Instance)
    assert found.is_shut_down


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
    server: SimOpenStackServer, tmp_path: Path, count: int, max_limit: int
):
    server.cloud.state.max_limit = max_limit
    expected = server.cloud.state.add_project("web").add_servers(count)
    server.cloud.state.add_project("other").add_servers(5)
    async with open_account(server.endpoint, tmp_path) as ours:
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
    server.add_fault("wrong_id", NEUTRON)
    assert isinstance(await ours.get_anchor(Anchor("network", network)), Unanswered)


async def test_the_configured_anchor_is_the_only_one(
    server: SimOpenStackServer, project: SimProject, tmp_path: Path
):
    project.add_network()
    configured = Anchor("network", project.add_network())
    async with open_account(server.endpoint, tmp_path, anchor=configured) as ours:
        assert await ours.find_anchor() == configured
        del project.region.networks[configured.id]
        assert await ours.find_anchor() is None


@pytest.mark.parametrize(
    "anchor", [Anchor("router", "5"), Anchor("network", "net"), Anchor("project", "web")]
)
def test_an_unusable_anchor_is_rejected(anchor: Anchor, tmp_path: Path):
    with pytest.raises(ValueError, match="anchor"):
        make_client("openstack", tmp_path / "cloud.conf", anchor=anchor)


# ---- credential, project and region


async def test_a_replaced_credential_starts_a_new_generation_and_voids_a_list(
    server: SimOpenStackServer, ours: Instances, project: SimProject, tmp_path: Path
):
    server.cloud.state.add_project("other")
    await ours.get_instance(first_of(project))
    before = ours.credential

    def replace(request: SimRequest) -> None:
        if request.path.endswith("/detail"):
            write_cloud_conf(tmp_path, server.endpoint, user="other")

    server.before_answer = replace
    answer = await ours.list_instances()
    assert answer == Unanswered("unauthorized", "the credential changed while /servers was listed")
    assert (before.generation, ours.credential.generation) == (1, 2)


async def test_the_credential_of_another_project_finds_neither_server_nor_anchor(
    server: SimOpenStackServer, ours: Instances, project: SimProject, tmp_path: Path
):
    server.cloud.state.add_project("other")
    anchors = (Anchor("network", project.add_network()), Anchor("project", f"{project.id}@RegionOne"))
    assert isinstance(await ours.get_instance(first_of(project)), Instance)
    assert [await ours.get_anchor(each) for each in anchors] == list(anchors)
    write_cloud_conf(tmp_path, server.endpoint, user="other")
    assert [await ours.get_anchor(each) for each in anchors] == [NotFound(), NotFound()]
    assert await ours.get_instance(first_of(project)) == NotFound()


async def test_a_removed_credential_answers_nothing_and_sends_nothing(
    server: SimOpenStackServer, ours: Instances, project: SimProject, tmp_path: Path
):
    await ours.get_instance(first_of(project))
    sent = len(server.requests)
    (tmp_path / "cloud.conf").unlink()
    answer = await ours.get_instance(first_of(project))
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "unauthorized"
    assert len(server.requests) == sent


async def test_a_corrected_password_is_used_at_once(
    server: SimOpenStackServer, ours: Instances, project: SimProject, tmp_path: Path
):
    file = tmp_path / "cloud.conf"
    right = file.read_text()
    file.write_text(right.replace("web-secret", "wrong"))
    answer = await ours.get_instance(first_of(project))
    assert answer == Unanswered("unauthorized", "login: HTTP 401")
    file.write_text(right)
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
    async with SimOpenStackServer.start(SimOpenStack(regions=("north", "south"))) as server:
        north = server.cloud.state.add_project("web", "north")
        in_north = north.add_server("web-1")
        south = server.cloud.state.enter_region(north.id, "south")
        in_south = south.add_server("web-1")
        write_cloud_conf(tmp_path, server.endpoint, region="south")
        ours = make_client("openstack", tmp_path / "cloud.conf")
        found = await ours.get_instance(in_south)
        assert isinstance(found, Instance)
        assert found.region == "south"
        assert await ours.get_instance(in_north) == NotFound()
        for region in ("", "west"):
            write_cloud_conf(tmp_path, server.endpoint, region=region)
            answer = await ours.get_instance(in_south)
            assert isinstance(answer, Unanswered)
            assert answer.outcome == "malformed"
        await ours.close()


async def test_requests_and_logins_are_within_the_budget_and_observed(
    server: SimOpenStackServer, project: SimProject, tmp_path: Path
):
    seen: list[tuple[str, bool]] = []
    async with open_account(
        server.endpoint,
        tmp_path,
        requests_per_minute=4,
        observe=lambda outcome, seconds: seen.append((outcome, seconds > 0)),
    ) as ours:
        await ours.get_instance(first_of(project))
        await ours.get_instance("00000000-0000-0000-0000-000000000000")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ours.list_instances()  # its second page is one request too many
    outcomes = ["found", "found", "not_found", "not_found", "found"]  # the first one is the login
    assert seen == [(outcome, True) for outcome in outcomes]
    assert len(server.requests) <= 8


@pytest.mark.parametrize(
    ("provider_id", "server_id"),
    [
        (f"openstack:///{SERVER_ID}", SERVER_ID),
        (f"openstack://RegionOne/{SERVER_ID}", SERVER_ID),
        (f"openstack://RegionTwo/{SERVER_ID}", None),
        (f"openstack://{SERVER_ID}", None),
        (f"openstack:///{SERVER_ID.upper()}", None),
        (f"openstack:///{SERVER_ID}/", None),
        (f"openstack:///{SERVER_ID}\n", None),
        (f"openstack:///x{SERVER_ID}", None),
        ("openstack:///web-1", None),
        ("openstack:///", None),
        ("hcloud://7", None),
    ],
)
def test_only_the_canonical_provider_id_has_an_id(ours: Instances, provider_id: str, server_id: str | None):
    assert ours.parse_provider_id(provider_id) == server_id


async def test_an_endpoint_in_clear_text_gets_neither_credential_nor_token(
    project: SimProject, tmp_path: Path
):
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))

    async with serve_tcp(serve) as port:
        file = write_cloud_conf(tmp_path, f"http://127.0.0.2:{port}")
        ours = make_client("openstack", file)
        answer = await ours.get_instance(first_of(project))
        await ours.close()
    assert isinstance(answer, Unanswered)
    assert received == []
