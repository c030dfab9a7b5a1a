"""Each query of each dashboard returns data from a Prometheus that scrapes the services.

All services run, nodes join, and one fault of each kind happens.
"""

import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from libs.common.contract.services import SERVICES
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
from tests.unit.pages.test_dashboards import PANELS, QUERIES

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


# The values that Grafana substitutes for variables.
CHOSEN: Final = {"$cluster": ".*", "$job": "talos-ccm", "$__rate_interval": "10m", "$__range": "10m"}
# No fault of this test causes these, and without a fault they have no data.
NEVER_HERE: Final = {
    (
        "pipeline",
        "Retries, redeliveries and failed publishes",
        "C",
    ): "publishing fails only without NATS or with a full stream",
    ("clouds", "Writes of routes by outcome", "A"): "no Node of the account has a pod CIDR",
}


# Each PromQL query, by dashboard, panel and letter.
TARGETS: Final = {(name, panel["title"], target["refId"]): target for name, panel, target in QUERIES}
WITH_DOTS: Final = sorted({target["expr"] for target in TARGETS.values() if target["exemplar"]})
# The thresholds of each stat panel, by the place of its query.
STEPS: Final = {
    (name, panel["title"], "A"): panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    for name, panel in PANELS
    if panel["type"] == "stat"
}


def colour(value: float, thresholds: list[dict[str, Any]]) -> str:
    """The colour that Grafana shows."""
    passed = [step["color"] for step in thresholds if step["value"] is None or step["value"] <= value]
    return str(passed[-1])


def as_sent(query: str) -> str:
    """The query with values instead of variables."""
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


async def painted(fleet: Fleet) -> dict[tuple[str, str, str], str]:
    """The present colour of each stat panel; "" without data."""
    now: dict[tuple[str, str, str], str] = {}
    for where, thresholds in STEPS.items():
        found = await fleet.prometheus.query(as_sent(TARGETS[where]["expr"]))
        now[where] = colour(found[0].value, thresholds) if found else ""
    return now


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A fleet that was healthy, with all panels green, and then got faults."""
    async with a_fleet(tmp_path_factory.mktemp("fleet")) as running:
        await running.live()

        async def all_is_well() -> bool:
            return {*(await painted(running)).values()} <= {"green", "blue"}

        try:
            await wait_until(all_is_well, "every number is green or blue")
        except AssertionError as error:
            raise AssertionError(f"{error}: {await painted(running)}") from error
        await running.break_much()
        yield running


@pytest.mark.parametrize("where", TARGETS, ids=lambda where: "-".join(where).replace(" ", "_"))
async def test_a_panel_has_data(fleet: Fleet, where: tuple[str, str, str]):
    query = as_sent(TARGETS[where]["expr"])

    async def has_data() -> bool:
        return any(math.isfinite(sample.value) for sample in await fleet.prometheus.query(query))

    if where in NEVER_HERE:
        assert not await has_data(), "it has data: remove it from NEVER_HERE"
        return
    await wait_until(has_data, query, 240)


async def test_stat_panels_that_were_green_turn_orange_or_red_with_faults(fleet: Fleet):
    wanted = {
        "Firing alerts",
        "Blocked nodes",
        "Failed calls",
        "Dead letters",
        "Denied",
        "Nodes not usable yet",
        "Waiting requests",
    }
    bad: set[str] = set()

    async def all_are_shown() -> bool:
        bad.update(title for (_, title, _), now in (await painted(fleet)).items() if now in ("orange", "red"))
        return wanted <= bad

    await wait_until(all_are_shown, "every fault is shown", 240)


@pytest.mark.parametrize("query", WITH_DOTS)
async def test_the_exemplars_of_a_panel_link_to_exported_traces(fleet: Fleet, query: str):
    now = time.time()
    parameters = {"query": as_sent(query), "start": f"{now - 3600}", "end": f"{now + 3600}"}

    async def one_leads_there() -> bool:
        found = await fleet.prometheus._request("/api/v1/query_exemplars", parameters)
        dots = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
        return bool(dots & {span.trace_id.hex() for span in fleet.collector.all})

    await wait_until(one_leads_there, query, 240)


async def test_the_root_span_has_the_attribute_that_the_node_journey_searches_for(fleet: Fleet):
    def begun() -> set[str]:
        return {
            pair.value.string_value
            for span in fleet.collector.all
            if span.name == "watch event" and not span.parent_span_id
            for pair in span.attributes
            if pair.key == "k8s.node.name"
        }

    await wait_until(lambda: "seen-11" in begun(), "the journey of seen-11")
    assert fleet.collector.services["watch event"] == "watcher", "Jaeger searches by this service"


async def test_the_cluster_and_the_job_are_found_by_the_variables(fleet: Fleet):
    found = await fleet.prometheus.query("count by (job) (talosccm_leader)")
    assert [sample.labels for sample in found] == [{"job": CHOSEN["$job"]}]


async def test_with_honor_labels_the_label_service_is_ours(fleet: Fleet):
    found = await fleet.prometheus.query("count by (service) (talosccm_nats_connected)")
    assert {sample.labels["service"] for sample in found} == {spec.service for spec in SERVICES}
