"""`python -m services.console`, exposed: a real process, with the token of a real ServiceAccount."""

import ssl
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from libs.common.contract.services import CONSOLE
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.ports import allocate_port
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import grant_permissions
from tests.clocks import ManualClock
from tests.console.console_actors import ConsoleClient
from tests.console.console_logins import HOST, ExposedConsole, open_viewer, write_certificate
from tests.integration.processes import AT_ONCE_SECONDS, a_process
from tests.integration.test_process import KUBECONFIG

pytestmark = pytest.mark.real_servers


def list_flags(folder: Path, port: int = 0) -> Sequence[str]:
    """The flags that expose it."""
    return (
        "--console-exposed",
        f"--console-port={port}",
        f"--console-tls-cert-file={folder}/tls.crt",
        f"--console-tls-key-file={folder}/tls.key",
        f"--console-allowed-host={HOST}",
    )


async def test_a_service_account_logs_in_over_tls_and_open_pages_do_not_delay_the_end(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path: Path
):
    await grant_permissions(kubelets, [CONSOLE])
    write_certificate(tmp_path)
    port = allocate_port()
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=tmp_path / "ca.crt"))
    async with (
        open_viewer(control_plane, kubelets, "process-viewer", tmp_path) as viewer,
        open_viewer(control_plane, kubelets, "process-stranger", tmp_path, rights=()) as stranger,
        a_process(
            tmp_path,
            "services.console",
            *list_flags(tmp_path, port),
            f"--kubeconfig={control_plane.kubeconfig(get_user_name(CONSOLE))}",
        ) as process,
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        await process.said("serving console")
        console = ExposedConsole(ConsoleClient(session, port, "https"), ManualClock(), [])
        assert await console.log_in(stranger.token) == (403, f"{stranger.user} may not list nodes.")
        cookie = await console.wait_for_login(viewer)
        assert await console.get("/api/state", cookie) == 200
        async with console.follow(cookie):
            code, seconds = await process.ends_after_sigterm()
        log = process.log_text()
    assert (code, seconds < AT_ONCE_SECONDS) == (0, True)
    assert viewer.user in log
    assert viewer.token not in log
    assert stranger.token not in log


async def test_only_an_exposed_console_reads_credentials_of_kubernetes(tmp_path: Path):
    write_certificate(tmp_path)
    absent = f"--kubeconfig={tmp_path}/absent"
    async with a_process(tmp_path, "services.console", "--console-port=0", absent) as process:
        await process.said("serving console")
    async with a_process(tmp_path, "services.console", *list_flags(tmp_path), absent) as process:
        assert await process.ends() == 2
        assert f"{tmp_path}/absent" in process.log_text()


async def test_a_certificate_that_cannot_be_used_is_a_mistake_in_the_settings(tmp_path: Path):
    write_certificate(tmp_path)
    (tmp_path / "tls.key").write_text("")
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    kubeconfig = f"--kubeconfig={tmp_path}/kubeconfig"
    async with a_process(tmp_path, "services.console", *list_flags(tmp_path), kubeconfig) as process:
        assert await process.ends() == 2
        assert f"--console-tls-key-file {tmp_path}/tls.key cannot be used" in process.log_text()
