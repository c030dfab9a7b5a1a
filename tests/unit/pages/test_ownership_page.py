"""docs/ownership.md says what is true: whose the Nodes of its table are, by each of its examples."""

import re
from typing import Final

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.controllers import CLOUD_NODE, NODE_CONTROLLER_NAMES
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from services.labeler.plan import ClusterConfig, plan_node, plan_unreachable_node
from services.labeler.rules import NO_RULES
from tests.architecture.sources import ROOT
from tests.builders import make_facts, make_node
from tests.unreachable import make_unreachable

PAGE: Final = (ROOT / "docs" / "ownership.md").read_text()
EXAMPLES: Final = re.findall(r"```yaml\n(.*?)```\n\n```text\nours: (.*?)\n```", PAGE, re.DOTALL)
ROW: Final = re.compile(r"^\| `([a-z]+-[0-9])` \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)


def bare(cell: str) -> str:
    """What stands in backquotes, "" without."""
    return cell.strip().strip("`") if "`" in cell else ""


def the_nodes() -> list[tuple[Node, MachineFacts | None]]:
    """Those of the table, and what their machines say."""
    found: list[tuple[Node, MachineFacts | None]] = []
    for name, team, has, gets in ROW.findall(PAGE):
        provider_id = bare(has) or bare(gets)
        ip = provider_id.rpartition("/")[2] if provider_id.startswith("talos") else "10.0.0.9"
        node = make_node(
            name, ip=ip, labels={"team": bare(team)} if bare(team) else {}, provider_id=bare(has)
        )
        facts = None
        if provider_id:
            native = "" if provider_id.startswith("talos") else provider_id
            platform = "hcloud" if native else "metal"
            facts = make_facts(node_name=name, node_ip=ip, platform=platform, provider_id=native)
        found.append((node, facts))
    return found


def test_there_are_examples_and_nodes():
    assert len(EXAMPLES) == PAGE.count("```yaml")
    assert [node.name for node, _ in the_nodes()] == ["web-1", "web-2", "new-1", "new-2", "new-3"]


@pytest.mark.parametrize(("text", "ours"), EXAMPLES)
def test_the_labeler_has_the_nodes_that_stand_below_the_example(text: str, ours: str):
    config = parse_cloud_config(text, "f")
    assert config.warnings == ()
    everything = ClusterConfig(rules=NO_RULES, ownership=config.ownership.for_controller(CLOUD_NODE))
    planned = {
        node.name: plan_node(node, facts, "nodename", everything)
        if facts
        else plan_unreachable_node(node, make_unreachable(node), everything)
        for node, facts in the_nodes()
    }
    assert [name for name, plan in planned.items() if plan.outcome != "not-ours"] == ours.split()


def test_what_the_nodes_of_the_table_would_be_given_they_are_given():
    for node, facts in the_nodes():
        if facts is not None and not node.spec.provider_id:
            given = plan_node(node, facts, "nodename", ClusterConfig()).changes.provider_id
            assert given is not None
            assert f"`{given}`" in PAGE


def test_names_reasons_and_events_of_the_page_exist():
    for name in ("cloud-node", "node-csr-approval", "node-ipam-controller", "cloud-node-lifecycle"):
        assert f"`{name}`" in PAGE
        assert name in NODE_CONTROLLER_NAMES
    blocked = plan_node(
        make_node(),
        make_facts(),
        "nodename",
        ClusterConfig(ownership=parse_cloud_config(EXAMPLES[2][0], "f").ownership.default),
    ).blocker
    assert blocked is not None
    assert f"`{blocked.reason}`" in PAGE
