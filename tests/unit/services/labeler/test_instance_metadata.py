"""A cloud account completes the facts of a machine only if the machine is the instance that it names."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from cli.cluster.described_node import DescribedNode
from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.render.compiled_config import compile_config
from cli.render.facts_file import encode_facts, parse_facts
from cli.render.output import format_preview
from cli.render.preview import apply_plan, preview_node
from libs.common.contract.events import InstanceMetadata, NodeEnriched
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.public_addresses import EXTERNAL_LINK
from services.labeler.core.blocker import block, build_condition
from services.labeler.core.instance_metadata import NamedMachine, complete_facts
from services.labeler.core.instance_metadata_index import InstanceMetadataIndex
from services.labeler.core.plan import ClusterConfig, Plan, plan_node
from services.lifecycle.core.decide import DeletionPolicy
from tests.builders import NOW, make_node, make_node_enriched, make_unreachable
from tests.cli_snapshots import make_evidence, make_flow, render_lines
from tests.named_machines import PUBLIC_IP, make_hetzner_facts, make_instance_metadata

ACCOUNTS = {"prod": "hcloud"}
BOTH = {"prod": "hcloud", "test": "hcloud"}
FACTS = make_hetzner_facts("4711")
NODE = make_node(ip=PUBLIC_IP)
SUPPLIED = {"provider_id": "hcloud://4711", "region": "fsn1", "zone": "fsn1-dc14", "instance_type": "cx22"}


def complete(
    *messages: InstanceMetadata,
    node: Node = NODE,
    facts: MachineFacts = FACTS,
    verified_by: str = "nodename",
    accounts: dict[str, str] = ACCOUNTS,
    rivals: frozenset[str] = frozenset(),
) -> MachineFacts:
    return complete_facts(
        NamedMachine(node=node, facts=facts, verified_by=verified_by),
        accounts,
        {message.account: message for message in messages},
        lambda provider_id: rivals if provider_id == "hcloud://4711" else frozenset(),
    )


def plan(facts: MachineFacts, node: Node = NODE, **config: Any) -> Plan:
    return plan_node(node, facts, "nodename", ClusterConfig(**config))


def test_a_confirmed_instance_completes_what_the_machine_does_not_report():
    facts = complete(make_instance_metadata())
    assert {field: getattr(facts.platform, field) for field in SUPPLIED} == SUPPLIED
    assert facts.supplement is not None
    assert (facts.supplement.account, facts.supplement.fields) == ("prod", tuple(SUPPLIED))


def test_the_own_metadata_of_the_machine_wins():
    own = make_hetzner_facts("4711", platform="nocloud", region="here", instance_type="big")
    facts = complete(make_instance_metadata(), facts=own)
    assert (facts.platform.region, facts.platform.instance_type) == ("here", "big")
    assert (facts.platform.zone, facts.platform.provider_id) == ("fsn1-dc14", "hcloud://4711")
    assert facts.supplement is not None
    assert facts.supplement.fields == ("provider_id", "zone")


@pytest.mark.parametrize(
    ("messages", "changes", "why"),
    [
        ([], {}, "account prod: no answer about hcloud://4711 yet"),
        ([{"node_uid": "uid-2"}], {}, "no answer about hcloud://4711 yet"),
        ([{"provider_id": "hcloud://4712"}], {}, "no answer about hcloud://4711 yet"),
        ([{"why_withheld": "it has no instance 4711"}], {}, "hcloud://4711: it has no instance 4711"),
        ([{"addresses": ("192.0.2.6", "10.0.0.5")}], {}, "are 192.0.2.6, 10.0.0.5"),
        ([{"addresses": ()}], {}, "are none that counts"),
        ([{"asked_at": NOW - timedelta(microseconds=1)}], {}, "since the machine was last reached"),
        ([{}], {"verified_by": "system-uuid"}, "only its systemUUID is known"),
        ([{}], {"rivals": frozenset({"web-3", "web-2"})}, "Node web-2 names hcloud://4711, too"),
        ([{}, {"account": "test"}], {"accounts": BOTH}, "prod and test both have"),
        ([{}], {"facts": msgspec.structs.replace(FACTS, system=None)}, "has not queried its SMBIOS"),
        ([{}], {"facts": make_hetzner_facts("4711", node_ip="192.0.2.9")}, "reached at 192.0.2.9"),
        ([{}], {"facts": make_hetzner_facts("4712")}, "no answer about hcloud://4712 yet"),
    ],
    ids=[
        "no-message", "former-node", "another-instance", "withheld", "address-of-another", "no-address",
        "asked-before-it-was-reached", "known-by-uuid", "two-machines-name-it", "two-accounts-have-it",
        "smbios-not-queried", "reached-through-nat", "it-names-another-one-now",
    ],
)  # fmt: skip
def test_a_machine_that_is_not_proven_to_be_the_instance_waits(
    messages: list[dict[str, Any]], changes: dict[str, Any], why: str
):
    facts = complete(*(make_instance_metadata(**each) for each in messages), **changes)
    assert facts.supplement is not None
    assert why in facts.supplement.why_awaited
    assert facts.platform.provider_id == ""
    blocked = plan(facts, make_node(ip=facts.node_ip))
    assert blocked.blocker is not None
    assert blocked.blocker.reason == "WaitingForInstanceMetadata"
    assert why in blocked.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"accounts": {}},
        {"facts": make_hetzner_facts("4711", manufacturer="Dell Inc.")},
        {"facts": make_hetzner_facts("4711", platform="hcloud", provider_id="hcloud://4711")},
        {"facts": msgspec.structs.replace(make_hetzner_facts("4711", platform="hcloud"), system=None)},
        {"facts": make_hetzner_facts("4711", platform="nocloud", provider_id="proxmox://a/1")},
    ],
    ids=["no-account", "other-maker", "talos-knows-the-cloud", "and-smbios-not-queried", "own-provider-id"],
)
def test_other_machines_are_left_as_they_are(changes: dict[str, Any]):
    facts = changes.get("facts", FACTS)
    assert complete(make_instance_metadata(), **changes) is facts


def test_one_of_two_accounts_that_has_the_instance_suffices():
    foreign = make_instance_metadata(account="test", why_withheld="it has no instance 4711")
    facts = complete(make_instance_metadata(), foreign, accounts=BOTH)
    assert facts.platform.provider_id == "hcloud://4711"


def test_an_older_answer_completes_a_node_that_has_its_provider_id():
    node = make_node(ip=PUBLIC_IP, provider_id="hcloud://4711", taints=())
    before = make_instance_metadata(asked_at=NOW - timedelta(hours=1))
    assert complete(before, node=node).platform.zone == "fsn1-dc14"
    assert complete(node=node) is FACTS  # nothing is awaited


def test_only_public_addresses_that_the_machine_has_are_those_that_its_cloud_names():
    private = make_hetzner_facts("4711", node_ip="10.0.0.5")
    for own, named in ((FACTS, [PUBLIC_IP]), (private, [])):
        facts = complete(make_instance_metadata(addresses=(PUBLIC_IP, "10.0.0.5", "198.51.100.9")), facts=own)
        assert facts.platform.provider_id == "hcloud://4711"
        assert [each.address for each in facts.addresses if each.link == EXTERNAL_LINK] == named


# ---- the plan


def test_a_completed_machine_is_initialized_like_by_the_native_controller():
    planned = plan(complete(make_instance_metadata()))
    assert (planned.outcome, planned.changes.provider_id) == ("initialized", "hcloud://4711")
    labels = planned.changes.labels
    assert labels["topology.kubernetes.io/region"] == "fsn1"
    assert labels["topology.kubernetes.io/zone"] == "fsn1-dc14"
    assert labels["node.kubernetes.io/instance-type"] == "cx22"
    assert labels["instance.hetzner.cloud/provided-by"] == "cloud"


def test_the_node_stays_ours_and_keeps_its_labels_when_the_account_is_removed():
    node = apply_plan(NODE, plan(complete(make_instance_metadata())))
    later = plan(FACTS, node)
    assert (later.outcome, later.node_summary) == ("unchanged", ())
    assert plan(complete(node=node), node).outcome == "unchanged"


def test_a_changed_instance_type_changes_the_label():
    node = apply_plan(NODE, plan(complete(make_instance_metadata())))
    larger = complete(make_instance_metadata(instance_type="cx32"), node=node)
    assert plan(larger, node).changes.labels["node.kubernetes.io/instance-type"] == "cx32"


# ---- the index


class Index:
    """The labeler's view of machines and messages."""

    def __init__(self) -> None:
        self.index = InstanceMetadataIndex(ACCOUNTS)

    def enrich(self, name: str = "web-1", facts: MachineFacts = FACTS) -> NodeEnriched:
        event = make_node_enriched(make_node(name, ip=facts.node_ip), facts)
        self.index.apply(event)
        return event

    def why(self, event: NodeEnriched) -> str:
        supplement = self.index.complete(event).facts.supplement
        assert supplement is not None
        return supplement.why_awaited


def test_a_message_completes_the_event_and_the_result_is_kept():
    one = Index()
    event = one.enrich()
    assert "no answer" in one.why(event)
    one.index.apply_metadata(make_instance_metadata())
    assert one.why(event) == ""
    assert one.index.complete(event) is one.index.complete(event)


@pytest.mark.parametrize(
    "replayed",
    [
        make_instance_metadata(why_withheld="it has no instance 4711"),
        make_instance_metadata(asked_at=NOW, addresses=()),
        make_instance_metadata(account="stranger", asked_at=NOW + timedelta(hours=1)),
    ],
    ids=["same-time", "older", "unlisted-account"],
)
def test_a_replayed_message_or_one_of_an_unlisted_account_changes_nothing(replayed: InstanceMetadata):
    one = Index()
    event = one.enrich()
    one.index.apply_metadata(make_instance_metadata())
    one.index.apply_metadata(replayed)
    assert one.why(event) == ""


WRONG = MachineFault(kind="wrong_machine", step="Nodename", message="another one answers")
LIAR = make_hetzner_facts("4711", node_name="web-2", node_ip="192.0.2.9")


def test_two_machines_that_name_one_instance_both_wait_until_one_names_another():
    one = Index()
    event = one.enrich()
    one.index.apply_metadata(make_instance_metadata())
    assert one.why(event) == ""
    liar = one.enrich("web-2", LIAR)
    assert "Node web-2 names" in one.why(event)
    assert "Node web-1 names" in one.why(liar)
    one.index.apply(make_unreachable(make_node("web-2"), last_known=LIAR))
    assert "Node web-2 names" in one.why(event)  # silence proves nothing
    one.index.apply(make_unreachable(make_node("web-2"), fault=WRONG, last_known=LIAR))
    assert one.why(event) == ""
    one.enrich("web-2", LIAR)
    assert "Node web-2 names" in one.why(event)
    one.enrich("web-2", make_hetzner_facts("4712", node_name="web-2"))
    assert one.why(event) == ""


def test_a_new_stream_of_the_flow_keeps_the_messages_which_are_followed_beside_it():
    one = Index()
    event = one.enrich()
    one.enrich("web-2", LIAR)
    one.index.apply_metadata(make_instance_metadata())
    one.index.clear()
    assert one.why(event) == ""
    one.index.clear_metadata()
    assert "no answer" in one.why(event)


# ---- the commands


def explain(node: Node, *messages: InstanceMetadata) -> NodeExplanation:
    """As `explain node` after metadata's message about the machine, which it has queried without SMBIOS."""
    event = make_node_enriched(node, FACTS)
    queried = msgspec.structs.replace(FACTS, system=None, queried_at=NOW + timedelta(hours=1))
    described = DescribedNode(node=node, facts=queried)
    flow = make_flow("web-1", event, *messages)
    return explain_node_evidence(make_evidence(node, machine_result=described, flow=flow), DeletionPolicy())


def test_explain_node_names_the_account_that_supplies_a_value():
    told = explain(NODE, make_instance_metadata())
    [text] = [check.text for check in told.checks if check.name == "machine"]
    assert "(metal, fsn1-dc14, cx22)" in text
    assert "providerID, region, zone, instance type from cloud account prod" in text
    assert told.plan is not None
    assert told.plan.changes.provider_id == "hcloud://4711"


def test_explain_node_says_why_an_account_supplies_nothing():
    told = explain(NODE, make_instance_metadata(why_withheld="it has no instance 4711"))
    assert told.plan is not None
    assert told.plan.outcome == "blocked"
    assert [each.fault for each in told.verdict.findings] == ["no-instance-metadata"]
    silent = block("WaitingForInstanceMetadata", why="account prod: no answer about hcloud://4711 yet")
    waiting = make_node(ip=PUBLIC_IP, conditions=(build_condition(silent),))
    assert [each.fault for each in explain(waiting).verdict.findings] == ["no-instance-metadata"]


def test_render_names_the_account_in_a_file_with_completed_facts():
    completed = DescribedNode(node=NODE, facts=complete(make_instance_metadata()))
    [described] = parse_facts(encode_facts([completed]))
    config = compile_config("", "ccm-config.yaml")
    text = render_lines(format_preview(preview_node(described, config, now=NOW), config))
    assert "providerID, region, zone, instance type from cloud account prod" in text
