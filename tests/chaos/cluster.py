"""A real cluster whose every connection between a service and a server goes through a fault proxy."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from libs.common.contract.services import IPAM, LIFECYCLE, SERVICES, WATCHER
from libs.testbed.admission_webhook import AdmissionWebhook
from libs.testbed.child_process import make_directory
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.pki import write_private
from libs.testbed.service_account_tokens import ServiceAccountTokens
from libs.testbed.service_permissions import ALL_IN_ONE, get_user_name
from libs.testbed.service_processes import ProcessEndpoints, ServiceProcesses, list_process_names
from tests.chaos.api_proxy import ApiProxy
from tests.chaos.clocks import build_clock_environment
from tests.chaos.credentials import CredentialRecord
from tests.chaos.links import ACCOUNT_FILE, TALOSCONFIG, Link, Links, LinkTarget, ProxiedApiServer
from tests.chaos.nats_servers import NatsServers
from tests.chaos.workload import RULE_LABEL
from tests.tcp_server import run_collector

Mode = Literal["separate", "all-in-one", "nats-cluster"]

MODES: Final[tuple[Mode, ...]] = ("separate", "all-in-one", "nats-cluster")
SEPARATE_MODES: Final[tuple[Mode, ...]] = ("separate", "nats-cluster")  # a process for each service
SINGLE_SERVER_MODES: Final[tuple[Mode, ...]] = ("separate", "all-in-one")  # of NATS, without keys
CLUSTERED_MODES: Final[tuple[Mode, ...]] = ("nats-cluster",)  # three servers, with keys and TLS
REPLICAS: Final[Mapping[str, int]] = {
    WATCHER.service: 2,
    IPAM.service: 2,
    LIFECYCLE.service: 2,
    "all-in-one": 2,
}
SECOND: Final = "second"  # directory of a second installation
_RULES_FILE: Final = "cloud-config.yaml"
_FLAGS: Final = (
    "--controllers=*,node-ipam-controller,cloud-node-lifecycle",
    "--cluster-cidr=10.128.0.0/9,fd00:10:128::/48",
    "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
)
# lifecycle as usual, but minutes are seconds: a deletion must be possible within a run.
_QUICK_LIFECYCLE: Final = (
    "--lifecycle-not-ready-time=1s",
    "--lifecycle-evidence-time=6s",
    "--lifecycle-start-grace=1s",
)


class ChaosCluster(NamedTuple):
    """The servers, machines, processes and the links between them."""

    run_dir: Path
    mode: Mode
    control_plane: ControlPlane
    nats: NatsServers
    machines: MachineFleet
    kubelets: KubeletFleet  # also an operator: admin, and no proxy in between
    services: ServiceProcesses
    links: Links  # between the processes and the servers
    api_proxy: ApiProxy  # between the links and kube-apiserver
    webhook: AdmissionWebhook  # registered only by a fault
    tokens: ServiceAccountTokens  # by which the processes authenticate at kube-apiserver
    credentials: CredentialRecord  # of the processes; the present ones are added when they are replaced
    started: contextlib.AsyncExitStack  # what a fault starts ends with the cluster

    @property
    def rules_file(self) -> Path:
        """The file of --cloud-config."""
        return self.run_dir / _RULES_FILE

    async def rotate_tokens(self) -> None:
        """Write a new token for each process and revoke the former one. Raises RequestRejected."""
        self.record_credentials()
        await self.tokens.rotate_all()

    def rotate_nats_keys(self) -> None:
        """Remove the key of each service; the sidecars create others."""
        assert self.nats.keys is not None
        self.record_credentials()
        for spec in SERVICES:
            self.nats.keys.replace(spec.service)

    def write_talosconfigs(self) -> None:
        """Write the talosconfig of each process again, with a new client certificate."""
        self.record_credentials()
        self.links.write_talosconfigs(self.run_dir, self.machines)

    def record_credentials(self) -> None:
        """Record the present credentials of the processes, before they are replaced or at the end."""
        self.credentials.add(self._list_credential_files())

    def list_texts(self) -> Iterator[Path]:
        """The logs of the processes and the files of JetStream, which also contain replaced messages."""
        for name in ("logs", SECOND):
            yield from (self.run_dir / name).glob("*.log")
        yield from self.nats.list_message_files()

    def _list_credential_files(self) -> Iterator[Path]:
        yield from self.run_dir.glob(f"*/{TALOSCONFIG}")
        if self.nats.keys is not None:
            yield from self.nats.keys.directory.rglob("*.nk")
            yield from self.nats.keys.directory.rglob("*.key")
        yield from self.tokens.files
        yield from self.control_plane.run_dir.glob("talos-ccm*.key")  # a second installation has one


def list_processes(mode: Mode) -> tuple[str, ...]:
    """The names of the processes in that mode."""
    services = ["all-in-one"] if mode == "all-in-one" else [spec.service for spec in SERVICES]
    return tuple(
        name for service in services for name in list_process_names(service, REPLICAS.get(service, 1))
    )


class Servers(NamedTuple):
    """The servers that the processes connect to, and the kubelets."""

    control_plane: ControlPlane
    nats: NatsServers
    machines: MachineFleet
    kubelets: KubeletFleet


@contextlib.asynccontextmanager
async def start_cluster(run_dir: Path, mode: Mode) -> AsyncIterator[ChaosCluster]:
    """Start everything in `run_dir`, and wait until the services are ready."""
    async with (
        ControlPlane.start(run_dir / "kubernetes", audit_fields=True) as control_plane,
        MachineFleet.start(make_directory(run_dir / "talos")) as machines,
        KubeletFleet.start(control_plane) as kubelets,
        NatsServers.start(run_dir / "nats", is_cluster=mode in CLUSTERED_MODES) as nats,
        start_processes(run_dir, mode, Servers(control_plane, nats, machines, kubelets)) as cluster,
    ):
        yield cluster


@contextlib.asynccontextmanager
async def start_processes(run_dir: Path, mode: Mode, servers: Servers) -> AsyncIterator[ChaosCluster]:
    """Start the services with proxies between them and the servers, and wait until they are ready.

    Their clocks can jump, and they export traces.
    """
    control_plane, nats, machines, kubelets = servers
    names = list_processes(mode)
    async with contextlib.AsyncExitStack() as stack:
        api_proxy = await stack.enter_async_context(ApiProxy.start(control_plane))
        webhook = await stack.enter_async_context(AdmissionWebhook.start("chaos", run_dir))
        tokens = ServiceAccountTokens(kubelets)
        for name in names:
            await tokens.issue(_get_account(name), make_directory(run_dir / name) / ACCOUNT_FILE)
        collector = await stack.enter_async_context(run_collector())
        targets: dict[Link, LinkTarget] = {
            "nats": LinkTarget(nats.port, nats.hosts),
            "api": LinkTarget(api_proxy.port),
            "talos": LinkTarget(_port_of(machines.endpoints[0])),
            "collector": LinkTarget(_port_of(collector.url)),
        }
        links = await stack.enter_async_context(Links.start(names, targets))
        endpoint = f"http://127.0.0.1:{links.collector_port}"
        write_rules(run_dir / _RULES_FILE, 0)
        starting = ServiceProcesses.start(
            make_directory(run_dir / "logs"),
            control_plane,
            kubelets,
            nats_url="",  # unused, as the next one: each process has its own NATS URL and talosconfig
            talosconfig=run_dir,
            all_in_one=mode == "all-in-one",
            flags=[*_FLAGS, f"--cloud-config={run_dir / _RULES_FILE}"],
            own_flags=_list_own_flags(nats),
            env={**build_clock_environment(run_dir), "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
            wirings=SERVICES,
            replicas=REPLICAS,
            endpoints={name: _make_endpoints(run_dir, servers, links, name) for name in names},
        )
        links.write_talosconfigs(run_dir, machines)
        services = await stack.enter_async_context(starting)
        await services.wait_until_ready()
        yield ChaosCluster(
            run_dir,
            mode,
            *servers,
            services,
            links,
            api_proxy,
            webhook,
            tokens,
            CredentialRecord(),
            stack,
        )


def write_rules(file: Path, revision: int) -> None:
    """Replace the file of --cloud-config atomically: every Node gets the label of that revision."""
    text = (
        "transformations:\n"
        "  - name: chaos\n"
        f'    labels: {{{RULE_LABEL}: "r{revision}-of-{{{{ .Platform }}}}"}}\n'
    )
    write_private(file, text.encode())


def _list_own_flags(nats: NatsServers) -> dict[str, list[str]]:
    services = (*(spec.service for spec in SERVICES), "all-in-one")
    own_flags = {service: nats.list_flags(service) for service in services}
    for service in (LIFECYCLE.service, "all-in-one"):
        own_flags[service] += _QUICK_LIFECYCLE
    return own_flags


def _get_account(process: str) -> str:
    """The ServiceAccount of a process: replicas share one."""
    if process.startswith("all-in-one"):
        return ALL_IN_ONE
    return get_user_name(next(spec for spec in SERVICES if process.startswith(spec.service)))


def _make_endpoints(run_dir: Path, servers: Servers, links: Links, name: str) -> ProcessEndpoints:
    own = make_directory(run_dir / name)
    return ProcessEndpoints(
        ProxiedApiServer(servers.control_plane, links.proxies["api"][name].port, own),
        f"{servers.nats.scheme}://127.0.0.1:{links.proxies['nats'][name].port}",
        own / TALOSCONFIG,
    )


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
