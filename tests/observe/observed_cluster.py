"""A cluster with all services, an installed NATS and a real Prometheus that evaluates the alerts."""

import asyncio
import copy
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from libs.common.contract.services import SERVICES
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.prometheus import PrometheusServer, start_prometheus
from libs.testbed.service_processes import PATIENT_LEASE, ServiceProcesses
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.architecture.sources import ROOT
from tests.bootstrap_actors import BootstrapInstallation, install_bootstrap
from tests.bus_actors import wait_until
from tests.integration.lifecycle_cluster import CONTROL_PLANE, Cluster
from tests.observe.clouds.cloud_account import ACCOUNT

DURATION: Final = re.compile(r"\b(\d+)m\b")
_WINDOW: Final = re.compile(r"(?<=\[)\d+[ms](?=\])|(?<=offset )\d+[ms]\b")


def shortened(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules with seconds instead of minutes in `for:`, windows and offsets; thresholds do not change."""
    made = copy.deepcopy(rules)
    for group in made["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _WINDOW.sub(lambda found: found[0][:-1] + "s", rule["expr"])
            if "for" in rule:
                rule["for"] = DURATION.sub(r"\1s", rule["for"])
    return made


def without_durations(rules: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every rule without its durations, which `shortened` must not change."""
    return [
        (group["name"], rule["alert"], _WINDOW.sub("", rule["expr"]), rule["labels"], rule["annotations"])
        for group in rules["groups"]
        for rule in group["rules"]
    ]


RULES: Final = ROOT / "deploy" / "k8s" / "chart" / "files" / "observability" / "rules.yaml"
CONFIG: Final = "transformations:\n- name: team\n  labels: {team: red}\n"
BLOCKS: Final = 16  # in the only pool
WORKERS: Final = 9
SCRAPE_SECONDS: Final = 1.0
_FLAGS: Final = (
    "--controllers=*,cloud-node-lifecycle",
    "--allocate-node-cidrs",
    "--cluster-cidr=10.244.0.0/20",
    "--node-cidr-mask-size=24",
    "--service-cluster-ip-range=10.96.0.0/12",
    "--node-status-update-frequency=5s",  # minutes are seconds
)
_LIFECYCLE: Final = (
    "--lifecycle-not-ready-time=1s",
    "--lifecycle-evidence-time=2s",
    "--lifecycle-start-grace=1s",
    "--lifecycle-max-deletions-per-hour=0",
)
_CALM_SECONDS: Final = HANG_SECONDS
_FIRES_SECONDS: Final = HANG_SECONDS


class ObservedCluster:
    """The cluster, its processes, and the expected alerts."""

    def __init__(self, run_dir: Path, installation: "Installation") -> None:
        self.run_dir = run_dir
        self.server, self.cluster, self.bus, self.talosconfig, self.config = installation
        self.kubelets: KubeletFleet = self.cluster.kubelets
        self.machines: MachineFleet = self.cluster.machines
        self.addresses = installation.addresses
        self.prometheus: PrometheusServer
        self._expected: set[str] = set()  # alerts that have fired, or will fire by a fault that has started

    @property
    def services(self) -> ServiceProcesses:
        return self.cluster.services

    async def join(self, *names: str, first: int, **flags: Any) -> list[SimMachineFacts]:
        """Start machines with these names and let them join; `first` is the last byte of the first IP."""
        some = [make_machine(name, f"10.240.0.{first + n}") for n, name in enumerate(names)]
        await self.cluster.join(*some, **flags)
        return some

    async def ask_for_certificate(self, name: str, **wishes: Any) -> str:
        """Let the kubelet of that Node file a request; return its name."""
        machine = self.machines.get_machine(name)
        return await self.kubelets.request_certificate(SimKubelet.of_machine(machine), **wishes)

    def expect(self, alert: str) -> None:
        """Allow this alert from now on."""
        self._expected.add(alert)

    async def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {alert.name for alert in await self.prometheus.list_alerts() if alert.state == "firing"}

    async def fired_within(self, seconds: float) -> set[str]:
        """The alerts that have fired at any time within these seconds."""
        window = f"{max(1, round(seconds))}s"
        query = f'count by (alertname) (last_over_time(ALERTS{{alertstate="firing"}}[{window}]))'
        return {sample.labels["alertname"] for sample in await self.prometheus.query(query)}

    async def until_fires(self, alert: str) -> None:
        """Wait until the alert fires; only alerts that were expected before may fire meanwhile."""
        self.expect(alert)

        async def fires() -> bool:
            firing = await self.firing()
            assert firing <= self._expected, firing
            return alert in firing

        await wait_until(fires, f"{alert} fires", _FIRES_SECONDS)

    async def read_label(self, alert: str, label: str) -> str:
        """The label of the only active alert of that name."""
        (value,) = [each.labels[label] for each in await self.prometheus.list_alerts() if each.name == alert]
        return value

    async def until_calm(self, excluded: frozenset[str] = frozenset()) -> None:
        """Wait until no alert is pending; alerts that have fired may still do so."""

        async def calm() -> bool:
            alerts = await self.prometheus.list_alerts()
            assert {each.name for each in alerts if each.state == "firing"} <= self._expected, alerts
            return not {each.name for each in alerts if each.state == "pending"} - excluded

        await wait_until(calm, "nothing is pending", _CALM_SECONDS)

    async def until_gone(self, alert: str) -> None:
        """Wait until the alert does not fire."""

        async def is_gone() -> bool:
            return alert not in await self.firing()

        await wait_until(is_gone, f"{alert} is gone", _CALM_SECONDS)

    async def until_quiet(self) -> None:
        """Wait until no alert is pending or firing."""

        async def quiet() -> bool:
            return not await self.prometheus.list_alerts()

        await wait_until(quiet, "no alert", _CALM_SECONDS)

    async def until_scraped(self, **wanted: bool) -> None:
        """Wait until Prometheus has, or does not have, metrics of these processes."""

        async def scraped() -> bool:
            up = await self.prometheus.get_target_states()
            return all(up.get(name, False) is answers for name, answers in wanted.items())

        await wait_until(scraped, f"scraped: {wanted}", _CALM_SECONDS)


class Installation(NamedTuple):
    """All services and the NATS keeper as deployed, on a simulated API server."""

    server: SimApiServer
    cluster: Cluster
    bus: BootstrapInstallation
    talosconfig: Path
    config: Path  # the --cloud-config file

    def addresses(self) -> dict[str, str]:
        """The addresses of all processes, for Prometheus."""
        found = {name: f"127.0.0.1:{port}" for name, port in self.cluster.services.ports.items()}
        return found | {"keeper": f"127.0.0.1:{self.bus.health_port}"}


@asynccontextmanager
async def install(
    run_dir: Path,
    *,
    flags: Sequence[str],
    own_flags: Mapping[str, Sequence[str]],
    bootstrap_flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[Installation]:
    """The services start after the control plane's Node has joined; pod CIDRs rest for a second."""
    config = run_dir / "cloud-config.yaml"
    config.write_text(CONFIG)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        server = await enter(SimApiServer.start(run_dir / "api"))
        kubelets = await enter(KubeletFleet.start(server))
        machines = await enter(MachineFleet.start(run_dir / "machines"))
        bus = await enter(
            install_bootstrap(run_dir / "nats", flags=[f"--cloud-accounts={ACCOUNT}", *bootstrap_flags])
        )
        await enter(bus.run_sidecar())
        cluster = Cluster(kubelets, machines)
        await cluster.join(make_machine(CONTROL_PLANE, "10.240.0.1", control_plane=True))
        own = {spec.service: [*bus.nats_flags(spec.service)] for spec in SERVICES}
        for service, added in {"ipam": ["--pod-cidr-quarantine=1s"], **own_flags}.items():
            own[service] += added
        talosconfig = machines.write_talosconfig()
        cluster.services = await enter(
            ServiceProcesses.start(
                run_dir / "services",
                server,
                kubelets,
                nats_url=bus.url,
                talosconfig=talosconfig,
                wirings=SERVICES,
                flags=[*flags, *PATIENT_LEASE, f"--cloud-config={config}"],
                own_flags=own,
                env=env,
            )
        )
        yield Installation(server, cluster, bus, talosconfig, config)


@asynccontextmanager
async def a_watched_cluster(run_dir: Path) -> AsyncIterator[ObservedCluster]:
    """A running cluster with ten usable Nodes; Prometheus starts after that."""
    installing = install(
        run_dir,
        flags=_FLAGS,
        own_flags={"lifecycle": _LIFECYCLE, "metadata": ["--talos-watched-machines=0"]},  # poll all machines
        # The stream cannot grow beyond this store, so a flood of 58 MB fills it.
        bootstrap_flags=[f"--store-bytes={64 * 2**20}"],
    )
    rules = run_dir / "rules.yaml"
    rules.write_text(yaml.safe_dump(shortened(yaml.safe_load(RULES.read_text()))))
    async with installing as installation:
        watched = ObservedCluster(run_dir, installation)
        await watched.services.wait_until_ready()
        names = [f"well-{n}" for n in range(WORKERS)]
        await watched.join(*names, first=10)
        await watched.cluster.until_usable(CONTROL_PLANE, *names)
        targets = watched.addresses()
        async with start_prometheus(targets, rules=rules, scrape_seconds=SCRAPE_SECONDS) as prometheus:
            watched.prometheus = prometheus
            await watched.until_scraped(**dict.fromkeys(targets, True))
            yield watched


async def gone(watched: ObservedCluster, *names: str) -> None:
    """Remove these Nodes and their machines."""
    for name in names:
        await watched.kubelets.delete_node(name)
        watched.cluster.joined.discard(name)
    await asyncio.gather(*(watched.cluster.fall_silent(name) for name in names))
