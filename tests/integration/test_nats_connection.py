"""Connections to a real nats-server: what comes late, or from a hostile publisher, ends nothing.

Keys, allow-lists and TLS: a rejection is reported at once, and counted.
"""

import asyncio
import time
from pathlib import Path

import nats
import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.nats_access import generate_seed
from libs.common.bus.protocol import BusError, BusHooks, UnreadablePayload
from libs.common.contract.subjects import ENRICHED_NODE, FLOW, subject_of
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.nats_server import NatsServer
from libs.testbed.pki import CertificateAuthority
from tests.bootstrap_actors import BootstrapInstallation
from tests.bus_actors import MAX_BYTES, NODES, Recorder, Worker, make_event, run_during, wait_until
from tests.bus_server import connected
from tests.integration.conftest import IMPATIENT, QUICK, ConnectBus


async def test_an_answer_to_a_ping_that_nobody_waits_for_any_more_does_not_end_the_connection(
    nats_server: NatsServer,
):
    async with connected(nats_server.port) as connection:
        nats_server.child.pause()
        with pytest.raises(BusError, match="ping"):
            await connection.round_trip(0.2)
        nats_server.child.resume()
        await connection.round_trip(HANG_SECONDS)  # behind the late answer
        assert not connection.closed.done()


async def test_a_publisher_cannot_speak_in_the_servers_name(nats_bus: NatsBus, nats_server: NatsServer):
    subject = subject_of(make_event("poisoned"))
    publisher = await nats.connect(nats_server.url)
    block = b"NATS/1.0 404 No Messages\r\n\r\n"
    await publisher._send_command(
        b"HPUB %s %d %d\r\n%s\r\n" % (subject.encode(), len(block), len(block), block)
    )
    await publisher.flush()
    await publisher.close()

    async def is_stored_unreadable() -> bool:
        found = await nats_bus.get_last(subject)
        return found is not None and isinstance(found.event, UnreadablePayload)

    await wait_until(is_stored_unreadable, "the stream has taken it: a plain publish waits for no answer")
    worker = Worker()
    async with worker.consume(nats_bus):
        await wait_until(lambda: bool(worker.list_names()), "delivered")


@pytest.mark.parametrize(
    ("token", "block"),
    [
        (b"\xff\xfe", b"NATS/1.0\r\n\r\n"),
        (b"status", b"NATS/1.0 404 \xff\xfe\r\n\r\n"),
        (b"short", b"NATS/1.0"),
        (b"shorter", b"\xff"),
        (b"names", b"NATS/1.0\r\n\xff: \xff\r\n\r\n"),
    ],
    ids=["subject", "status", "short", "shorter", "names"],
)
async def test_bytes_that_are_no_text_do_not_hide_the_messages_behind_them(
    nats_bus: NatsBus, nats_server: NatsServer, token: bytes, block: bytes
):
    """The stream keeps the message: a client that fails at it fails again after each reconnection."""
    subject = ENRICHED_NODE.encode() + b"." + token
    await _publish_bytes(nats_server, subject, block)
    worker, recorder = Worker(), Recorder()
    async with worker.consume(nats_bus), run_during(nats_bus.follow("test", f"{FLOW}.>", recorder)):
        await wait_until(lambda: recorder.is_caught_up and len(recorder.messages) == 1)
        await nats_bus.publish(make_event("behind"))
        await wait_until(lambda: "behind" in worker.list_names())
        await wait_until(lambda: len(recorder.messages) == 2)
    assert isinstance(recorder.messages[0].event, UnreadablePayload)
    assert (recorder.disconnects, len(worker.seen)) == ([], 2)


async def _publish_bytes(server: NatsServer, subject: bytes, block: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        await reader.readline()
        options = b'{"headers":true,"verbose":false}'
        sizes = b"%d %d" % (len(block), len(block) + 1)
        writer.write(b"CONNECT %b\r\nHPUB %b %b\r\n%bx\r\nPING\r\n" % (options, subject, sizes, block))
        assert await reader.readline() == b"PONG\r\n"
    finally:
        writer.close()
        await writer.wait_closed()


async def test_what_the_server_would_end_the_connection_for_is_not_sent(nats_server: NatsServer):
    """The server counts the headers, too."""
    limit = 1024 * 1024  # nats-server's default
    headers = {"traceparent": "00-0-0-01"}
    block = len(b"NATS/1.0\r\ntraceparent: 00-0-0-01\r\n\r\n")
    async with connected(nats_server.port) as connection:
        await connection.send("any", bytes(limit - block), headers=headers)
        with pytest.raises(BusError, match="maximum payload"):
            await connection.send("any", bytes(limit - block + 1), headers=headers)
        await connection.round_trip(HANG_SECONDS)
        assert not connection.closed.done()


async def test_a_refused_publish_fails_at_once_is_counted_and_shown(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus
):
    violations: list[str] = []
    watcher = await connect_bus("watcher", **nats_as_installed.bus_options("watcher"))
    await watcher.provision((NODES,), max_bytes=MAX_BYTES)
    csr = await connect_bus(
        "csr", **nats_as_installed.bus_options("csr"), hooks=BusHooks(permission_violation=violations.append)
    )
    await wait_until(lambda: csr.stream_id != "")
    started = time.monotonic()
    with pytest.raises(BusError, match="permissions violation"):
        await csr.publish(make_event())
    assert time.monotonic() - started < QUICK.publish_deadline / 2
    assert len(violations) == 1
    assert ENRICHED_NODE in violations[0]
    assert any("denied permission" in problem for problem in csr.problems())


async def test_a_key_file_that_is_missing_broken_or_unknown_is_named_and_read_again(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus, tmp_path: Path
):
    path = tmp_path / "late.nk"
    options = nats_as_installed.bus_options("watcher") | {"nkey_seed_file": path}
    bus = await connect_bus(**options)
    assert any(f"{path}: no such file" in problem for problem in bus.problems())
    path.write_bytes(b"not a seed")
    await wait_until(lambda: any(str(path) in p and "no such file" not in p for p in bus.problems()))
    path.write_bytes(generate_seed())
    await wait_until(lambda: any("authorization violation" in p.lower() for p in bus.problems()))
    assert nats_as_installed.url in bus.problems()[0]
    path.write_bytes(nats_as_installed.seed_file("watcher").read_bytes())
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    assert bus.problems() == ()


async def encrypted(server: NatsServer, directory: Path, *, more: str = "") -> Path:
    """Restart the server with TLS; the CA file."""
    authority = CertificateAuthority.make(common_name="nats")
    pair = authority.issue_server(["127.0.0.1"])
    for name, content in (("ca", authority.pem), ("cert", pair.certificate), ("key", pair.key)):
        (directory / f"{name}.pem").write_bytes(content)
    server.configure(
        f'tls {{ cert_file: "{directory}/cert.pem", key_file: "{directory}/key.pem", timeout: 5 }}\n{more}\n'
    )
    await server.restart()
    return directory / "ca.pem"


async def test_tls_is_spoken_with_a_server_that_our_ca_vouches_for(
    nats_server: NatsServer, connect_bus: ConnectBus, tmp_path: Path
):
    ca = await encrypted(nats_server, tmp_path)
    bus = await connect_bus(tls_ca_file=ca, timing=IMPATIENT)
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    await bus.publish(make_event())
    nats_server.child.pause()
    started = time.monotonic()
    await bus.close()
    assert time.monotonic() - started < 20, "close waits for no close_notify: asyncio grants one 30 s"
    nats_server.child.resume()


async def test_a_server_of_another_ca_or_without_tls_is_not_talked_to(
    nats_server: NatsServer, connect_bus: ConnectBus, tmp_path: Path
):
    foreign = tmp_path / "foreign.pem"
    foreign.write_bytes(CertificateAuthority.make(common_name="another").pem)
    plain: NatsBus = await connect_bus(tls_ca_file=foreign)
    assert any("does not offer TLS" in problem for problem in plain.problems())
    await encrypted(nats_server, tmp_path)
    bus = await connect_bus(tls_ca_file=foreign)
    assert any("certificate verify failed" in problem for problem in bus.problems())


async def test_a_server_that_leaves_tls_to_its_clients_is_spoken_to_in_tls(
    nats_server: NatsServer, connect_bus: ConnectBus, tmp_path: Path
):
    ca = await encrypted(nats_server, tmp_path, more="allow_non_tls: true")
    foreign = tmp_path / "foreign.pem"
    foreign.write_bytes(CertificateAuthority.make(common_name="another").pem)
    bus = await connect_bus(tls_ca_file=foreign)
    assert any("certificate verify failed" in problem for problem in bus.problems())
    trusted = await connect_bus(tls_ca_file=ca)
    await trusted.provision((NODES,), max_bytes=MAX_BYTES)


async def test_a_password_in_the_address_is_shown_to_nobody(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG")
    host = nats_server.url.partition("://")[2]
    refused = f"nats://watcher:hunter2@{host.partition(':')[0]}:1"
    for url in (f"nats://watcher:hunter2@{host}", refused, f"hunter2@{host}"):
        bus = await NatsBus.connect((url,), service="watcher")
        told = "\n".join((*bus.problems(), *(str(vars(record)) for record in caplog.records)))
        await bus.close()
        assert "hunter2" not in told
        assert host.partition(":")[0] in told
