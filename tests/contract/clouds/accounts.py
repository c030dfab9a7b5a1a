"""One account of each cloud: its simulated API, and our client of it with a credential file."""

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from libs.clouds.account_session import AccountOptions
from libs.clouds.instances import Anchor, Instances, Outcome
from libs.common.client_tls import without_system_authorities
from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.hcloud.server import SimHcloud
from libs.testbed.clouds.openstack.server import SimOpenStack
from libs.testbed.clouds.thalassa.server import SimThalassa
from services.cloud.adapters import ADAPTERS

SECRET: Final = "the-secret-of-web"
FILE: Final = "credential"


class CloudAccount(Protocol):
    """What the tests of all clouds do with an account."""

    server: SimApiServer[Any]
    provider: str
    prefix: str  # of providerIDs
    endpoint: str  # for the client; "" if the credential file has it
    queries: str  # paths of requests about machines and anchors, as a regular expression
    machines: str  # the path of their list
    missing_id: str
    unreachable: Outcome  # of a server that does not speak HTTP

    def write_credential(self, folder: Path, secret: str = SECRET, *, endpoint: str = "") -> Path:
        """Write the file, and return it."""
        ...

    def replace_secret(self, secret: str) -> None:
        """Give the account another credential instead of the present one."""
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
    prefix = "hcloud://"
    queries = ".*"
    machines = "/servers"
    missing_id = "5"
    unreachable: Outcome = "unreachable"

    def __init__(self, server: SimApiServer[SimHcloud]) -> None:
        self.server = server
        self.endpoint = server.endpoint
        self.project = server.cloud.add_project(SECRET)

    def write_credential(self, folder: Path, secret: str = SECRET, *, endpoint: str = "") -> Path:
        file = folder / FILE
        file.write_text(secret + "\n")
        return file

    def replace_secret(self, secret: str) -> None:
        self.server.cloud.tokens = {secret: self.project}

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
    prefix = "thalassacloud://"
    queries = ".*"
    machines = "/v1/machines"
    missing_id = "vm-5"
    unreachable: Outcome = "unreachable"

    def __init__(self, server: SimApiServer[SimThalassa]) -> None:
        self.server = server
        self.endpoint = server.endpoint
        self.organisation = server.cloud.add_organisation("acme", SECRET)
        self.keys: dict[str, str] = {}  # more of the file

    def write_credential(self, folder: Path, secret: str = SECRET, *, endpoint: str = "") -> Path:
        file = folder / FILE
        where = endpoint or self.server.endpoint
        keys = {"organisation": "acme", "endpoint": f"{where}/"} | self.keys
        lines = [f"{key}: {value}" for key, value in keys.items()]
        file.write_text("\n".join([*lines, f"cloudCredentials: {{personalAccessToken: {secret}}}"]))
        return file

    def replace_secret(self, secret: str) -> None:
        self.server.cloud.tokens = {secret: self.organisation}

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


CLOUD_CONF: Final = """
[Global]
auth-url = {endpoint}/identity/v3
username = {user}
password = "{secret}"
tenant-name = {user}
domain-name = Default
region = {region}
"""


class OpenStackAccount:
    """A project of OpenStack with a user of its name, in a `cloud.conf`."""

    provider = "openstack"
    prefix = "openstack:///"
    endpoint = ""
    queries = "/compute/[^/]+/v2.1/servers/.*|/network/[^/]+/v2.0/networks.*"
    machines = "/compute/RegionOne/v2.1/servers/detail"
    missing_id = "0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11"
    unreachable: Outcome = "malformed"  # openstacksdk reports that it found no Keystone

    def __init__(
        self, server: SimApiServer[SimOpenStack], *, user: str = "web", region: str = "RegionOne"
    ) -> None:
        self.server = server
        self.user = user
        self.project = server.cloud.state.add_project(user, region)
        self.replace_secret(SECRET)

    def write_credential(
        self, folder: Path, secret: str = SECRET, *, endpoint: str = "", region: str = "RegionOne"
    ) -> Path:
        file = folder / FILE
        endpoint = endpoint or self.server.endpoint
        file.write_text(CLOUD_CONF.format(endpoint=endpoint, user=self.user, secret=secret, region=region))
        return file

    def replace_secret(self, secret: str) -> None:
        passwords = self.server.cloud.state.passwords
        for name in [name for name in passwords if name[0] == self.user]:
            del passwords[name]
        passwords[self.user, secret] = self.project.id

    def add_machine(self, name: str) -> str:
        return self.project.add_server(name)

    def shut_down(self, machine_id: str) -> None:
        self.project.update_server(machine_id, status="SHUTOFF")

    def remove_machine(self, machine_id: str) -> None:
        """Nova has neither the server nor its actions any more."""
        self.project.lose_server(machine_id)

    def delete_machine(self, machine_id: str) -> None:
        """Nova deletes it, and has its actions."""
        self.project.delete_server(machine_id)

    def add_anchor(self) -> Anchor:
        return Anchor("network", self.project.add_network())

    def remove_anchor(self, anchor: Anchor) -> None:
        del self.project.region.networks[anchor.id]


@asynccontextmanager
async def open_hcloud(now: Callable[[], float] = time.monotonic) -> AsyncIterator[HcloudAccount]:
    """An empty project; `now` is monotonic, in seconds."""
    async with SimApiServer.start(SimHcloud(now=now)) as server:
        yield HcloudAccount(server)


@asynccontextmanager
async def open_thalassa() -> AsyncIterator[ThalassaAccount]:
    """An empty organisation."""
    async with SimApiServer.start(SimThalassa()) as server:
        yield ThalassaAccount(server)


@asynccontextmanager
async def open_openstack(*regions: str) -> AsyncIterator[OpenStackAccount]:
    """An empty project. Its server has no TLS, and loading authorities takes time at each login."""
    regions = regions or ("RegionOne",)
    async with SimApiServer.start(SimOpenStack(regions=regions)) as server:
        with without_system_authorities():
            yield OpenStackAccount(server, region=regions[0])


OPEN: Final[Mapping[str, Callable[[], AbstractAsyncContextManager[CloudAccount]]]] = {
    "hcloud": open_hcloud,
    "openstack": open_openstack,
    "thalassa": open_thalassa,
}


def make_client(provider: str, file: Path, **options: Any) -> Instances:
    """Return our client with this credential file."""
    defaults: dict[str, Any] = {"user_agent": "talos-ccm/test", "requests_per_minute": 10_000}
    return ADAPTERS[provider](AccountOptions(credential=file, **(defaults | options)), None, None).instances


@asynccontextmanager
async def open_client(
    account: CloudAccount, folder: Path, *, secret: str = SECRET, endpoint: str = "", **options: Any
) -> AsyncIterator[Instances]:
    """Our client, without a limit of requests per minute unless one is given."""
    file = account.write_credential(folder, secret, endpoint=endpoint)
    endpoint = endpoint if endpoint and account.endpoint else account.endpoint
    instances = make_client(account.provider, file, endpoint=endpoint, **options)
    try:
        yield instances
    finally:
        await instances.close()


def list_queries(account: CloudAccount) -> list[SimRequest]:
    """Return the requests about machines and anchors, without those of a login."""
    return [each for each in account.server.requests if re.fullmatch(account.queries, each.path)]
