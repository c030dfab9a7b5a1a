"""Each client of a cloud says "not found" only if the cloud does, and takes nothing else for an answer."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from libs.clouds.instances import Anchor, Instance, Instances, NotFound, Unanswered
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.http_faults import Answer
from libs.testbed.pki import CertificateAuthority
from tests.clocks import run_virtually
from tests.contract.clouds.accounts import (
    FILE,
    OPEN,
    SECRET,
    CloudAccount,
    list_queries,
    make_client,
    open_client,
)
from tests.tcp_server import serve_tcp


@pytest.fixture(params=OPEN)
async def account(request: pytest.FixtureRequest) -> AsyncIterator[CloudAccount]:
    async with OPEN[request.param]() as opened:
        yield opened


WITHOUT_LOGIN = [cloud for cloud in OPEN if cloud != "openstack"]


@pytest.fixture
async def ours(account: CloudAccount, tmp_path: Path) -> AsyncIterator[Instances]:
    async with open_client(account, tmp_path) as opened:
        yield opened


OUTCOMES = {
    "unauthorized": "unauthorized",
    "forbidden": "forbidden",
    "rate_limited": "rate_limited",
    "service_error": "server_error",
    "proxy_not_found": "malformed",
    "proxy_bad_gateway": "server_error",
    "echo": "server_error",
    "login_page": "malformed",
    "redirect": "malformed",
    "huge": "malformed",
    "cut_off": "unreachable",
}


@pytest.mark.parametrize(("fault", "outcome"), OUTCOMES.items())
async def test_a_fault_answers_no_question(account: CloudAccount, tmp_path: Path, fault: str, outcome: str):
    machine, anchor = account.add_machine("web-1"), account.add_anchor()
    account.server.add_fault(fault, account.queries)
    questions: tuple[Callable[[Instances], object], ...] = (
        lambda ours: ours.list_instances(),
        lambda ours: ours.get_instance(machine),
        lambda ours: ours.find_by_name("web-1"),
        lambda ours: ours.find_anchor(),
        lambda ours: ours.get_anchor(anchor),
    )
    for question in questions:
        async with open_client(account, tmp_path) as ours:  # a 429 silences the client for a while
            answer = await question(ours)  # type: ignore[misc]
        assert isinstance(answer, Unanswered)
        assert answer.outcome == outcome
        assert SECRET not in answer.reason
    assert [each.method for each in list_queries(account)] == ["GET"] * len(questions)


async def test_silence_answers_no_question(account: CloudAccount, tmp_path: Path):
    machine = account.add_machine("web-1")
    account.server.add_fault("hang", account.queries)
    async with open_client(account, tmp_path, deadline_seconds=0.1) as ours, asyncio.timeout(HANG_SECONDS):
        answer = await ours.get_instance(machine)
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "unreachable"
    assert answer.reason.endswith(f"/{machine}: no answer within 0.1 s")


async def test_no_server_at_all_answers_no_question(account: CloudAccount, tmp_path: Path):
    async with open_client(account, tmp_path, endpoint="http://127.0.0.1:1/v1") as ours:
        answer = await ours.get_instance(account.missing_id)
    assert isinstance(answer, Unanswered)
    assert answer.outcome == account.unreachable


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
        b'HTTP/1.1 404 Not Found\r\nContent-Length: 99\r\n\r\n{"message":"not found"}',
    ],
    ids=lambda response: response[:50],
)
async def test_a_response_that_is_not_complete_http_is_no_answer(
    account: CloudAccount, response: bytes, tmp_path: Path
):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()

    async with (
        serve_tcp(serve) as port,
        open_client(account, tmp_path, endpoint=f"http://127.0.0.1:{port}/v1") as ours,
    ):
        answer = await ours.get_instance(account.missing_id)
    assert isinstance(answer, Unanswered)
    assert answer.outcome == account.unreachable


async def test_a_server_with_an_untrusted_certificate_gets_no_credential(
    account: CloudAccount, tmp_path: Path
):
    pair = CertificateAuthority.make().issue_server(["127.0.0.1"])
    (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem")
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    async with (
        serve_tcp(serve, tls=tls) as port,
        open_client(account, tmp_path, endpoint=f"https://127.0.0.1:{port}/v1") as ours,
    ):
        answer = await ours.get_instance(account.missing_id)
    assert isinstance(answer, Unanswered)
    assert answer.outcome == account.unreachable
    assert re.search("certificate verify failed|DiscoveryFailure", answer.reason)
    assert not any(received)


@pytest.mark.parametrize("cloud", WITHOUT_LOGIN)
def test_requests_beyond_those_of_a_minute_wait_for_their_turn(cloud: str, tmp_path: Path):
    async def ask() -> list[float]:
        clock = asyncio.get_running_loop().time
        sent: list[float] = []
        async with (
            OPEN[cloud]() as account,
            open_client(
                account,
                tmp_path,
                endpoint="http://127.0.0.1:1/v1",
                requests_per_minute=2,
                observe=lambda outcome, seconds: sent.append(clock() - seconds),
            ) as ours,
        ):
            await asyncio.gather(*(ours.get_instance(account.missing_id) for _ in range(5)))
        return sent

    sent = run_virtually(ask())
    assert len(sent) == 5
    assert all(later - sooner >= 60 for sooner, later in zip(sent, sent[2:], strict=False))


@pytest.mark.parametrize(
    "fault", ["duplicate", "lying_not_found", "proxy_not_found", "cut_off", "login_page"]
)
async def test_a_list_is_complete_or_no_answer(account: CloudAccount, ours: Instances, fault: str):
    machines = {account.add_machine(name) for name in ("web-1", "web-2", "web-3")}
    account.server.add_fault(fault, account.queries, count=1)
    assert isinstance(await ours.list_instances(), Unanswered)
    listed = await ours.list_instances()
    assert isinstance(listed, tuple)
    assert {each.id for each in listed} == machines


async def test_a_list_that_lies_that_it_is_empty_is_an_answer_that_proves_nothing(
    account: CloudAccount, ours: Instances
):
    machine = account.add_machine("web-1")
    account.server.add_fault("empty_list", path=account.machines)
    assert await ours.list_instances() == ()
    assert isinstance(await ours.get_instance(machine), Instance)


@pytest.mark.parametrize("fault", ["wrong_id", "login_page"])
async def test_another_object_than_the_one_asked_for_is_no_answer(
    account: CloudAccount, ours: Instances, fault: str
):
    machine, anchor = account.add_machine("web-1"), account.add_anchor()
    account.server.add_fault(fault, account.queries)
    assert isinstance(await ours.get_instance(machine), Unanswered)
    assert isinstance(await ours.get_anchor(anchor), Unanswered)


async def test_only_what_exists_is_found_by_its_id_and_name(account: CloudAccount, ours: Instances):
    machine, other = account.add_machine("web-1"), account.add_machine("web-2")
    anchor = account.add_anchor()
    found = await ours.get_instance(machine)
    assert isinstance(found, Instance)
    assert (found.id, found.name, found.is_shut_down) == (machine, "web-1", False)
    assert await ours.find_by_name("web-1") == (found,)
    assert await ours.find_by_name("web") == ()
    assert await ours.get_anchor(anchor) == anchor
    account.remove_machine(machine)
    account.remove_anchor(anchor)
    assert await ours.get_instance(machine) == NotFound()
    assert await ours.get_instance(account.missing_id) == NotFound()
    assert await ours.find_by_name("web-1") == ()
    assert await ours.get_anchor(anchor) == NotFound()
    listed = await ours.list_instances()
    assert isinstance(listed, tuple)
    assert [each.id for each in listed] == [other]


@pytest.mark.parametrize("object_id", ["", "5/", "..", "5?a=b", "5#a", "\u0665", " 5", "5\r\n"])
async def test_what_is_no_id_is_not_asked_for(account: CloudAccount, ours: Instances, object_id: str):
    for answer in (
        await ours.get_instance(object_id),
        await ours.get_anchor(Anchor(account.add_anchor().kind, object_id)),
    ):
        assert isinstance(answer, Unanswered)
    assert account.server.requests == []


UNUSABLE_ANCHORS = [
    ("hcloud", Anchor("image", "5")),
    ("hcloud", Anchor("network", "net")),
    ("hcloud", Anchor("network", "")),
    ("openstack", Anchor("router", "5")),
    ("openstack", Anchor("network", "net")),
    ("openstack", Anchor("project", "web")),
    ("thalassa", Anchor("network", "vpc-1")),
    ("thalassa", Anchor("vpc", "")),
    ("thalassa", Anchor("vpc", "a/b")),
]


@pytest.mark.parametrize(("account", "anchor"), UNUSABLE_ANCHORS, indirect=["account"])
async def test_an_unusable_anchor_is_rejected(account: CloudAccount, anchor: Anchor, tmp_path: Path):
    with pytest.raises(ValueError, match="anchor"):
        make_client(account.provider, tmp_path / FILE, anchor=anchor)
    async with open_client(account, tmp_path) as ours:
        assert isinstance(await ours.get_anchor(anchor), Unanswered)
    assert account.server.requests == []


async def test_a_cloud_that_ignores_filters_is_not_believed(account: CloudAccount, ours: Instances):
    account.server.cloud.ignores_filters = True
    for name in ("web-1", "web-2"):
        account.add_machine(name)
    found = await ours.find_by_name("web-2")
    assert isinstance(found, tuple)
    assert [each.name for each in found] == ["web-2"]
    assert await ours.find_by_name("web") == ()


async def test_the_configured_anchor_is_the_only_one(account: CloudAccount, tmp_path: Path):
    first, second = account.add_anchor(), account.add_anchor()
    async with open_client(account, tmp_path) as ours:
        assert await ours.find_anchor() == first
    async with open_client(account, tmp_path, anchor=second) as ours:
        assert await ours.find_anchor() == second
        account.remove_anchor(second)
        assert await ours.find_anchor() is None


async def test_a_replaced_credential_starts_a_new_generation(
    account: CloudAccount, ours: Instances, tmp_path: Path
):
    machine = account.add_machine("web-1")
    await ours.get_instance(machine)
    before = ours.credential
    account.replace_secret("another-secret")
    account.write_credential(tmp_path, "another-secret")
    assert isinstance(await ours.get_instance(machine), Instance)
    assert len({each.token for each in list_queries(account)}) == 2
    assert (before.generation, ours.credential.generation) == (1, 2)
    assert before.loaded_at < ours.credential.loaded_at


@pytest.mark.parametrize("account", ["hcloud", "openstack"], indirect=True)  # they have pages
async def test_a_credential_that_is_replaced_between_two_pages_voids_the_list(
    account: CloudAccount, ours: Instances, tmp_path: Path
):
    for number in range(110):
        account.add_machine(f"web-{number}")

    def replace(request: SimRequest, answer: Answer) -> None:
        if re.fullmatch(account.queries, request.path):
            account.replace_secret("another-secret")
            account.write_credential(tmp_path, "another-secret")

    account.server.after_answer = replace
    answer = await ours.list_instances()
    assert answer == Unanswered("unauthorized", "the credential changed while /servers was listed")
    assert len({each.token for each in list_queries(account)}) == 2


async def test_a_removed_credential_answers_nothing_and_sends_nothing(
    account: CloudAccount, ours: Instances, tmp_path: Path
):
    (tmp_path / FILE).unlink()
    answers = (
        await ours.list_instances(),
        await ours.get_instance(account.add_machine("web-1")),
        await ours.find_by_name("web-1"),
        await ours.find_anchor(),
        await ours.get_anchor(account.add_anchor()),
    )
    for answer in answers:
        assert isinstance(answer, Unanswered)
        assert answer.outcome == "unauthorized"
    assert account.server.requests == []


async def test_after_a_429_nothing_is_sent_for_the_requested_time(
    account: CloudAccount, ours: Instances, tmp_path: Path
):
    account.server.add_fault("rate_limited", account.queries, count=1)
    machine = account.add_machine("web-1")
    answers = [await ours.get_instance(machine) for _ in range(2)]
    assert len(list_queries(account)) == 1
    assert isinstance(answers[0], Unanswered)
    assert isinstance(answers[1], Unanswered)
    assert (answers[0].outcome, answers[0].retry_after_seconds) == ("rate_limited", 90)
    assert answers[1].outcome == "held_back"

    account.replace_secret("another-secret")  # with a rate limit of its own
    account.write_credential(tmp_path, "another-secret")
    assert isinstance(await ours.get_instance(machine), Instance)


@pytest.mark.parametrize("account", WITHOUT_LOGIN, indirect=True)
async def test_each_request_is_observed_with_its_outcome(account: CloudAccount, tmp_path: Path):
    seen: list[tuple[str, bool]] = []
    account.add_machine("web-1")
    account.server.add_fault("service_error", after=2, count=1)
    async with open_client(
        account, tmp_path, observe=lambda outcome, seconds: seen.append((outcome, seconds > 0))
    ) as ours:
        await ours.list_instances()
        await ours.get_instance(account.missing_id)
        await ours.get_instance(account.missing_id)
    assert seen == [("found", True), ("not_found", True), ("server_error", True)]


@pytest.mark.parametrize("account", WITHOUT_LOGIN, indirect=True)
@pytest.mark.parametrize(
    "endpoint",
    [
        "http://cloud.example/v1",
        "ftp://127.0.0.1/",
        "https://user:secret@cloud.example/v1",
        "cloud.example",
    ],
)
async def test_an_endpoint_that_would_reveal_the_credential_is_rejected(
    account: CloudAccount, endpoint: str, tmp_path: Path
):
    with pytest.raises(ValueError, match="endpoint"):
        async with open_client(account, tmp_path, endpoint=endpoint):
            pass


SERVER_ID = "0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11"
PROVIDER_IDS = {
    "hcloud": {
        "hcloud://7": "7",
        "hcloud://999999999999999999": "999999999999999999",
        "hcloud://9999999999999999999": None,
        "hcloud://07": None,
        "hcloud://": None,
        "hcloud://0": None,
        "hcloud://7 ": None,
        "hcloud://7/": None,
        "hcloud://-7": None,
        "hcloud://\u0667": None,
        "hcloud://bm-7": None,
        "hrobot://7": None,
        "HCLOUD://7": None,
        "hcloud:/7": None,
        "7": None,
    },
    "openstack": {
        f"openstack:///{SERVER_ID}": SERVER_ID,
        f"openstack://RegionOne/{SERVER_ID}": SERVER_ID,
        f"openstack://RegionTwo/{SERVER_ID}": SERVER_ID,
        f"openstack://{SERVER_ID}": None,
        f"openstack:///{SERVER_ID.upper()}": None,
        f"openstack:///{SERVER_ID}/": None,
        f"openstack:///{SERVER_ID}\n": None,
        f"openstack:///x{SERVER_ID}": None,
        "openstack:///web-1": None,
        "openstack:///": None,
        "hcloud://7": None,
    },
    "thalassa": {
        "thalassacloud://vm-7": "vm-7",
        "thalassacloud://A_b-9": "A_b-9",
        "thalassacloud:///vm-7": None,
        "thalassacloud://vm-7/": None,
        "thalassacloud://vm-7 ": None,
        "thalassacloud://": None,
        "thalassacloud://vm\u0667": None,
        "thalassa://vm-7": None,
        "Thalassacloud://vm-7": None,
        "hcloud://7": None,
        "vm-7": None,
    },
}


async def test_only_the_canonical_provider_id_has_an_id(account: CloudAccount, ours: Instances):
    expected = PROVIDER_IDS[account.provider]
    assert {each: ours.parse_provider_id(each) for each in expected} == expected
