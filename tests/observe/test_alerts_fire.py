"""The alerts are valid; each fault of machines, Nodes and pod CIDRs fires its own alert and no other."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import yaml

from libs.testbed.prometheus import find_or_fetch
from tests.bus_actors import wait_until
from tests.observe.fault_table import (
    OF_MACHINES,
    ONLY_BY_PROMTOOL,
    STALLED,
    TRIED,
    each_fault,
    fires_exactly_its_alert,
)
from tests.observe.faults import Fault, no_consumer
from tests.observe.observed_cluster import DURATION, RULES, ObservedCluster, shortened, without_durations

FOLDER: Final = Path(__file__).parent


def promtool(*arguments: str | Path) -> str:
    """Run promtool, which must succeed, and return its output."""
    argv = [find_or_fetch().promtool, *arguments]
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_nothing_wrong_with_the_rules():
    assert "SUCCESS" in promtool("check", "rules", RULES)


def test_every_test_case_of_the_alerts_passes():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")


@pytest.fixture(scope="module")
async def stalling(watched: ObservedCluster) -> AsyncIterator[AsyncExitStack]:
    """A fault that fires after a minute and a half; the other faults run meanwhile."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(no_consumer(watched))
        watched.expect(STALLED)
        await watched.until_scraped(csr=False)
        yield stack


def test_the_tested_rules_are_the_shipped_ones_with_seconds_for_minutes():
    shipped = yaml.safe_load(RULES.read_text())
    tried = shortened(shipped)
    assert without_durations(tried) == without_durations(shipped)
    assert tried != shipped
    assert not DURATION.search(str([[rule.get("for"), rule["expr"]] for rule in tried["groups"][0]["rules"]]))


def test_every_shipped_alert_except_the_listed_ones_has_a_fault():
    shipped = {
        rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    }
    assert shipped - TRIED == ONLY_BY_PROMTOOL
    assert shipped >= TRIED


async def test_nothing_fires_while_nodes_join_and_get_certificates(watched: ObservedCluster):
    names = ["joins-1", "joins-2"]
    await watched.join(*names, first=50)
    await watched.cluster.until_usable(*names)
    for name in names:
        request = await watched.ask_for_certificate(name)
        assert (await watched.kubelets.wait_for_outcome(request)).certificate

    async def longest_for_is_over() -> bool:
        alerts = await watched.prometheus.list_alerts()
        assert all(alert.state == "pending" for alert in alerts), alerts
        samples = await watched.prometheus.query('count_over_time(up{target="watcher"}[2m])')
        return samples[0].value > 20

    await wait_until(longest_for_is_over, "longer than the longest `for`")
    for name in names:
        await watched.kubelets.delete_node(name)
    await watched.machines.delete_machines(*names)
    assert await watched.fired_within(120) == set()


@each_fault(OF_MACHINES)
async def test_a_fault_fires_its_alert_and_no_other(
    watched: ObservedCluster, stalling: AsyncExitStack, fault: Fault
):
    await fires_exactly_its_alert(watched, fault, begun=frozenset({STALLED}))


async def test_a_stalled_queue_fires_its_alert_until_a_consumer_runs(
    watched: ObservedCluster, stalling: AsyncExitStack
):
    await watched.until_fires(STALLED)
    assert (await watched.read_label(STALLED, "durable")).startswith("csr")
    await stalling.aclose()
    await watched.until_quiet()
    assert await watched.fired_within(600) == {STALLED} | {fault.alert for fault in OF_MACHINES}
