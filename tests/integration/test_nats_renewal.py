"""Expired or deleted keys are renewed while NATS runs: no message is lost, old keys are rejected."""

import shutil
from pathlib import Path

import aiohttp
from cryptography import x509

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import BusHooks
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import FLOW, subject_of
from tests.bootstrap_actors import BootstrapInstallation
from tests.bus_actors import MAX_BYTES, Recorder, make_event, run_during, wait_until
from tests.integration.conftest import ConnectBus


class Connections:
    """How often a bus lost its connection."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.hooks = BusHooks(disconnected=self.lost.append)


async def speaking(
    made: BootstrapInstallation, connect_bus: ConnectBus, of: Connections
) -> tuple[NatsBus, NatsBus]:
    """metadata, who says something, and csr, who follows it."""
    watcher = await connect_bus("watcher", **made.bus_options("watcher"))
    await watcher.provision(DURABLES, max_bytes=MAX_BYTES)
    metadata = await connect_bus("metadata", **made.bus_options("metadata"), hooks=of.hooks)
    follower = await connect_bus("csr", **made.bus_options("csr"), hooks=of.hooks)
    return metadata, follower


def served_certificate(made: BootstrapInstallation) -> x509.Certificate:
    return x509.load_pem_x509_certificate((made.out / "tls.crt").read_bytes())


async def test_a_certificate_that_nears_its_end_is_renewed_and_no_message_gets_lost(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus
):
    connections = Connections()
    metadata, follower = await speaking(nats_as_installed, connect_bus, connections)
    first = served_certificate(nats_as_installed)
    serials: set[int] = set()
    said: set[str] = set()
    recorder = Recorder()
    async with (
        run_during(follower.follow("flow", f"{FLOW}.>", recorder)),
        nats_as_installed.run_sidecar("--certificate-lifetime=6s"),
    ):

        async def says_on_until_renewed_thrice() -> bool:
            word = make_event(f"node-{len(said)}")
            await metadata.publish(word)
            said.add(subject_of(word))
            serials.add(served_certificate(nats_as_installed).serial_number)
            return len(serials - {first.serial_number}) == 3

        await wait_until(says_on_until_renewed_thrice, "three renewals")
        log = nats_as_installed.server.child.log
        await wait_until(lambda: log.read_text().count("Reloaded: tls") >= 3, "three reloads")
        await wait_until(lambda: said <= recorder.subjects, "every event is received")
        assert connections.lost == []
        assert len(recorder.opened) == 1, "it follows the first consumer still"
        await wait_until(lambda: tells_its_end(nats_as_installed), "the metric says when it ends")
        newcomer = await connect_bus("metadata", **nats_as_installed.bus_options("metadata"))
        await newcomer.publish(make_event("late"))


METRIC = "talosccm_nats_certificate_expires_timestamp_seconds"


async def tells_its_end(made: BootstrapInstallation) -> bool:
    page = await health(made, "/metrics")
    ends = served_certificate(made).not_valid_after_utc.timestamp()
    [shown] = [row for row in page.splitlines() if row.startswith(METRIC + '{certificate="server"}')]
    return float(shown.split()[1]) == ends


async def health(made: BootstrapInstallation, path: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{made.health_port}{path}") as answer,
    ):
        return await answer.text()


async def test_a_deleted_key_is_replaced_its_owner_comes_back_and_nobody_else_notices(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus, tmp_path: Path
):
    connections, of_labeler = Connections(), Connections()
    metadata, follower = await speaking(nats_as_installed, connect_bus, connections)
    labeler = await connect_bus("labeler", **nats_as_installed.bus_options("labeler"), hooks=of_labeler.hooks)
    stolen = tmp_path / "stolen.nk"
    seed_file = nats_as_installed.seed_file("labeler")
    shutil.copy(seed_file, stolen)
    recorder = Recorder()
    async with (
        nats_as_installed.run_sidecar(),
        run_during(follower.follow("flow", f"{FLOW}.>", recorder)),
    ):
        await wait_until(lambda: recorder.is_caught_up)
        shutil.rmtree(nats_as_installed.folder("labeler"))
        await wait_until(lambda: len(of_labeler.lost) > 0, "the old key is thrown out")
        await wait_until(lambda: labeler.problems() == (), "and the new one lets in")
        assert seed_file.read_bytes() != stolen.read_bytes()
        await metadata.publish(make_event("after"))
        await wait_until(lambda: subject_of(make_event("after")) in recorder.subjects)
        assert connections.lost == []
        thief = await connect_bus(
            "labeler", **(nats_as_installed.bus_options("labeler") | {"nkey_seed_file": stolen})
        )
        assert "authorization violation" in thief.problems()[0].lower()


async def test_a_deleted_authority_is_replaced_and_the_old_one_is_trusted_by_nobody(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus, tmp_path: Path
):
    old = tmp_path / "old.crt"
    shutil.copy(nats_as_installed.ca_file, old)
    async with nats_as_installed.run_sidecar():
        shutil.rmtree(nats_as_installed.folder("ca"))

        trusted = nats_as_installed.out / "trusted.crt"

        def obeyed() -> bool:
            """Only then does the sidecar give up the old one itself."""
            return old.read_bytes() != trusted.read_bytes() == nats_as_installed.ca_file.read_bytes()

        await wait_until(obeyed, "a certificate of the new authority is served")
        present = await connect_bus("metadata", **nats_as_installed.bus_options("metadata"))
        assert all("stream" in each for each in present.problems()), "connected, without a stream"
        outdated = await connect_bus(
            "metadata", **(nats_as_installed.bus_options("metadata") | {"tls_ca_file": old})
        )
        assert "certificate verify failed" in outdated.problems()[0]


async def test_a_server_that_is_away_is_told_of_and_reloads_once_it_is_back(
    nats_as_installed: BootstrapInstallation,
):
    async with nats_as_installed.run_sidecar():
        await eventually_ready(nats_as_installed, ready=True)
        await nats_as_installed.server.kill()
        shutil.rmtree(nats_as_installed.folder("reader"))
        await eventually_ready(nats_as_installed, ready=False)
        assert "connection refused" in await health(nats_as_installed, "/readyz?verbose")
        await nats_as_installed.server.restart()
        await eventually_ready(nats_as_installed, ready=True)


async def eventually_ready(made: BootstrapInstallation, *, ready: bool) -> None:
    async def says_so() -> bool:
        return (await health(made, "/readyz") == "ok") is ready

    await wait_until(says_so, f"ready: {ready}")


async def test_a_key_that_is_none_is_named_and_the_server_keeps_what_it_has(
    nats_as_installed: BootstrapInstallation, connect_bus: ConnectBus
):
    config = (nats_as_installed.out / "nats.conf").read_bytes()
    async with nats_as_installed.run_sidecar():
        nats_as_installed.seed_file("csr").write_bytes(b"not a seed")
        await eventually_ready(nats_as_installed, ready=False)
        told = await health(nats_as_installed, "/readyz?verbose")
        assert "ccm-nats-csr" in told
        assert "not a seed" not in told
        assert (nats_as_installed.out / "nats.conf").read_bytes() == config
        bus = await connect_bus("metadata", **nats_as_installed.bus_options("metadata"))
        assert all("stream" in each for each in bus.problems()), "connected, without a stream"


async def test_the_sidecar_ends_in_order_when_told_to(nats_as_installed: BootstrapInstallation):
    async with nats_as_installed.run_sidecar() as sidecar:
        pass
    assert sidecar.process.returncode == 0
