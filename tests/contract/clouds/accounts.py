"""One account of each cloud: its simulated API, and our client of it with a credential file."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from libs.clouds.account_session import AccountOptions
from libs.clouds.instances import Anchor, Instances
from libs.testbed.clouds.api_server import SimApiServer
from libs.testbed.clouds.hcloud.server import SimHcloud
from libs.testbed.clouds.thalassa.server import SimThalassa
from services.cloud.service import ADAPTERS

SECRET: Final = "the-secret-of-web"
FILE: Final = "credential"


class CloudAccount(Protocol):
    """What the tests of all clouds do with an account."""

    server: SimApiServer[Any]
    provider: str
    scheme: str  # of providerIDs
    machines: str  # the path of their list, as a regular expression
    missing_id: str

    def write_credential(self, folder: Path, secret: str = SECRET, *, endpoint: str = "") -> Path:
        """Write the file, and return it."""
        ...

    def add_secret(self, secret: str) -> None:
        """Give the account another credential."""
        ...

    def add_machine(self, name: str) -> str:
        """Create a running machine; return its id."""
        ...

    def shut_down(self, machine_id: str) -> None: ...

    def remove_machine(self, machine_id: str) -> None: ...

    def add_anchor(self) -> Anchor: ...

    def remove_anchor(self, anchor: Anchor) -> None: ...


class HcloudAccount:
    """A project of Hetzner Cloud."""

    provider = "hcloud"
    scheme = "hcloud"
    machines = "/servers"
    missing_id = "5"

    def __init__(self, server: SimApiServer[SimHcloud]) -> None:
        self.server = server
        self.project = server.cloud.add_project(SECRET)

    def write_credential(self, folder: Path, secret: str = SECRET, *, endpoint: str = "") -> Path:
        file = folder / FILE
        file.write_text(secret + "\n")
        return file

    def add_secret(self, secret: str) -> None:
        self.server.cloud.tokens[secret] = self.project

    def add_machine(self, name: str) -> str:
        return str(self.project.add_server(name))

    def shut_down(self, machine_id: str) -> None:
        self.project.update_server(int(machine_id), status="off")

    def remove_machine(self, machine_id: str) -> None:
        self.project.remove("servers", int(machine_id))

    def add_anchor(self) -> Anchor:
        return Anchor("network", str(self.project.add_network()))

    def remove_anchor(self, anchor: Anchor) -> None:
        self.project.remove("networks", int(anchor.id))


class ThalassaAccount:
    """An organisation of Thalassa Cloud with a personal access token, in the controller's config file."""

    provider = "thalassa"
    scheme = "thalassacloud"
    machines = "/v1/machines"
    missing_id = "vm-5"

    def __init__(self, server: SimApiServer[SimThalassa]) -> None:
        self.server = server
        self.organisation = server.cloud.add_organisation("acme", SECRET)
        self.keys: dict[str, str] = {}  # more of the file

    def write_credential(self, folder: Path, secret: str = SECRET, *, endpoint: str = "") -> Path:
        file = folder / FILE
        where = endpoint or self.server.endpoint
        keys = {"organisation": "acme", "endpoint": f"{where}/"} | self.keys
        lines = [f"{key}: {value}" for key, value in keys.items()]
        file.write_text("\n".join([*lines, f"cloudCredentials: {{personalAccessToken: {secret}}}"]))
        return file

    def add_secret(self, secret: str) -> None:
        self.server.cloud.tokens[secret] = self.organisation

    def add_machine(self, name: str) -> str:
        return self.organisation.add_machine(name)

    def shut_down(self, machine_id: str) -> None:
        self.organisation.set_state(machine_id, "stopped")

    def remove_machine(self, machine_id: str) -> None:
        self.organisation.remove("machines", machine_id)

    def add_anchor(self) -> Anchor:
        return Anchor("vpc", f"{self.organisation.add_vpc()}@acme")

    def remove_anchor(self, anchor: Anchor) -> None:
        self.organisation.remove("vpcs", anchor.id.partition("@")[0])


@asynccontextmanager
async def open_hcloud() -> AsyncIterator[HcloudAccount]:
    """An empty project."""
    async with SimApiServer.start(SimHcloud()) as server:
        yield HcloudAccount(server)


@asynccontextmanager
async def open_thalassa() -> AsyncIterator[ThalassaAccount]:
    """An empty organisation."""
    async with SimApiServer.start(SimThalassa()) as server:
        yield ThalassaAccount(server)


OPEN: Final[Mapping[str, Callable[[], AbstractAsyncContextManager[CloudAccount]]]] = {
    "hcloud": open_hcloud,
    "thalassa": open_thalassa,
}


def make_client(provider: str, file: Path, **options: Any) -> Instances:
    """Return our client with this credential file."""
    defaults: dict[str, Any] = {"user_agent": "talos-ccm/test", "requests_per_minute": 10_000}
    return ADAPTERS[provider](AccountOptions(credential=file, **(defaults | options)))


@asynccontextmanager
async def open_client(
    account: CloudAccount, folder: Path, *, secret: str = SECRET, endpoint: str = "", **options: Any
) -> AsyncIterator[Instances]:
    """Our client, without a limit of requests per minute unless one is given."""
    file = account.write_credential(folder, secret, endpoint=endpoint)
    endpoint = endpoint or account.server.endpoint
    instances = make_client(account.provider, file, endpoint=endpoint, **options)
    try:
        yield instances
    finally:
        await instances.close()
