"""The services as real processes, each with the permissions of its service spec; restarts those that end."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal, NamedTuple, NoReturn, Protocol, Self

import aiohttp
import msgspec

from libs.common.contract.services import DEFAULT_SERVICES, SERVICES, WATCHER, ServiceSpec
from libs.testbed.child_process import (
    HANG_SECONDS,
    ChildExited,
    ChildProcess,
    is_serving,
    make_directory,
    wait_until,
)
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.ports import allocate_port
from libs.testbed.service_permissions import (
    ALL_IN_ONE,
    build_role_objects,
    get_collection_path,
    get_lease_name,
    get_user_name,
)
from libs.testbed.service_start import start_service

_PAGE_TIMEOUT = aiohttp.ClientTimeout(total=HANG_SECONDS)
# the Service networks of both API servers of the testbed
SERVICE_NETWORKS: Final = "10.96.0.0/16,fd00:10:96::/112"
# On a machine this busy a single replica must not lose its Lease, because its process would end.
PATIENT_LEASE: Final = ("--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s")
PATIENT_LEASE_FLAGS: Final[Mapping[str, Sequence[str]]] = dict.fromkeys(
    ("watcher", "all-in-one"), PATIENT_LEASE
)
_STOP_SECONDS = 30  # the time for a service to finish its work and release its Lease


class ApiServer(Protocol):
    """The interface of ControlPlane and SimApiServer that is used here."""

    def kubeconfig(self, user: str) -> Path:
        """Return a kubeconfig of that user, who has only granted permissions."""
        ...


class ProcessEndpoints(NamedTuple):
    """The servers that one process connects to."""

    api_server: ApiServer
    nats_url: str
    talosconfig: Path


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a process has used so far."""

    cpu_seconds: float
    peak_rss_bytes: int
    threads: int


class ServiceProcesses:
    """The processes by name, such as "watcher", "ipam" and its replica "ipam-2", or only "all-in-one"."""

    def __init__(self) -> None:
        self.children: dict[str, ChildProcess] = {}
        self.ports: dict[str, int] = {}
        self._started_as: dict[str, Callable[[], ChildProcess]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        run_dir: Path,
        api_server: ApiServer,
        kubelets: KubeletFleet,
        *,
        nats_url: str,
        talosconfig: Path,
        all_in_one: bool = False,
        bus: Literal["nats", "memory"] = "nats",
        flags: Sequence[str] = (),
        own_flags: Mapping[str, Sequence[str]] | None = None,
        env: Mapping[str, str] | None = None,
        wirings: Sequence[ServiceSpec] = DEFAULT_SERVICES,
        replicas: Mapping[str, int] | None = None,
        instance: str = ALL_IN_ONE,
        endpoints: Mapping[str, ProcessEndpoints] | None = None,
    ) -> AsyncIterator[Self]:
        """Grant the permissions and start the processes; stop them in order at the end.

        `wait_until_ready` waits for them. `flags` are for every process, `own_flags` for those of that name.

        `wirings` are the services that get permissions and, unless all are in one process, a process. In the
        all-in-one process, the flags select the services. `replicas` is the number of equal processes per
        service. `nats_url` is ignored on the memory bus, which requires all-in-one.

        `instance` is the prefix of the user names. A second installation in the same cluster needs another
        one, and has another Lease.

        `endpoints` are other servers than these for a process of that name.
        """
        await grant_permissions(kubelets, wirings, instance)
        make_directory(run_dir)
        services = cls()
        users: dict[str, str] = {w.service: get_user_name(w, instance) for w in wirings}
        specs: dict[str, ServiceSpec] = {} if all_in_one else {w.service: w for w in wirings}
        if all_in_one:
            users = {"all-in-one": instance}
        common = ["--bind-address=127.0.0.1", "--secure-serving=false", *flags]
        shared = ProcessEndpoints(api_server, nats_url, talosconfig)
        try:
            for service, user in users.items():
                its_own = _build_network_flags(service, flags)
                its_own += [*_build_lease_flags(service, instance), *(own_flags or {}).get(service, ())]
                for name in list_process_names(service, (replicas or {}).get(service, 1)):
                    port = services.ports[name] = allocate_port()
                    to = (endpoints or {}).get(name, shared)
                    carrier = f"--nats-url={to.nats_url}" if bus == "nats" else "--bus=memory"
                    credentials = _build_credential_flags(specs.get(service), user, to)
                    arguments = [f"--secure-port={port}", *credentials, *its_own, carrier, *common]
                    services._started_as[name] = partial(
                        start_service, name, service, arguments, run_dir, env or {}
                    )
                    services.restart(name)
            yield services
        finally:
            await asyncio.gather(*(child.stop(_STOP_SECONDS) for child in services.children.values()))

    async def wait_until_ready(self, seconds: float = HANG_SECONDS) -> None:
        """Wait until every process is ready. Raises ChildExited or TimeoutError, with the last log lines."""
        for name, child in self.children.items():
            await wait_until(partial(self.is_ready, name), child, what="ready", seconds=seconds)

    async def kill(self, name: str) -> None:
        """Kill a process (SIGKILL), as in a crash, and remove it from the children."""
        await self.children.pop(name).kill()

    def restart(self, name: str) -> None:
        """Start an ended process again with the same arguments; it logs to the same file."""
        self.children[name] = self._started_as[name]()

    async def wait_for_exit(self) -> NoReturn:
        """Wait until a process ends that `kill` did not end. Raises ChildExited, because none should."""
        waiting = {asyncio.create_task(child.wait()): child for child in self.children.values()}
        child = None
        try:
            while child not in self.children.values():
                ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                child = waiting.pop(ended.pop())
        finally:
            for task in waiting:
                task.cancel()
        assert child is not None
        raise ChildExited(f"{child.name} ended with status {child.process.returncode}:\n{child.tail()}")

    async def is_ready(self, name: str) -> bool:
        """Return whether the process says that it is ready."""
        return await is_serving(f"http://127.0.0.1:{self.ports[name]}/readyz")

    async def fetch_page(self, name: str, path: str) -> str:
        """Return a page of a process, such as "/metrics" or "/readyz?verbose"; "" without a response."""
        url = f"http://127.0.0.1:{self.ports[name]}{path}"
        try:
            async with aiohttp.ClientSession(timeout=_PAGE_TIMEOUT) as session, session.get(url) as answer:
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return ""


def _build_credential_flags(spec: ServiceSpec | None, user: str, to: ProcessEndpoints) -> list[str]:
    """Return the credential flags of a service, or of the process of all services (None).

    Only metadata or that process gets the Talos credential. metadata gets no Kubernetes credential.
    """
    kubeconfig, talosconfig = to.api_server.kubeconfig(user), to.talosconfig
    of_kubernetes = [f"--kubeconfig={kubeconfig}"] if spec is None or spec.policy_rules else []
    of_talos = [f"--talosconfig={talosconfig}"] if spec is None or "talosconfig" in spec.secrets else []
    return of_kubernetes + of_talos


def _build_lease_flags(service: str, instance: str) -> list[str]:
    """Return a flag for each Lease of the process, and for that of the watcher, which all services accept."""
    return [
        f"--{spec.lease.flag}={get_lease_name(instance, spec.lease.name)}"
        for spec in SERVICES
        if instance != ALL_IN_ONE and spec.lease is not None
        if service in ("all-in-one", spec.service) or spec is WATCHER
    ]


def _build_network_flags(service: str, flags: Sequence[str]) -> list[str]:
    """Return the networks for csr, alone or in a process without ipam.

    Most fleets of the testbed have no control plane machine that reports them.
    """
    has_ipam = any("node-cidrs" in flag or "ipam" in flag for flag in flags)
    takes_it = service == "csr" or (service == "all-in-one" and not has_ipam)
    return [f"--service-cluster-ip-range={SERVICE_NETWORKS}"] if takes_it else []


def list_process_names(service: str, replicas: int) -> list[str]:
    """The names of equal processes of a service, such as "ipam" and "ipam-2"."""
    return [service, *(f"{service}-{number}" for number in range(2, replicas + 1))]


async def grant_permissions(
    kubelets: KubeletFleet, wirings: Sequence[ServiceSpec] = DEFAULT_SERVICES, instance: str = ALL_IN_ONE
) -> None:
    """Create the RBAC objects of these services; existing ones stay. Raises RequestRejected."""
    for wiring in wirings:
        for manifest in build_role_objects(wiring, instance):
            await kubelets.send(
                "POST", get_collection_path(manifest), also=HTTPStatus.CONFLICT, body=manifest
            )


def measure_process_usage(pid: int) -> ProcessUsage:
    """Return CPU seconds, peak resident memory and threads of a running process, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = dict(
        row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in row
    )
    return ProcessUsage(
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        peak_rss_bytes=int(status["VmHWM"].split()[0]) * 1024,
        threads=int(fields[17]),
    )


_POLL_SECONDS: Final = 0.3


@contextlib.asynccontextmanager
async def keep_running(services: ServiceProcesses) -> AsyncIterator[list[str]]:
    """During the block, restart each process that ends without `services.kill`; yields their names so far.

    Raises the error of a restart at the end of the block.
    """
    restarted: list[str] = []

    async def keep() -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for name, child in list(services.children.items()):
                if not child.is_running:
                    restarted.append(name)
                    services.restart(name)

    keeping = asyncio.create_task(keep())
    try:
        yield restarted
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled():
            keeping.result()
