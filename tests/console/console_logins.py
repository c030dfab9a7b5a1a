"""An exposed console with its login, and users whose tokens and rights come and go."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.services import CONSOLE
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.pki import CertificateAuthority
from libs.testbed.service_account_tokens import ServiceAccountTokens
from libs.testbed.service_permissions import RBAC, get_account_user_name, get_user_name
from libs.testbed.service_processes import grant_permissions
from libs.testbed.sim_apiserver.server import SimApiServer
from services.console.login.sessions import CHECK_SECONDS
from tests.bus_actors import wait_for_value, wait_until
from tests.clocks import ManualClock
from tests.console.console_actors import ConsoleClient, run_console

HOST = "console.example"
ORIGIN = f"https://{HOST}"
KINDS = {"nodes": "", "certificatesigningrequests": "certificates.k8s.io", "services": ""}
_ROLES = f"/apis/{RBAC}/v1/clusterroles"
_BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"


class Viewer:
    """A ServiceAccount with a token; on the simulated API server only a user of that name."""

    def __init__(self, api_server: ControlPlane | SimApiServer, admin: KubeletFleet, name: str) -> None:
        self._api_server = api_server
        self._admin = admin
        self._tokens = ServiceAccountTokens(admin)
        self.name = name
        self.user = get_account_user_name(name)
        self.token = ""

    async def issue_token(self, folder: Path) -> None:
        """Get the token."""
        if isinstance(self._api_server, SimApiServer):
            self.token = self._api_server.issue_token(self.user, ("system:serviceaccounts",))
        else:
            await self._tokens.issue(self.name, folder / self.name)
            self.token = (folder / self.name).read_text()

    async def revoke_token(self) -> None:
        """Let the token become invalid; the real API server notices within seconds."""
        if isinstance(self._api_server, SimApiServer):
            self._api_server.revoke_token(self.token)
        else:
            await self._tokens.revoke_all()

    async def allow(self, *plurals: str) -> None:
        """Grant the right to list these kinds."""
        for plural in plurals:
            named = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": f"{self.name}-{plural}"}}
            rules = [{"apiGroups": [KINDS[plural]], "resources": [plural], "verbs": ["list"]}]
            await self._admin.send("POST", _ROLES, body={**named, "kind": "ClusterRole", "rules": rules})
            binding = {
                **named,
                "kind": "ClusterRoleBinding",
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": f"{self.name}-{plural}"},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": self.user}],
            }
            await self._admin.send("POST", _BINDINGS, body=binding)

    async def forbid(self, *plurals: str) -> None:
        """Withdraw the right to list these kinds, if it was granted."""
        for plural in plurals:
            for path in (_BINDINGS, _ROLES):
                await self._admin.send("DELETE", f"{path}/{self.name}-{plural}", also=404)


@asynccontextmanager
async def open_viewer(
    api_server: ControlPlane | SimApiServer,
    admin: KubeletFleet,
    name: str,
    folder: Path,
    rights: Sequence[str] = tuple(KINDS),
) -> AsyncIterator[Viewer]:
    """A user with a token and these rights."""
    viewer = Viewer(api_server, admin, name)
    await viewer.issue_token(folder)
    await viewer.allow(*rights)
    yield viewer
    await viewer.forbid(*KINDS)


class ExposedConsole(NamedTuple):
    """A console on a clock of the test."""

    client: ConsoleClient
    clock: ManualClock
    reviews: list[str]  # the reviews that the API server has answered

    async def post(self, path: str, body: str = "", **headers: str) -> tuple[int, str, str]:
        """Status, text and Set-Cookie of a response to a form; not the page to which it leads."""
        sent = {"Host": HOST, "Origin": ORIGIN, "Content-Type": "application/x-www-form-urlencoded"}
        async with self.client.session.post(
            self.client.url + path, data=body, headers=sent | headers, allow_redirects=False
        ) as response:
            return response.status, await response.text(), response.headers.get("Set-Cookie", "")

    async def log_in(self, token: str) -> tuple[int, str]:
        """Status, and the cookie, or else the problem that the page names."""
        status, text, cookie = await self.post("/login", f"token={token}")
        if status == 303:
            return status, cookie.partition(";")[0]
        [problem] = re.findall('role="alert">([^<]*)<', text)
        return status, problem

    async def wait_for_login(self, viewer: Viewer) -> str:
        """The cookie of a session, once the authorizer applies the bindings of the viewer."""

        async def find() -> str | None:
            self.clock.advance(60)  # so that there is a further attempt
            status, cookie = await self.log_in(viewer.token)
            return cookie if status == 303 else None

        return await wait_for_value(find, what=f"login of {viewer.name}")

    async def check_until(self, stream: "asyncio.Task[None]") -> None:
        """Let the console check its sessions again and again, until it closes the stream."""

        async def check() -> bool:
            before = len(self.reviews)
            self.clock.advance(CHECK_SECONDS)
            await wait_until(lambda: len(self.reviews) > before or stream.done(), "a check")
            return stream.done()

        await wait_until(check, "the stream ends")

    async def get(self, path: str, cookie: str = "", **headers: str) -> int:
        """The status of a response."""
        sent = {"Host": HOST, "Cookie": cookie} | headers
        async with self.client.session.get(
            self.client.url + path, headers=sent, allow_redirects=False
        ) as response:
            return response.status

    @asynccontextmanager
    async def follow(self, cookie: str) -> AsyncIterator["asyncio.Task[None]"]:
        """An open event stream: a task that ends when the server closes it."""
        async with self.client.session.get(
            f"{self.client.url}/api/events", headers={"Host": HOST, "Cookie": cookie}
        ) as response:
            assert response.status == 200
            await response.content.readline()

            async def read() -> None:
                async for _ in response.content.iter_any():
                    pass

            task = asyncio.create_task(read())
            yield task
            task.cancel()


def write_certificate(folder: Path) -> None:
    """Write tls.crt and tls.key of a console, and ca.crt."""
    authority = CertificateAuthority.make(common_name="console-test")
    pair = authority.issue_server(["127.0.0.1", HOST])
    for name, content in (("ca.crt", authority.pem), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (folder / name).write_bytes(content)


@asynccontextmanager
async def run_exposed_console(
    api_server: ControlPlane | SimApiServer, admin: KubeletFleet, folder: Path
) -> AsyncIterator[ExposedConsole]:
    """A console with exactly the rights of the service table."""
    await grant_permissions(admin, [CONSOLE])
    write_certificate(folder)
    config = load_kube_config(api_server.kubeconfig(get_user_name(CONSOLE)), {})
    reviews: list[str] = []
    kube = KubeApi(
        config,
        user_agent="talos-ccm/test",
        observe=lambda verb, resource, status, seconds: reviews.append(resource),
    )
    clock = ManualClock()
    bus = MemoryBus(MemoryServer())
    try:
        async with run_console(
            bus,
            clock=clock,
            kube=kube,
            authority=folder / "ca.crt",
            exposed=True,
            tls_cert_file=folder / "tls.crt",
            tls_key_file=folder / "tls.key",
            allowed_hosts=(HOST,),
        ) as client:
            yield ExposedConsole(client, clock, reviews)
    finally:
        await bus.close()
        await kube.close()
