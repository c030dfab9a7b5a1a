"""Nodes that another controller owns: ipam writes nothing for them, and allocates none of their blocks."""

from pathlib import Path
from typing import Any, Final

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.controllers import NODE_IPAM
from tests.bus_actors import wait_until
from tests.bus_server import make_flow_fixture
from tests.clocks import ManualClock
from tests.ipam_actors import SOON, IpamFlow, assert_disjoint, make_numbered_facts, make_numbered_node

TEAM_A: Final = "ownership: {nodeSelector: [{matchExpressions: [{key: team, operator: In, values: [a]}]}]}"
TALOS_ONLY: Final = (
    "ownership: {controllers: [{name: nodeipam, providerIDSchemes: [talos]}], providerIDSchemes: [hcloud]}"
)
OURS, THEIRS = {"team": "a"}, {"team": "b"}
TWO_BLOCKS = ("10.244.0.0/23",)  # of /24


flow = make_flow_fixture(IpamFlow.open)


def by(text: str) -> dict[str, Any]:
    return {"file": parse_cloud_config(text, "f")}


async def test_a_foreign_node_gets_no_claim_no_block_and_no_event(flow: IpamFlow):
    clock = ManualClock()
    async with flow.run_ipam(clock=clock, **by(TEAM_A)) as ipam:
        await flow.join_nodes(1, labels=THEIRS)
        decided = await flow.wait_for_decision("web-1", "not-ours")
        silent = flow.kube.put_node(make_numbered_node(2, labels=THEIRS))
        await flow.publish_unreachable(silent)
        await flow.wait_for_decision("web-2", "not-ours")
        clock.advance(60.0)
        ipam._waiting_nodes.run_periodic_checks()
    assert 'team is "b", not "a"' in decided.reason
    assert flow.kube.patched == []
    assert flow.kube.page_writes == 0
    assert flow.kube.events == []


async def test_what_a_foreign_node_carries_is_neither_claimed_nor_given_to_anybody(flow: IpamFlow):
    await flow.publish_networks(pod_cidrs=TWO_BLOCKS)
    await flow.join_nodes(1, labels=THEIRS, pod_cidrs=("10.244.0.0/24",))
    async with flow.run_ipam(**by(TEAM_A)):
        await flow.join_nodes(2, labels=OURS)
        given = await flow.wait_for_pod_cidrs(2)
    assert given == {"web-1": ("10.244.0.0/24",), "web-2": ("10.244.1.0/24",)}
    [page] = flow.kube.pages.values()
    assert "uid-2" in str(page.data)
    assert "uid-1" not in str(page.data)


async def test_by_schemes_a_node_is_served_as_soon_as_its_provider_id_is_ours(flow: IpamFlow):
    async with flow.run_ipam(**by(TALOS_ONLY)):
        await flow.join_nodes(1, 2)
        assert "no providerID yet" in (await flow.wait_for_decision("web-1", "not-ours")).reason
        await flow.wait_for_decision("web-2", "not-ours")
        assert flow.kube.page_writes == 0
        for number, provider_id in ((2, "hcloud://7"), (1, "talos://metal/10.0.0.2")):
            node = flow.kube.put_node(make_numbered_node(number, provider_id=provider_id))
            await flow.enrich(node, make_numbered_facts(number))
        assert_disjoint(await flow.wait_for_pod_cidrs(1))

        async def says_whose() -> bool:
            decided = await flow.get_decision("web-2")
            return decided is not None and "'hcloud://7'" in decided.reason

        await wait_until(says_whose, "the owner of web-2 is reported")
    assert flow.kube.patched == ["web-1"]


async def test_when_the_file_gives_us_a_node_it_is_served(flow: IpamFlow, tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(TEAM_A)
    followed: dict[str, Any] = {"cloud_config": path, "cloud_config_poll_seconds": 0.05}
    async with flow.run_ipam(**by(TEAM_A), **followed):
        await flow.join_nodes(1, labels=THEIRS)
        await flow.wait_for_decision("web-1", "not-ours")
        path.write_text(TEAM_A.replace("[a]", "[b]"))
        await flow.wait_for_pod_cidrs(1)
        path.write_text(TEAM_A)
        await flow.join_nodes(2, labels=OURS)
        await flow.wait_for_pod_cidrs(2)


@pytest.mark.parametrize("changes", ["before the restart", "after the restart"])
async def test_a_restarted_ipam_serves_a_node_that_the_file_gives_us_without_a_new_message(
    flow: IpamFlow, tmp_path: Path, changes: str
):
    path = tmp_path / "config.yaml"
    path.write_text(TEAM_A)
    followed: dict[str, Any] = {"cloud_config": path, "cloud_config_poll_seconds": 0.05}
    async with flow.run_ipam(**by(TEAM_A), **followed):
        await flow.join_nodes(1, labels=THEIRS)
        await flow.wait_for_decision("web-1", "not-ours")
    ours = TEAM_A.replace("[a]", "[b]")
    if changes == "before the restart":
        path.write_text(ours)
    async with flow.run_ipam(**by(path.read_text()), **followed):
        path.write_text(ours)
        await flow.wait_for_pod_cidrs(1, seconds=SOON)


async def test_what_a_foreign_node_carries_binds_no_pool_and_what_ours_carry_does(
    flow: IpamFlow, tmp_path: Path
):
    path = tmp_path / "config.yaml"

    def with_pool(name: str, cidr: str) -> str:
        return f"{TEAM_A}\nipam: {{pools: [{{name: {name}, cidrs: [{cidr}]}}]}}"

    path.write_text(with_pool("a", "10.8.0.0/16"))
    settings: dict[str, Any] = {"cluster_cidr": ("10.244.0.0/16",), "cloud_config_poll_seconds": 0.05}
    async with flow.run_ipam(**by(path.read_text()), **settings, cloud_config=path) as ipam:
        await flow.join_nodes(1, labels=THEIRS, pod_cidrs=("10.8.7.0/24",))
        await flow.join_nodes(2, labels=OURS)
        assert (await flow.wait_for_pod_cidrs(2))["web-2"] == ("10.8.0.0/24",)
        path.write_text(with_pool("b", "10.9.0.0/16"))
        await wait_until(lambda: bool(ipam.problems()), "refused")
        assert "pool a would lose 1 block that a node has: web-2 (10.8.0.0/24)" in ipam.problems()[0]
        path.write_text(with_pool("b", "10.9.0.0/16").replace("[a]", "[c]"))  # web-2 is another's by now
        await wait_until(lambda: not ipam.problems(), "obeyed")
        await flow.join_nodes(3, labels={"team": "c"})
        assert (await flow.wait_for_pod_cidrs(3))["web-3"] == ("10.9.0.0/24",)


async def test_a_node_that_the_file_gives_away_while_its_block_is_claimed_gets_none(flow: IpamFlow):
    """The claim is in a page, which all instances share; on the Node nothing is written."""
    theirs = parse_cloud_config(TEAM_A.replace("[a]", "[b]"), "f").ownership.for_controller(NODE_IPAM)
    async with flow.run_ipam(**by(TEAM_A)) as ipam:

        def given_away(verb: str, name: str) -> None:
            if verb in ("create", "update"):
                ipam._config_reloader._apply_ownership(theirs)

        flow.kube.fails_before = given_away
        await flow.join_nodes(1, labels=OURS)
        await flow.wait_for_decision("web-1", "not-ours")
    assert flow.kube.page_writes > 0
    assert flow.kube.patched == []
    assert flow.kube.events == []


async def test_a_node_that_is_relabelled_before_its_block_is_written_gets_none(flow: IpamFlow):
    """ipam does not know the new label yet; once the watcher publishes it, the owner is reported."""
    async with flow.run_ipam(**by(TEAM_A)):

        def relabelled(verb: str, name: str) -> None:
            if verb in ("create", "update"):
                flow.kube.put_node(make_numbered_node(1, labels=THEIRS))

        flow.kube.fails_before = relabelled
        await flow.join_nodes(1, labels=OURS)
        await wait_until(lambda: bool(flow.kube.patched), "ipam writes its block")
        await flow.publish_node(flow.kube.nodes["web-1"])
        await flow.wait_for_decision("web-1", "not-ours")
    assert flow.kube.pod_cidrs() == {}
    assert flow.kube.events == []
