"""Our client of Hetzner Cloud says "not found" only if the API does, and lists nothing in part."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from libs.clouds.hcloud.hcloud_instances import HcloudInstances
from libs.clouds.instances import CREDENTIAL_ANCHOR, Anchor, Instance, Unanswered
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.hcloud.project import SYSTEM_IMAGE, SimProject
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.pki import CertificateAuthority
from tests.contract.clouds.hcloud_account import TOKEN, open_account
from tests.tcp_server import serve_tcp
from tests.virtual_loop import run_virtually

SERVERS = 60  # two pages


@pytest.fixture
async def server() -> AsyncIterator[SimHcloudServer]:
    async with SimHcloudServer.start(SimHcloud()) as running:
        yield running


@pytest.fixture
def project(server: SimHcloudServer) -> SimProject:
    made = server.cloud.add_project(TOKEN)
    made.add_servers(SERVERS)
    return made


@pytest.fixture
async def ours(
    server: SimHcloudServer, project: SimProject, tmp_path: Path
) -> AsyncIterator[HcloudInstances]:
    async with open_account(server.endpoint, tmp_path) as opened:
        yield opened


def first_of(project: SimProject) -> str:
    return str(min(project.tables["servers"]))


OUTCOMES = {
    "unauthorized": "unauthorized",
    "forbidden": "forbidden",
    "rate_limited": "rate_limited",
    "service_error": "server_error",
    "proxy_not_found": "malformed",
    "proxy_bad_gateway": "server_error",
    "login_page": "malformed",
    "redirect": "malformed",
    "huge": "malformed",
    "cut_off": "unreachable",
}


@pytest.mark.parametrize(("fault", "outcome"), OUTCOMES.items())
async def test_a_fault_answers_no_question(
    server: SimHcloudServer, project: SimProject, tmp_path: Path, fault: str, outcome: str
):
    server.add_fault(fault)
    questions = (
        lambda ours: ours.list_instances(),
        lambda ours: ours.get_instance(first_of(project)),
        lambda ours: ours.find_by_name("server-1"),
        lambda ours: ours.find_anchor(),
        lambda ours: ours.get_anchor(Anchor("network", "5")),
    )
    for question in questions:
        async with open_account(server.endpoint, tmp_path) as ours:  # a 429 silences the client for a while
            answer = await question(ours)
        assert isinstance(answer, Unanswered)
        assert answer.outcome == outcome
        assert TOKEN not in answer.reason
    assert all(each.method == "GET" for each in server.requests)
    assert len(server.requests) == len(questions)


async def test_silence_answers_no_question(server: SimHcloudServer, project: SimProject, tmp_path: Path):
    server.add_fault("hang")
    async with open_account(server.endpoint, tmp_path, deadline_seconds=0.1) as ours, asyncio.timeout(10):
        answer = await ours.get_instance(first_of(project))
    assert answer == Unanswered("unreachable", f"/servers/{first_of(project)}: no answer within 0.1 s")


async def test_no_server_at_all_answers_no_question(tmp_path: Path):
    async with open_account("http://127.0.0.1:1/v1", tmp_path) as ours:
        answer = await ours.get_instance("5")
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "unreachable"


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b'HTTP/1.1 404 Not Found\r\nContent-Length: 99\r\n\r\n{"error":{"code":"not_found"}}',
    ],
    ids=lambda response: response[:50],
)
async def test_a_response_that_is_not_complete_http_is_no_answer(response: bytes, tmp_path: Path):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()

    async with (
        serve_tcp(serve) as port,
        open_account(f"http://127.0.0.1:{port}/v1", tmp_path) as ours,
    ):
        answer = await ours.get_instance("5")
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "unreachable"


async def test_a_server_with_an_untrusted_certificate_gets_no_token(tmp_path: Path):
    pair = CertificateAuthority.make().issue_server(["127.0.0.1"])
    (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem")
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    async with (
        serve_tcp(serve, tls=tls) as port,
        open_account(f"https://127.0.0.1:{port}/v1", tmp_path) as ours,
    ):
        answer = await ours.get_instance("5")
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "unreachable"
    assert "certificate verify failed" in answer.reason
    assert not any(received)


def test_requests_beyond_those_of_a_minute_wait_for_their_turn(tmp_path: Path):
    async def ask() -> list[float]:
        clock = asyncio.get_running_loop().time
        sent: list[float] = []
        async with open_account(
            "http://127.0.0.1:1/v1",
            tmp_path,
            requests_per_minute=2,
            observe=lambda outcome, seconds: sent.append(clock() - seconds),
        ) as ours:
            await asyncio.gather(*(ours.get_instance("5") for _ in range(5)))
        return sent

    sent = run_virtually(ask())
    assert len(sent) == 5
    assert all(later - sooner >= 60 for sooner, later in zip(sent, sent[2:], strict=False))


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize(
    "fault", ["half_page", "duplicate", "service_error", "lying_not_found", "proxy_not_found"]
)
async def test_a_list_is_complete_or_no_answer(
    server: SimHcloudServer, ours: HcloudInstances, fault: str, page: int
):
    server.add_fault(fault, after=page - 1, count=1)
    assert isinstance(await ours.list_instances(), Unanswered)
    assert len(server.requests) == page
    assert len(listed_by(await ours.list_instances())) == SERVERS


def listed_by(answer: tuple[Instance, ...] | Unanswered) -> tuple[Instance, ...]:
    assert isinstance(answer, tuple), answer
    return answer


async def test_a_list_that_lies_that_it_is_empty_is_an_answer_that_proves_nothing(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject
):
    server.add_fault("empty_list", path="/servers")
    assert await ours.list_instances() == ()
    assert isinstance(await ours.get_instance(first_of(project)), Instance)


def a_new_server(project: SimProject) -> None:
    project.add_server("new")


def a_deleted_server(project: SimProject) -> None:
    project.remove("servers", int(first_of(project)))


@pytest.mark.parametrize("change", [a_new_server, a_deleted_server])
async def test_a_list_that_changes_between_two_pages_is_no_answer(
    server: SimHcloudServer,
    ours: HcloudInstances,
    project: SimProject,
    change: Callable[[SimProject], None],
):
    server.before_answer = lambda request: change(project) if request.query["page"] == "2" else None
    answer = await ours.list_instances()
    assert answer == Unanswered("malformed", "/servers: the list changed while it was read")


@pytest.mark.parametrize("fault", ["wrong_id", "login_page"])
async def test_another_object_than_the_one_asked_for_is_no_answer(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject, fault: str
):
    server.add_fault(fault)
    assert isinstance(await ours.get_instance(first_of(project)), Unanswered)


async def test_only_a_snapshot_is_an_image_that_is_an_anchor(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject
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


async def test_a_cloud_that_ignores_filters_is_not_believed(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject
):
    server.cloud.ignores_filters = True
    found = await ours.find_by_name("server-7")
    assert isinstance(found, tuple)
    assert [each.name for each in found] == ["server-7"]
    assert await ours.find_by_name("server") == ()
    assert await ours.find_anchor() == Anchor(CREDENTIAL_ANCHOR, ours.credential.fingerprint)


async def test_the_configured_anchor_is_the_only_one(
    server: SimHcloudServer, project: SimProject, tmp_path: Path
):
    project.add_network()
    volume = project.add_volume()
    async with open_account(server.endpoint, tmp_path, anchor=Anchor("volume", str(volume))) as ours:
        assert await ours.find_anchor() == Anchor("volume", str(volume))
        project.remove("volumes", volume)
        assert await ours.find_anchor() is None


async def test_a_replaced_token_starts_a_new_generation_and_voids_a_list(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject, tmp_path: Path
):
    server.cloud.tokens["token-2"] = project
    await ours.get_instance(first_of(project))
    before = ours.credential

    def replace_token(request: SimRequest) -> None:
        if request.query.get("page") == "1":
            (tmp_path / "token").write_text("token-2")

    server.before_answer = replace_token
    answer = await ours.list_instances()
    assert answer == Unanswered("unauthorized", "the token changed while servers were listed")
    assert [each.token for each in server.requests] == [TOKEN, TOKEN, "token-2"]
    assert (before.generation, ours.credential.generation) == (1, 2)
    assert before.loaded_at < ours.credential.loaded_at


async def test_a_removed_token_answers_nothing_and_sends_nothing(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject, tmp_path: Path
):
    (tmp_path / "token").unlink()
    answer = await ours.get_instance(first_of(project))
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "unauthorized"
    assert server.requests == []


async def test_a_quarter_of_the_rate_limit_is_left_to_the_other_clients(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject, tmp_path: Path
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
    (tmp_path / "token").write_text("token-of-another")
    assert isinstance(await ours.get_instance(str(other.add_server("a"))), Instance)


async def test_after_a_429_nothing_is_sent_for_the_requested_time(
    server: SimHcloudServer, ours: HcloudInstances, project: SimProject
):
    server.add_fault("rate_limited", count=1)
    answers = [await ours.get_instance(first_of(project)) for _ in range(2)]
    assert len(server.requests) == 1
    assert isinstance(answers[0], Unanswered)
    assert isinstance(answers[1], Unanswered)
    assert (answers[0].outcome, answers[0].retry_after_seconds) == ("rate_limited", 90)
    assert answers[1].outcome == "held_back"


async def test_each_request_is_observed_with_its_outcome(
    server: SimHcloudServer, project: SimProject, tmp_path: Path
):
    seen: list[tuple[str, bool]] = []
    server.add_fault("service_error", after=3, count=1)
    async with open_account(
        server.endpoint, tmp_path, observe=lambda outcome, seconds: seen.append((outcome, seconds > 0))
    ) as ours:
        await ours.list_instances()
        await ours.get_instance("5")
        await ours.get_instance("5")
    assert seen == [("found", True), ("found", True), ("not_found", True), ("server_error", True)]


@pytest.mark.parametrize(
    ("provider_id", "server_id"),
    [
        ("hcloud://7", "7"),
        ("hcloud://07", None),
        ("hcloud://", None),
        ("hcloud://0", None),
        ("hcloud://7 ", None),
        ("hcloud://7/", None),
        ("hcloud://-7", None),
        ("hcloud://\u0667", None),
        ("hcloud://bm-7", None),
        ("hrobot://7", None),
        ("HCLOUD://7", None),
        ("hcloud:/7", None),
        ("7", None),
    ],
)
def test_only_the_canonical_provider_id_has_an_id(
    ours: HcloudInstances, provider_id: str, server_id: str | None
):
    assert ours.parse_provider_id(provider_id) == server_id


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://api.hetzner.cloud/v1",
        "ftp://127.0.0.1/",
        "https://user:secret@api.example/v1",
        "api.example",
        "",
    ],
)
def test_an_endpoint_that_would_reveal_the_token_is_rejected(endpoint: str, tmp_path: Path):
    with pytest.raises(ValueError, match="endpoint"):
        HcloudInstances(tmp_path / "token", user_agent="test", endpoint=endpoint)


@pytest.mark.parametrize("anchor", [Anchor("image", "5"), Anchor("network", "net"), Anchor("network", "")])
def test_an_unusable_anchor_is_rejected(anchor: Anchor, tmp_path: Path):
    with pytest.raises(ValueError, match="anchor"):
        HcloudInstances(tmp_path / "token", user_agent="test", anchor=anchor)
