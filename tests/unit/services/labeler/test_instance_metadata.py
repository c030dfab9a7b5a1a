"""A cloud account completes the facts of a machine only if the machine is the instance that it names."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from cli.cluster.machine_events import make_enriched
from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.render.compiled_config import compile_config
from cli.render.facts_file import encode_facts, parse_facts
from cli.render.output import format_preview
from cli.render.preview import apply_plan, preview_node
from libs.common.cloud_config.model import ExternalIPs
from libs.common.contract.events import InstanceMetadata, NodeEnriched
from libs.common.contract.machine import AddressStatus, MachineFacts, MachineFault
from libs.common.contract.node import Node, NodeAddress
from libs.common.contract.public_addresses import EXTERNAL_LINK
from services.labeler.core.blocker import block, build_condition
from services.labeler.core.instance_metadata import InstanceMetadataIndex, complete_facts
from services.labeler.core.plan.plan import ClusterConfig, Plan
from services.labeler.core.plan.plan_node import plan_node
from services.lifecycle.core.decide import DeletionPolicy
from tests.builders import NOW, make_node, make_node_enriched, make_unreachable
from tests.cli_snapshots import make_evidence, make_flow, render_lines
from tests.named_machines import HCLOUD, NAMED_CLOUDS, OPENSTACK, PUBLIC_IP, NamedCloud
from tests.node_plans import compile_cluster_config, exclude_record_label, plan_and_apply, plan_for

NODE = make_node(ip=PUBLIC_IP)


@pytest.fixture(params=NAMED_CLOUDS.values(), ids=list(NAMED_CLOUDS))
def cloud(request: pytest.FixtureRequest) -> NamedCloud:
    """The cloud of the account and of the machine: each proof is the same at every provider."""
    found: NamedCloud = request.param
    return found


def complete(
    cloud: NamedCloud,
    *messages: InstanceMetadata,
    node: Node = NODE,
    facts: MachineFacts | None = None,
    verified_by: str = "nodename",
    accounts: tuple[str, ...] = ("prod",),
    rivals: frozenset[str] = frozenset(),
) -> MachineFacts:
    return complete_facts(
        make_node_enriched(node, facts or cloud.make_facts(), verified_by=verified_by),
        dict.fromkeys(accounts, cloud.provider),
        {message.account: message for message in messages},
        lambda provider_id: rivals if provider_id == cloud.provider_id else frozenset(),
    )


def plan(facts: MachineFacts, node: Node = NODE, **config: Any) -> Plan:
    return plan_node(node, facts, "nodename", ClusterConfig(**config))


def test_a_confirmed_instance_completes_what_the_machine_does_not_report(cloud: NamedCloud):
    facts = complete(cloud, cloud.make_metadata())
    supplied = {
        "provider_id": cloud.provider_id, "region": "fsn1", "zone": "fsn1-dc14", "instance_type": "cx22"
    }  # fmt: skip
    assert {field: getattr(facts.platform, field) for field in supplied} == supplied
    assert facts.supplement is not None
    assert (facts.supplement.account, facts.supplement.fields) == ("prod", tuple(supplied))


def test_the_own_metadata_of_the_machine_wins(cloud: NamedCloud):
    own = cloud.make_facts(platform="nocloud", region="here", instance_type="big")
    facts = complete(cloud, cloud.make_metadata(), facts=own)
    assert (facts.platform.region, facts.platform.instance_type) == ("here", "big")
    assert (facts.platform.zone, facts.platform.provider_id) == ("fsn1-dc14", cloud.provider_id)
    assert facts.supplement is not None
    assert facts.supplement.fields == ("provider_id", "zone")


# What each proof lacks; `{own}` and `{other}` are the providerIDs of the own and the neighbour's instance.
UNPROVEN: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no-message": ([], {}, "account prod: no answer about {own} yet"),
    "former-node": ([{"node_uid": "uid-2"}], {}, "no answer about {own} yet"),
    "another-instance": ([{"provider_id": "hcloud://1"}], {}, "no answer about {own} yet"),
    "withheld": ([{"why_withheld": "it is shut down"}], {}, "{own}: it is shut down"),
    "address-of-another": ([{"addresses": ("192.0.2.6", "10.0.0.5")}], {}, "are 192.0.2.6, 10.0.0.5"),
    "no-address": ([{"addresses": ()}], {}, "are none that counts"),
    "asked-before-it-was-reached": (
        [{"asked_at": NOW - timedelta(microseconds=1)}], {}, "since the machine was last reached",
    ),
    "known-by-uuid": ([{}], {"verified_by": "system-uuid"}, "only its systemUUID is known"),
    "two-machines-name-it": ([{}], {"rivals": frozenset({"web-3", "web-2"})}, "Node web-2 names {own}, too"),
    "two-accounts-have-it": (
        [{}, {"account": "test"}], {"accounts": ("prod", "test")}, "prod and test both have",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "changes", "why"), UNPROVEN.values(), ids=UNPROVEN)
def test_a_machine_that_is_not_proven_to_be_the_instance_waits(
    cloud: NamedCloud, messages: list[dict[str, Any]], changes: dict[str, Any], why: str
):
    facts = complete(cloud, *(cloud.make_metadata(**each) for each in messages), **changes)
    assert_waits(facts, why.format(own=cloud.provider_id))


def test_a_machine_that_is_not_seen_to_be_the_instance_waits(cloud: NamedCloud):
    not_queried = msgspec.structs.replace(cloud.make_facts(), system=None)
    assert_waits(complete(cloud, cloud.make_metadata(), facts=not_queried), "has not queried its SMBIOS")
    through_nat = cloud.make_facts(node_ip="192.0.2.9")
    assert_waits(complete(cloud, cloud.make_metadata(), facts=through_nat), "reached at 192.0.2.9")
    liar = cloud.make_facts(cloud.neighbour)
    why = f"no answer about {cloud.neighbours_provider_id} yet"
    assert_waits(complete(cloud, cloud.make_metadata(), facts=liar), why)


def assert_waits(facts: MachineFacts, why: str) -> None:
    assert facts.supplement is not None
    assert why in facts.supplement.why_awaited
    assert facts.platform.provider_id == ""
    blocked = plan(facts, make_node(ip=facts.node_ip))
    assert blocked.blocker is not None
    assert blocked.blocker.reason == "WaitingForInstanceMetadata"
    assert why in blocked.reason


@pytest.mark.parametrize(
    ("accounts", "facts"),
    [
        ((), {}),
        (("prod",), {"platform": "openstack", "provider_id": "openstack:///1"}),
        (("prod",), {"platform": "nocloud", "provider_id": "proxmox://a/1"}),
    ],
    ids=["no-account", "talos-knows-the-cloud", "own-provider-id"],
)
def test_other_machines_are_left_as_they_are(
    cloud: NamedCloud, accounts: tuple[str, ...], facts: dict[str, Any]
):
    given = cloud.make_facts(**facts)
    assert complete(cloud, cloud.make_metadata(), accounts=accounts, facts=given) is given
    unknown = msgspec.structs.replace(given, system=None)
    assert complete(cloud, cloud.make_metadata(), accounts=accounts, facts=unknown) is unknown


@pytest.mark.parametrize(("ours", "other"), [(HCLOUD, OPENSTACK), (OPENSTACK, HCLOUD)], ids=NAMED_CLOUDS)
def test_a_machine_of_another_cloud_is_left_as_it_is(ours: NamedCloud, other: NamedCloud):
    foreign = other.make_facts()
    assert complete(ours, ours.make_metadata(), facts=foreign) is foreign


def test_one_of_two_accounts_that_has_the_instance_suffices(cloud: NamedCloud):
    foreign = cloud.make_metadata(account="test", why_withheld="it has no such instance")
    facts = complete(cloud, cloud.make_metadata(), foreign, accounts=("prod", "test"))
    assert facts.platform.provider_id == cloud.provider_id


def test_an_older_answer_completes_a_node_that_has_its_provider_id(cloud: NamedCloud):
    node = make_node(ip=PUBLIC_IP, provider_id=cloud.provider_id, taints=())
    before = cloud.make_metadata(asked_at=NOW - timedelta(hours=1))
    assert complete(cloud, before, node=node).platform.zone == "fsn1-dc14"
    fallback = make_node(ip=PUBLIC_IP, provider_id=f"talos://metal/{PUBLIC_IP}", taints=())
    facts = cloud.make_facts()
    assert complete(cloud, node=fallback, facts=facts) is facts  # nothing is awaited


def test_only_public_addresses_that_the_machine_has_are_those_that_its_cloud_names(cloud: NamedCloud):
    message = cloud.make_metadata(addresses=(PUBLIC_IP, "10.0.0.5", "198.51.100.9"))
    for node_ip, named in ((PUBLIC_IP, [PUBLIC_IP]), ("10.0.0.5", [])):
        facts = complete(cloud, message, facts=cloud.make_facts(node_ip=node_ip))
        assert facts.platform.provider_id == cloud.provider_id
        assert [each.address for each in facts.addresses if each.link == EXTERNAL_LINK] == named


@pytest.mark.parametrize("claim", [{}, {"provider_id": "hcloud://1"}], ids=["named", "another"])
def test_a_false_answer_of_an_account_changes_no_provider_id(cloud: NamedCloud, claim: dict[str, str]):
    facts = complete(cloud, cloud.make_metadata(zone="false", **claim))
    assert facts.platform.provider_id == ("" if claim else cloud.provider_id)
    assert facts.platform.zone == ("" if claim else "false")


def test_an_account_that_confirms_a_lie_gives_away_only_a_server_without_a_node(cloud: NamedCloud):
    liar = cloud.make_facts(cloud.neighbour, node_ip="192.0.2.9")
    claim = cloud.make_metadata(provider_id=cloud.neighbours_provider_id, addresses=("192.0.2.9",))
    assert complete(cloud, claim, facts=liar).platform.provider_id == cloud.neighbours_provider_id
    index = InstanceMetadataIndex({"prod": cloud.provider})
    neighbour = cloud.make_facts(cloud.neighbour, node_name="web-2")
    index.apply(make_node_enriched(make_node("web-2"), neighbour))
    index.apply_metadata(claim)
    event = make_node_enriched(NODE, liar)
    index.apply(event)
    assert index.complete(event).facts.platform.provider_id == ""


# ---- the plan


def test_a_completed_machine_is_initialized_like_by_the_native_controller(cloud: NamedCloud):
    planned = plan(complete(cloud, cloud.make_metadata()))
    assert (planned.outcome, planned.changes.provider_id) == ("initialized", cloud.provider_id)
    labels = planned.changes.labels
    expected = {
        "topology.kubernetes.io/region": "fsn1",
        "topology.kubernetes.io/zone": "fsn1-dc14",
        "node.kubernetes.io/instance-type": "cx22",
        **cloud.labels,
    }
    assert {key: labels[key] for key in expected} == expected
    assert bool(cloud.labels) is any(key.startswith("instance.hetzner.cloud/") for key in labels)


def test_the_node_stays_ours_and_keeps_its_labels_when_the_account_is_removed(cloud: NamedCloud):
    node = apply_plan(NODE, plan(complete(cloud, cloud.make_metadata())))
    later = plan(cloud.make_facts(), node)
    assert (later.outcome, later.node_summary) == ("unchanged", ())
    assert plan(complete(cloud, node=node), node).outcome == "unchanged"


RULE = """
transformations:
- name: of the region
  nodeSelector:
  - matchExpressions: [{key: region, operator: In, values: [fsn1]}]
  labels: {example.com/near: "true"}
  taints: {example.com/fsn1: NoSchedule}
- name: of the instance
  labels: {example.com/of: '{{ .ProviderID | trimPrefix "hcloud://" }}'}
- name: of all
  labels: {example.com/all: "{{ .Platform }}"}
"""
DOUBTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    case: (messages, changes)
    for case, (messages, changes, _) in UNPROVEN.items()
    if case not in {"another-instance", "asked-before-it-was-reached"}
}


@pytest.mark.parametrize(("messages", "changes"), DOUBTS.values(), ids=DOUBTS)
def test_a_doubt_about_the_instance_changes_no_key_of_a_rule_that_reads_its_metadata(
    messages: list[dict[str, Any]], changes: dict[str, Any]
):
    cloud, config = HCLOUD, compile_cluster_config(RULE)
    node = plan_and_apply(NODE, complete(cloud, cloud.make_metadata()), config)
    assert (node.labels["example.com/near"], node.labels["example.com/of"]) == ("true", cloud.own)
    doubtful = complete(cloud, *(cloud.make_metadata(**each) for each in messages), node=node, **changes)
    later = plan_for(node, doubtful, config)
    assert later.node_summary == ()
    assert "not evaluated: rule 'of the region' (no cloud account has supplied Region" in later.reason


def test_a_doubt_about_the_instance_changes_no_key_of_a_template_that_reads_a_variable():
    zone = "'{{ $m := . }}{{ $m.Zone }}'"
    entries = f"labels: {{example.com/z: {zone}}}, taints: {{example.com/t: {zone}}}"
    cloud, config = HCLOUD, compile_cluster_config(f"transformations: [{{name: z, {entries}}}]")
    node = plan_and_apply(NODE, complete(cloud, cloud.make_metadata()), config)
    assert node.labels["example.com/z"] == "fsn1-dc14"
    assert plan_for(node, complete(cloud, node=node), config).node_summary == ()


def test_a_rule_that_reads_no_metadata_of_the_instance_is_evaluated_despite_a_doubt():
    cloud, config = HCLOUD, compile_cluster_config(RULE)
    node = plan_and_apply(NODE, complete(cloud, cloud.make_metadata()), compile_cluster_config(""))
    later = plan_for(node, complete(cloud, node=node), config)
    assert exclude_record_label(later.changes.labels) == {"example.com/all": "metal"}


def test_a_doubt_about_the_instance_takes_no_address_that_its_cloud_names():
    cloud, config = HCLOUD, ClusterConfig(external_ips=ExternalIPs(discovery=False))
    node_ip = "10.0.0.5"
    addresses = tuple(
        AddressStatus(address=f"{address}/24", link="eth0", flags=128) for address in (node_ip, PUBLIC_IP)
    )
    facts = msgspec.structs.replace(cloud.make_facts(node_ip=node_ip), addresses=addresses)
    node = make_node(ip=node_ip)
    node = plan_and_apply(node, complete(cloud, cloud.make_metadata(), node=node, facts=facts), config)
    assert NodeAddress(type="ExternalIP", address=PUBLIC_IP) in node.status.addresses
    assert plan_for(node, complete(cloud, node=node, facts=facts), config).addresses is None


def test_a_changed_instance_type_changes_the_label(cloud: NamedCloud):
    node = apply_plan(NODE, plan(complete(cloud, cloud.make_metadata())))
    larger = complete(cloud, cloud.make_metadata(instance_type="cx32"), node=node)
    assert plan(larger, node).changes.labels["node.kubernetes.io/instance-type"] == "cx32"


# ---- the index


class Index:
    """The labeler's view of machines and messages."""

    def __init__(self, cloud: NamedCloud) -> None:
        self.cloud = cloud
        self.index = InstanceMetadataIndex({"prod": cloud.provider})

    def enrich(self, name: str = "web-1", facts: MachineFacts | None = None) -> NodeEnriched:
        facts = facts or self.cloud.make_facts()
        event = make_node_enriched(make_node(name, ip=facts.node_ip), facts)
        self.index.apply(event)
        return event

    def why(self, event: NodeEnriched) -> str:
        supplement = self.index.complete(event).facts.supplement
        assert supplement is not None
        return supplement.why_awaited


@pytest.fixture
def one(cloud: NamedCloud) -> Index:
    return Index(cloud)


def test_a_message_completes_the_event_and_the_result_is_kept(one: Index):
    event = one.enrich()
    assert "no answer" in one.why(event)
    one.index.apply_metadata(one.cloud.make_metadata())
    assert one.why(event) == ""
    assert one.index.complete(event) is one.index.complete(event)


@pytest.mark.parametrize(
    "replayed",
    [
        {"why_withheld": "it has no such instance"},
        {"asked_at": NOW, "addresses": ()},
        {"account": "stranger", "asked_at": NOW + timedelta(hours=1)},
    ],
    ids=["same-time", "older", "unlisted-account"],
)
def test_a_replayed_message_or_one_of_an_unlisted_account_changes_nothing(
    one: Index, replayed: dict[str, Any]
):
    event = one.enrich()
    one.index.apply_metadata(one.cloud.make_metadata())
    one.index.apply_metadata(one.cloud.make_metadata(**replayed))
    assert one.why(event) == ""


WRONG = MachineFault(kind="wrong_machine", step="Nodename", message="another one answers")


def test_two_machines_that_name_one_instance_both_wait_until_one_names_another(one: Index):
    event = one.enrich()
    one.index.apply_metadata(one.cloud.make_metadata())
    assert one.why(event) == ""
    lie = make_lie(one.cloud)
    liar = one.enrich("web-2", lie)
    assert "Node web-2 names" in one.why(event)
    assert "Node web-1 names" in one.why(liar)
    one.index.apply(make_unreachable(make_node("web-2"), last_known=lie))
    assert "Node web-2 names" in one.why(event)  # silence proves nothing
    one.index.apply(make_unreachable(make_node("web-2"), fault=WRONG, last_known=lie))
    assert one.why(event) == ""
    one.enrich("web-2", lie)
    assert "Node web-2 names" in one.why(event)
    one.enrich("web-2", one.cloud.make_facts(one.cloud.neighbour, node_name="web-2"))
    assert one.why(event) == ""


def make_lie(cloud: NamedCloud) -> MachineFacts:
    """Facts of web-2, which names the instance of web-1."""
    return cloud.make_facts(node_name="web-2", node_ip="192.0.2.9")


def test_a_new_stream_of_the_flow_keeps_the_messages_which_are_followed_beside_it(one: Index):
    event = one.enrich()
    one.enrich("web-2", make_lie(one.cloud))
    one.index.apply_metadata(one.cloud.make_metadata())
    one.index.clear()
    assert one.why(event) == ""
    one.index.clear_metadata()
    assert "no answer" in one.why(event)


# ---- the commands


def explain(cloud: NamedCloud, node: Node, *messages: InstanceMetadata) -> NodeExplanation:
    """As `explain node` after metadata's message about the machine, which it has queried without SMBIOS."""
    facts = cloud.make_facts()
    event = make_node_enriched(node, facts)
    queried = msgspec.structs.replace(facts, system=None, queried_at=NOW + timedelta(hours=1))
    flow = make_flow("web-1", event, *messages)
    return explain_node_evidence(make_evidence(node, queried, flow=flow), DeletionPolicy())


def test_explain_node_names_the_account_that_supplies_a_value(cloud: NamedCloud):
    told = explain(cloud, NODE, cloud.make_metadata())
    [text] = [check.text for check in told.checks if check.name == "machine"]
    assert "(metal, fsn1-dc14, cx22)" in text
    assert "providerID, region, zone, instance type from cloud account prod" in text
    assert told.plan is not None
    assert told.plan.changes.provider_id == cloud.provider_id


def test_explain_node_says_why_an_account_supplies_nothing(cloud: NamedCloud):
    told = explain(cloud, NODE, cloud.make_metadata(why_withheld="it has no such instance"))
    assert told.plan is not None
    assert told.plan.outcome == "blocked"
    assert [each.fault for each in told.verdict.findings] == ["no-instance-metadata"]
    silent = block("WaitingForInstanceMetadata", why="account prod: no answer about it yet")
    waiting = make_node(ip=PUBLIC_IP, conditions=(build_condition(silent),))
    assert [each.fault for each in explain(cloud, waiting).verdict.findings] == ["no-instance-metadata"]


def test_render_names_the_account_in_a_file_with_completed_facts(cloud: NamedCloud):
    completed = make_enriched(NODE, complete(cloud, cloud.make_metadata()), NOW)
    [described] = parse_facts(encode_facts([completed]))
    config = compile_config("", "ccm-config.yaml")
    text = render_lines(format_preview(preview_node(described, config, now=NOW), config))
    assert "providerID, region, zone, instance type from cloud account prod" in text
