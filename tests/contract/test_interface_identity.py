"""Names by which an API server and its audit log know each process of this project."""

import asyncio
import re
from pathlib import Path
from socket import gethostname
from typing import Any, Final

import msgspec
from click.testing import CliRunner

from cli.__main__ import main
from libs.common.kube.api import KubeApi
from libs.common.kube.events import ObjectEvent, node_reference
from libs.common.service.application import Application
from libs.common.service.service import ServiceDefinition
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import read_settings
from libs.testbed.talos_pki import TalosPki
from services.bootstrap.run import _make_store
from services.bootstrap.settings import BootstrapSettings
from tests.builders import NOW
from tests.contract.interface_snapshot import assert_unchanged
from tests.kube_loopback import LoopbackServer, open_api
from tests.recorded_requests import RecordedRequests
from tests.service_definitions import DEFINITIONS

COMMANDS: Final = (
    ("status",),
    ("status", "ipam"),
    ("doctor",),
    ("explain", "csr", "csr-1"),
    ("explain", "node", "web-1"),
    ("render", "FOLDER/ccm-config.yaml", "--from-cluster=web-1", "--talosconfig=FOLDER/talosconfig"),
)
UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
VERSION: Final = re.compile(r"(?<=talos-ccm/)[^ ]+")


def an_assembly(runs: tuple[ServiceDefinition[Any], ...], kubeconfig: Path) -> Application:
    """The process of these services, not started."""
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in runs), ProcessSettings]
    return Application(runs, read_settings(kinds, [f"--kubeconfig={kubeconfig}"], {}), {}, None)


def opened(assembly: Application) -> KubeApi | None:
    """Its client of the Kubernetes API."""
    return assembly._open_kubernetes()


async def test_the_user_agent_and_identity_of_each_process(tmp_path: Path):
    recorded = RecordedRequests()
    found: dict[str, Any] = {}
    async with LoopbackServer.start() as server, open_api(server.url, tmp_path):
        server.answer = recorded.answer
        for runs in (*((run,) for run in DEFINITIONS), DEFINITIONS):
            assembly = an_assembly(runs, tmp_path / "kubeconfig")
            name = runs[0].spec.service if len(runs) == 1 else "all services"
            found[name] = {"holder": masked(assembly._identity), "sends": None}
            if (kube := opened(assembly)) is not None:
                found[name]["sends"] = await sent(kube, recorded)
        store = _make_store(BootstrapSettings(kubeconfig=tmp_path / "kubeconfig"))
        await store.get_secret("a-secret")
        await store.close()
        found["bootstrap"] = {"user_agent": masked(recorded.user_agents[-1])}
    assert_unchanged("kubernetes_identity", found)


async def sent(kube: KubeApi, recorded: RecordedRequests) -> dict[str, Any]:
    """What this client says of itself: in the header, and in an Event that names no component."""
    event = ObjectEvent(regarding=node_reference("web-1", "uid-1"), reason="AReason", message="message")
    await kube.create_event(event, now=NOW)
    await kube.close()
    body = recorded.requests[-1]["body"]
    return {
        "user_agent": masked(recorded.user_agents[-1]),
        "source": body["source"],
        "reportingComponent": body["reportingComponent"],
        "reportingInstance": masked(body["reportingInstance"]),
    }


def masked(text: str) -> str:
    """The text without the name of this machine, random identifiers and the version."""
    return VERSION.sub("<version>", UUID.sub("<uuid>", text)).replace(gethostname(), "<host>")


async def test_the_user_agent_of_each_command(tmp_path: Path):
    (tmp_path / "ccm-config.yaml").write_text("global: {}\n")
    pki = TalosPki(tmp_path / "pki", ["127.0.0.1"])
    (tmp_path / "talosconfig").write_text(pki.talosconfig(["127.0.0.1"]))
    found = {}
    for command in COMMANDS:
        recorded = RecordedRequests()
        # A server of its own: a request that a command has given up may arrive after its end.
        async with LoopbackServer.start() as server, open_api(server.url, tmp_path):
            server.answer = recorded.answer
            await asyncio.to_thread(run, command, tmp_path)
        found[" ".join(command)] = sorted(set(recorded.user_agents))
    assert_unchanged("kubernetes_identity_of_commands", found)


def run(command: tuple[str, ...], folder: Path) -> None:
    """Run it until it fails: this API server has no object at all."""
    words = [word.replace("FOLDER", str(folder)) for word in command]
    CliRunner().invoke(main, [*words, f"--kubeconfig={folder / 'kubeconfig'}"])
