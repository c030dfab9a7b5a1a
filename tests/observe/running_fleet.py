"""Data for every panel: all services, nodes that join, and one fault of each kind, scraped by Prometheus."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from libs.common.contract.subjects import ENRICHED_NODE
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import make_machine
from libs.testbed.prometheus import PrometheusServer, start_prometheus
from libs.testbed.sim_apiserver.faults import TooManyRequestsFault
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bootstrap_actors import BootstrapInstallation
from tests.bus_actors import wait_until
from tests.integration.lifecycle_cluster import QUICK, Cluster
from tests.observe.clouds.cloud_account import CloudAccount, run_cloud_account
from tests.observe.observed_cluster import RULES, install
from tests.tcp_server import OtlpCollector, run_collector

FLAGS: Final = (
    "--controllers=*,cloud-node-lifecycle",
    "--allocate-node-cidrs",
    "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
    "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
)
# Prometheus sees the increase of a counter only from its second value on: so nodes join twice.
WAVES: Final = 2
NODES_A_WAVE: Final = 4
LONG_SECONDS: Final = 240.0  # for a busy machine


@dataclass(eq=False)
class Fleet:
    """The cluster and its faults."""

    server: SimApiServer
    cluster: Cluster
    bus: BootstrapInstallation
    prometheus: PrometheusServer
    collector: OtlpCollector
    account: CloudAccount

    async def live(self) -> None:
        """Let nodes join and get certificates, in waves that Prometheus scrapes separately."""
        await self.account.join_servers("server-1", "server-2")
        for wave in range(WAVES):
            first = 10 * wave + 10
            some = [make_machine(f"seen-{n}", f"10.240.0.{n}") for n in range(first, first + NODES_A_WAVE)]
            await self.cluster.join(*some)
            for machine in some:
                request = await self.cluster.kubelets.request_certificate(SimKubelet.of_machine(machine))
                await self.cluster.kubelets.wait_for_outcome(request, seconds=LONG_SECONDS)
            became = "sum(node_controller_cloud_provider_taint_removal_delay_seconds_count)"
            await self.until(became, (wave + 1) * NODES_A_WAVE)

    async def break_much(self) -> None:
        """Cause one fault of each kind that a panel shows."""
        kubelets, machines = self.cluster.kubelets, self.cluster.machines
        silent, liar = make_machine("seen-silent", "10.240.0.60"), make_machine("seen-liar", "10.240.0.61")
        await machines.put_machines(silent)
        await machines.set_faults(silent.id, unavailable=True)
        await kubelets.join(SimKubelet.of_machine(silent))
        await kubelets.request_certificate(SimKubelet.of_machine(silent))
        await self.cluster.join(liar)
        await kubelets.request_certificate(SimKubelet.of_machine(liar), dns=["liar.example.com"])
        self.server.faults.inject(TooManyRequestsFault(), verb="patch", resource="nodes", times=3)
        await self.cluster.join(make_machine("seen-late", "10.240.0.62"))
        for name in ("bad-1", "bad-2"):
            await self.bus.publish_as("metadata", {f"{ENRICHED_NODE}.{name}": b"\xff{no event"})
        await self.cluster.replace("seen-10", "seen-successor")

    async def until(self, promql: str, least: float, seconds: float = LONG_SECONDS) -> None:
        """Wait until the first value of the query is at least `least`."""

        async def is_reached() -> bool:
            found = await self.prometheus.query(promql)
            return bool(found) and found[0].value >= least

        await wait_until(is_reached, promql, seconds)


@asynccontextmanager
async def a_fleet(run_dir: Path) -> AsyncIterator[Fleet]:
    """All services and the NATS keeper as deployed, scraped by a real Prometheus with the alerts."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        collector = await enter(run_collector())
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        installed = await enter(install(run_dir, flags=FLAGS, own_flags={"lifecycle": QUICK}, env=env))
        server, cluster, bus, *_ = installed
        account = await enter(
            run_cloud_account(run_dir, bus, cluster.kubelets, kubeconfig=server.kubeconfig())
        )
        targets = installed.addresses() | {"cloud": account.address}
        prometheus = await enter(start_prometheus(targets, rules=RULES, scrape_seconds=1))
        await cluster.services.wait_until_ready()
        yield Fleet(server, cluster, bus, prometheus, collector, account)
