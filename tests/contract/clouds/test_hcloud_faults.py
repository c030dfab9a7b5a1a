"""Our client of Hetzner Cloud says "not found" only if the API does, and lists nothing in part."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from libs.clouds.instances import CREDENTIAL_ANCHOR, Anchor, Instance, Instances, Unanswered
from libs.testbed.clouds.hcloud.project import SYSTEM_IMAGE, SimProject
from libs.testbed.clouds.hcloud.server import SimHcloudServer
from tests.contract.clouds.accounts import FILE, HcloudAccount, open_client, open_hcloud

SERVERS = 60  # two pages


@pytest.fixture
async def account() -> AsyncIterator[HcloudAccount]:
    async with open_hcloud() as opened:
        opened.project.add_servers(SERVERS)
        yield opened


@pytest.fixture
def server(account: HcloudAccount) -> SimHcloudServer:
    return account.server


@pytest.fixture
def project(account: HcloudAccount) -> SimProject:
    return account.project


@pytest.fixture
async def ours(account: HcloudAccount, tmp_path: Path) -> AsyncIterator[Instances]:
    async with open_client(account, tmp_path) as opened:
        yield opened


def first_of(project: SimProject) -> str:
    return str(min(project.tables["servers"]))


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize(
    "fault", ["half_page", "duplicate", "service_error", "lying_not_found", "proxy_not_found"]
)
async def test_a_list_is_complete_or_no_answer(
    server: SimHcloudServer, ours: Instances, fault: str, page: int
):
    server.add_fault(fault, after=page - 1, count=1)
    assert isinstance(await ours.list_instances(), Unanswered)
    assert len(server.requests) == page
    assert len(listed_by(await ours.list_instances())) == SERVERS


def listed_by(answer: tuple[Instance, ...] | Unanswered) -> tuple[Instance, ...]:
    assert isinstance(answer, tuple), answer
    return answer


def a_new_server(project: SimProject) -> None:
    project.add_server("new")


def a_deleted_server(project: SimProject) -> None:
    project.remove("servers", int(first_of(project)))


@pytest.mark.parametrize("change", [a_new_server, a_deleted_server])
async def test_a_list_that_changes_between_two_pages_is_no_answer(
    server: SimHcloudServer,
    ours: Instances,
    project: SimProject,
    change: Callable[[SimProject], None],
):
    server.before_answer = lambda request: change(project) if request.query["page"] == "2" else None
    answer = await ours.list_instances()
    assert answer == Unanswered("malformed", "/servers: the list changed while it was read")


async def test_only_a_snapshot_is_an_image_that_is_an_anchor(
    server: SimHcloudServer, ours: Instances, project: SimProject
):
    backup = project.add_image(image_type="backup")
    for image in (SYSTEM_IMAGE["id"], backup):
        assert isinstance(await ours.get_anchor(Anchor("snapshot", str(image))), Unanswered)
    assert await ours.find_anchor() == Anchor(CREDENTIAL_ANCHOR, ours.credential.fingerprint)
    snapshot = project.add_image()
    assert await ours.find_anchor() == Anchor("snapshot", str(snapshot))
    assert server.requests[-1].query["type"] == "snapshot"  # there are many images of the cloud
    network = project.add_network()
    project.add_network()
    assert await ours.find_anchor() == Anchor("network", str(network))


async def test_an_image_of_the_cloud_is_no_anchor_even_if_the_filter_is_ignored(
    server: SimHcloudServer, ours: Instances
):
    server.cloud.ignores_filters = True
    assert await ours.find_anchor() == Anchor(CREDENTIAL_ANCHOR, ours.credential.fingerprint)


async def test_a_quarter_of_the_rate_limit_is_left_to_the_other_clients(
    server: SimHcloudServer, ours: Instances, project: SimProject, tmp_path: Path
):
    limit = project.bucket.limit
    project.bucket.take(limit * 3 // 4 - 3)
    answers = [await ours.get_instance(first_of(project)) for _ in range(10)]
    sent = len(server.requests)
    assert 3 <= sent <= 5  # some return each second
    assert all(isinstance(each, Instance) for each in answers[:sent])
    for held in answers[sent:]:
        assert isinstance(held, Unanswered)
        assert held.outcome == "held_back"
        assert held.retry_after_seconds is not None
        assert 50 < held.retry_after_seconds <= 60
    assert project.bucket.remaining >= limit // 4 - 1

    other = server.cloud.add_project("token-of-another")
    (tmp_path / FILE).write_text("token-of-another")
    assert isinstance(await ours.get_instance(str(other.add_server("a"))), Instance)
