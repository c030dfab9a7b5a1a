"""One request to an API server that is busy, slow, gone, a stranger, or does not know us (any more)."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import (
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from libs.common.kube.events import ObjectEvent, node_reference
from libs.common.kube.lease import vacant_lease
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.kube.request import Request
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kube_credentials import API_SERVER_HOSTS
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.ports import allocate_port
from tests.builders import NOW
from tests.bus_actors import wait_until
from tests.kube_loopback import (
    Answer,
    LoopbackServer,
    hang,
    listing,
    make_node_object,
    open_api,
    open_api_by,
    refusal,
    respond_error,
    respond_node,
)
from tests.tcp_server import serve_tcp


async def ask(api: KubeApi) -> None:
    """A request that everybody may make who is known."""
    await api.transport.call(Request(verb="get", resource="version", path="/version"))


def first_then_a_node(refused: web.Response) -> Answer:
    refusals = [refused]

    async def answer(request: web.Request) -> web.StreamResponse:
        return refusals.pop() if refusals else await respond_node(request)

    return answer


# ---- busy


@pytest.mark.parametrize("status", [429, 503, 500])
async def test_a_server_that_says_when_to_come_back_is_asked_again_then(
    server: LoopbackServer, tmp_path: Path, status: int
):
    server.answer = first_then_a_node(respond_error(status, "Busy", headers={"Retry-After": "1"}))
    async with open_api(server.url, tmp_path, jitter=lambda: 0.0) as api:
        started = time.monotonic()
        assert (await api.get_node("web-1")).name == "web-1"
    assert time.monotonic() - started >= 1.0
    assert len(server.requests) == 2


async def test_a_wait_beyond_the_deadline_is_the_callers_to_plan(server: LoopbackServer, tmp_path: Path):
    server.answer = first_then_a_node(respond_error(429, "TooManyRequests", headers={"Retry-After": "60"}))
    async with open_api(server.url, tmp_path, deadline_seconds=50.0) as api:
        started = time.monotonic()
        with pytest.raises(TooManyRequests) as raised:
            await api.patch_node("web-1", [])
    assert raised.value.retry_after_seconds == 60.0
    assert time.monotonic() - started < 25.0
    assert len(server.requests) == 1


async def test_an_approval_is_not_sent_later_than_it_was_decided(server: LoopbackServer, tmp_path: Path):
    server.answer = first_then_a_node(respond_error(429, "TooManyRequests", headers={"Retry-After": "1"}))
    async with open_api(server.url, tmp_path) as api:
        with pytest.raises(TooManyRequests) as raised:
            await api.patch_signing_request_approval("csr-1", [])
    assert raised.value.retry_after_seconds == 1.0
    assert len(server.requests) == 1


async def test_those_who_were_refused_together_come_back_apart(server: LoopbackServer, tmp_path: Path):
    arrivals: list[float] = []
    spread = iter([0.0, 0.99])

    async def answer(request: web.Request) -> web.StreamResponse:
        arrivals.append(time.monotonic())
        busy = respond_error(429, "TooManyRequests", headers={"Retry-After": "1"})
        return busy if len(arrivals) <= 2 else await respond_node(request)

    server.answer = answer
    async with open_api(server.url, tmp_path, jitter=lambda: next(spread)) as api:
        await asyncio.gather(api.get_node("a"), api.get_node("b"))
    assert arrivals[3] - arrivals[2] > 0.1


# ---- slow or gone


@pytest.mark.parametrize("where", ["before the answer", "within the body"])
async def test_a_server_that_hangs_costs_one_deadline(server: LoopbackServer, tmp_path: Path, where: str):
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if where == "within the body":
            await response.prepare(request)
            await response.write(b'{"metadata":')
        await asyncio.Event().wait()
        return response

    server.answer = answer
    async with open_api(server.url, tmp_path, deadline_seconds=0.3) as api:
        with pytest.raises(Unreachable, match=rf"{server.url}.*no answer within 0.3 s") as raised:
            await api.patch_node("web-1", [])
    assert raised.value.reason == "Timeout"


async def test_a_request_for_a_lease_ends_at_a_deadline_of_its_own(server: LoopbackServer, tmp_path: Path):
    server.answer = hang
    async with open_api(server.url, tmp_path, deadline_seconds=50.0) as api:
        with pytest.raises(Unreachable, match=r"get leases l: .* no answer within 0.3 s"):
            await api.get_lease("n", "l", deadline_seconds=0.3)
        with pytest.raises(Unreachable, match=r"create leases: .* no answer within 0.3 s"):
            await api.write_lease(vacant_lease("n", "l").document, deadline_seconds=0.3)


async def test_a_server_that_is_not_there_is_named_with_what_to_check(tmp_path: Path):
    url = f"http://127.0.0.1:{allocate_port()}"
    async with open_api(url, tmp_path) as api:
        with pytest.raises(
            Unreachable, match=rf"get nodes web-1: {url} \(.*context loopback\): cannot connect.*runs"
        ):
            await api.get_node("web-1")


@asynccontextmanager
async def hanging_up(after: int) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that ends each connection at its `after`-th request, unanswered."""
    heard: list[bytes] = []
    body = msgspec.json.encode(make_node_object("web-1"))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(1, after + 1):
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)
            heard.append(head.split(b" ", 1)[0])
            if number < after:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with serve_tcp(serve) as port:
        yield f"http://127.0.0.1:{port}", heard


async def test_a_kept_connection_that_the_server_ended_costs_no_error(tmp_path: Path):
    async with hanging_up(after=2) as (url, heard), open_api(url, tmp_path) as api:
        for _ in range(3):
            assert (await api.patch_node("web-1", [])).name == "web-1"
    assert Counter(heard) == {b"PATCH": 5}  # the second and the third were sent twice


async def test_a_server_that_always_hangs_up_is_asked_twice_and_then_unreachable(tmp_path: Path):
    async with hanging_up(after=1) as (url, heard), open_api(url, tmp_path) as api:
        with pytest.raises(Unreachable, match="the server closed the connection without an answer"):
            await api.patch_node("web-1", [])
    assert len(heard) == 2


# ---- strangers


async def test_an_answer_that_is_no_node_is_the_servers_fault(server: LoopbackServer, tmp_path: Path):
    async with open_api(server.url, tmp_path) as api:
        for text in ("<html>", "[]", '{"metadata": {"name": 7}}'):
            server.answer = first_then_a_node(web.Response(text=text))
            with pytest.raises(ServerError, match="get nodes web-1: invalid response"):
                await api.get_node("web-1")


@pytest.mark.parametrize(
    "refused",
    [
        respond_error(503, "ServiceUnavailable"),
        web.Response(status=302, headers={"Location": "/elsewhere"}),
    ],
    ids=["no wait is requested", "a redirect"],
)
async def test_a_failure_is_neither_repeated_nor_followed_with_our_credentials(
    server: LoopbackServer, tmp_path: Path, refused: web.Response
):
    server.answer = first_then_a_node(refused)
    async with open_api(server.url, tmp_path, {"token": "secret"}) as api:
        with pytest.raises(ServerError):
            await api.get_node("web-1")
    assert len(server.requests) == 1


async def test_a_port_that_speaks_no_tls_is_told_as_such(server: LoopbackServer, tmp_path: Path):
    async with open_api(server.url.replace("http", "https"), tmp_path) as api:
        with pytest.raises(Unreachable, match=r"TLS handshake failed.*check the port"):
            await ask(api)


async def test_the_certificate_of_the_api_server_is_read_without_a_right_and_without_a_request(
    control_plane: ControlPlane,
):
    user = "any-user"
    since = control_plane.audit_mark()
    async with open_api_by(control_plane.kubeconfig(user)) as api:
        identity = await api.fetch_server_identity()
    assert identity.names | identity.addresses == set(API_SERVER_HOSTS)
    assert not [request for request in control_plane.audit_counts(since) if request.user == user]


async def test_an_api_server_that_does_not_answer_or_shows_no_certificate_is_unreachable(
    control_plane: ControlPlane, tmp_path: Path
):
    text = control_plane.kubeconfig().read_text()
    for server, words in (("https://127.0.0.1:1", "127.0.0.1:1"), ("http://127.0.0.1:1", "plain HTTP")):
        path = tmp_path / "kubeconfig"
        path.write_text(text.replace(control_plane.server, server))
        api = KubeApi(load_kube_config(path, {}), user_agent="t")
        with pytest.raises(Unreachable, match=words):
            await api.fetch_server_identity()
        await api.close()


# ---- who we are


@pytest.fixture
async def service_account(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path: Path
) -> tuple[Path, str]:
    """A pod's folder with the real CA and, still to be written, a token; and such a token."""
    account = f"sa-{os.getpid()}"
    await kubelets.request(
        "POST", "/api/v1/namespaces/default/serviceaccounts", body={"metadata": {"name": account}}
    )
    issued = await kubelets.request(
        "POST", f"/api/v1/namespaces/default/serviceaccounts/{account}/token", body={"spec": {}}
    )
    assert issued.status == 201, issued
    (tmp_path / "ca.crt").write_bytes(control_plane.ca_file.read_bytes())
    return tmp_path, str(issued.body["status"]["token"])


async def test_a_service_account_token_that_was_replaced_is_read_again_after_a_401(
    control_plane: ControlPlane, service_account: tuple[Path, str]
):
    folder, token = service_account
    (folder / "token").write_text("expired\n")
    host, port = control_plane.server.removeprefix("https://").split(":")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    statuses: list[int] = []
    api = KubeApi(
        load_kube_config(None, environment, service_account=folder),
        user_agent="t",
        observe=lambda verb, resource, status, seconds: statuses.append(status),
    )
    with pytest.raises(Unauthorized, match=r"in-cluster, service account in .*check that token") as raised:
        await ask(api)
    assert str(folder) in str(raised.value)
    (folder / "token").write_text(token + "\n")
    await ask(api)
    assert statuses == [401, 401, 200]
    await api.close()


async def test_a_client_certificate_that_was_replaced_is_used_for_the_next_request(
    control_plane: ControlPlane, tmp_path: Path
):
    document = msgspec.yaml.decode(control_plane.kubeconfig("stranger").read_bytes())
    document["users"][0]["user"] = {"client-certificate": "me.crt", "client-key": "me.key"}
    path = tmp_path / "config"
    path.write_bytes(msgspec.yaml.encode(document))

    def become(user: str) -> None:
        for source, name in zip(control_plane.client(user), ("me.crt", "me.key"), strict=True):
            (tmp_path / name).write_bytes(source.read_bytes())

    become("stranger")
    api = KubeApi(load_kube_config(path, {}), user_agent="t")
    with pytest.raises(Forbidden):
        await api.get_node("web-1")
    become("admin")
    await api.transport.credentials.refresh(float("inf"))  # as ten seconds later
    with pytest.raises(NotFound):
        await api.get_node("web-1")
    await api.close()


# ---- how it looks from outside

EVENT = ObjectEvent(
    regarding=node_reference("web-1", "uid"), reason="Synced", message="x", component="talos-ccm"
)


async def test_each_event_that_kubernetes_has_is_reported_and_one_that_was_not_stored_is_not(
    server: LoopbackServer, tmp_path: Path
):
    stored: list[tuple[str, datetime]] = []

    def record(event: ObjectEvent, at: datetime) -> None:
        stored.append((event.reason, at))

    async with open_api(server.url, tmp_path, on_event=record) as api:
        for answer in (respond_node, refusal(409, "AlreadyExists")):  # the second as after a lost answer
            server.answer = answer
            await api.create_event(EVENT, now=NOW)
        server.answer = refusal(500)
        with pytest.raises(ServerError):
            await api.create_event(EVENT, now=NOW)
    assert stored == [("Synced", NOW)] * 2


async def test_requests_carry_our_name_and_are_observed_in_kubernetes_words(
    server: LoopbackServer, tmp_path: Path
):
    seen: list[tuple[str, str, int]] = []
    server.answer = respond_node
    async with open_api(
        server.url, tmp_path, observe=lambda verb, what, status, seconds: seen.append((verb, what, status))
    ) as api:
        await api.get_node("web-1")
        await api.patch_node("web-1", [])
        await api.patch_node_status("web-1", {})
        await api.create_event(EVENT, now=NOW)
    assert seen == [
        ("get", "nodes", 200),
        ("patch", "nodes", 200),
        ("patch", "nodes/status", 200),
        ("create", "events", 200),
    ]
    assert {request.headers["User-Agent"] for request in server.requests} == {"talos-ccm/test"}
    assert [request.content_type for request in server.requests[1:3]] == [
        "application/json-patch+json",
        "application/strategic-merge-patch+json",
    ]


async def test_many_requests_share_a_bounded_number_of_connections(server: LoopbackServer, tmp_path: Path):
    at_once = most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)  # let the others arrive
        at_once -= 1
        return await respond_node(request)

    server.answer = answer
    async with open_api(server.url, tmp_path, connections=4) as api:
        await asyncio.gather(*(api.get_node("web-1") for _ in range(100)))
    assert most <= 4
    assert len({id(request.transport) for request in server.requests}) <= 4


async def test_requests_in_flight_and_those_that_wait_for_a_connection_end_when_the_api_is_closed(
    server: LoopbackServer, tmp_path: Path
):
    server.answer = hang
    async with open_api(server.url, tmp_path, connections=1) as api:
        asking = [asyncio.create_task(api.get_node("web-1")) for _ in range(2)]
        await wait_until(lambda: len(server.requests) == 1)
        await api.close()
        async with asyncio.timeout(HANG_SECONDS):
            answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in answers] == [Unreachable, Unreachable]


async def test_a_list_with_a_node_that_cannot_be_read_is_no_answer(server: LoopbackServer, tmp_path: Path):
    server.answer = listing({"metadata": {"name": 7}})
    async with open_api(server.url, tmp_path) as api:
        with pytest.raises(ServerError, match="cannot be parsed"):
            _ = [page async for page in api.list_nodes()]


async def test_an_urgent_write_goes_before_all_that_wait_for_a_connection(
    server: LoopbackServer, tmp_path: Path
):
    arrived: list[str] = []
    may_answer = asyncio.Semaphore(0)

    async def answer(request: web.Request) -> web.StreamResponse:
        arrived.append(request.path.rpartition("/")[2])
        await may_answer.acquire()
        return await respond_node(request)

    def have_arrived(count: int) -> Callable[[], bool]:
        return lambda: len(arrived) == count

    server.answer = answer
    async with open_api(server.url, tmp_path, connections=2) as api, asyncio.TaskGroup() as requests:
        for name in ("busy-1", "busy-2"):
            requests.create_task(api.patch_node(name, []))
        await wait_until(have_arrived(2), "every connection is taken")
        requests.create_task(api.create_event(EVENT, now=NOW))
        requests.create_task(api.patch_signing_request_approval("csr-1", []))
        requests.create_task(api.patch_node_status("web-1", {}))
        requests.create_task(api.patch_node("joins", [], is_urgent=True))
        await asyncio.sleep(0)  # they all wait
        for count in range(3, 7):
            may_answer.release()
            await wait_until(have_arrived(count), "the next request")
        for _ in range(2):
            may_answer.release()
    assert arrived[2:] == ["joins", "events", "approval", "status"]
