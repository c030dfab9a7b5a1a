"""The connections of each process to its servers, each through a fault proxy of its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from libs.common.contract.services import METADATA
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kube_credentials import build_kubeconfig
from libs.testbed.machine_fleet import MachineFleet
from tests.chaos.fault_proxy import FaultProxy, LinkState

Link = Literal["nats", "api", "talos", "collector"]

PROCESS_LINKS: Final[tuple[Link, ...]] = ("nats", "api", "talos")  # all processes share one to the collector
_LOOPBACK: Final = ("127.0.0.1",)
ACCOUNT_FILE: Final = "kubernetes-token"
TALOSCONFIG: Final = "talosconfig"
_ALL: Final = "all"  # the process of the link to the collector


class UnknownLink(ValueError):
    """No process of that name has such a link."""


class LinkTarget(NamedTuple):
    """The server at the far end of a link: one address, or several that take turns."""

    port: int
    hosts: Sequence[str] = _LOOPBACK


class Links(NamedTuple):
    """The fault proxies by link and by the name of the process."""

    proxies: Mapping[Link, Mapping[str, FaultProxy]]

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, names: Sequence[str], targets: Mapping[Link, LinkTarget]) -> AsyncIterator[Links]:
        """Start the proxies of these processes; only those with the Talos credential reach Talos."""
        proxies: dict[Link, dict[str, FaultProxy]] = {link: {} for link in targets}
        async with contextlib.AsyncExitStack() as stack:
            for (number, name), link in itertools.product(enumerate(names, 2), PROCESS_LINKS):
                if link != "talos" or name.startswith((METADATA.service, "all-in-one")):
                    port, hosts = targets[link]
                    proxy = FaultProxy.start(port, hosts=hosts, source=f"127.0.0.{number}")
                    proxies[link][name] = await stack.enter_async_context(proxy)
            collector = FaultProxy.start(targets["collector"].port)
            proxies["collector"][_ALL] = await stack.enter_async_context(collector)
            yield cls(proxies)

    @property
    def collector_port(self) -> int:
        """The port at which all processes reach the collector."""
        return self.proxies["collector"][_ALL].port

    def set_state(self, link: Link, state: LinkState, process: str | None = None) -> None:
        """Set the state of a link of one process, or of all. Raises UnknownLink without such a process."""
        proxies = self.proxies[link]
        if process is not None and process not in proxies:
            raise UnknownLink(f"{process} has no link {link!r}; those that have one: {', '.join(proxies)}")
        for proxy in [proxies[process]] if process else proxies.values():
            proxy.set_state(state)

    def write_talosconfigs(self, run_dir: Path, machines: MachineFleet) -> None:
        """Write the talosconfig of each process, with a new client certificate."""
        for name, proxy in self.proxies["talos"].items():
            machines.write_talosconfig(run_dir / name / TALOSCONFIG, endpoints=[f"127.0.0.1:{proxy.port}"])


class ProxiedApiServer(NamedTuple):
    """The API server as one process reaches it."""

    control_plane: ControlPlane
    port: int
    directory: Path

    def kubeconfig(self, user: str) -> Path:
        """Write a kubeconfig of that user that leads to the proxy."""
        authority = str(self.control_plane.ca_file)
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": authority}
        identity = {"tokenFile": str(self.directory / ACCOUNT_FILE)}
        path = self.directory / "kubeconfig"
        path.write_bytes(build_kubeconfig(user, cluster, identity))
        return path
