"""`ownership` of a config file: what it says, every mistake in it, and whose Node is whose by it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.model import Ownership, OwnershipConfig
from libs.common.cloud_config.ownership import why_not_owned, why_not_selected
from libs.common.contract.controllers import CLOUD_NODE, CSR_APPROVAL, NODE_IPAM, NODE_LIFECYCLE
from tests.builders import make_node
from tests.unit.libs.common.cloud_config.test_mistakes import mistakes

FILE = """ownership:
  nodeSelector:
    - matchExpressions:
        - {key: Team, operator: In, values: [a]}
  providerIDSchemes: [talos, hcloud]
  controllers:
    - name: cloud-node-lifecycle
      nodeSelector:
        - matchExpressions:
            - {key: metadata.name, operator: Regexp, values: ["^web-"]}
    - name: node-csr-approval
"""


def said(text: str) -> OwnershipConfig:
    return parse_cloud_config(text, "f").ownership


def selecting(expression: str) -> Ownership:
    text = f"ownership: {{nodeSelector: [{{matchExpressions: [{expression}]}}]}}"
    return said(text).for_controller(CLOUD_NODE)


def test_a_file_without_the_section_leaves_every_node_to_each_controllers_own_judgement():
    for text in ("", "ownership: ~", "ownership: {}", "ownership: {controllers: []}"):
        assert said(text) == OwnershipConfig()
        assert why_not_owned(said(text).for_controller(CLOUD_NODE), make_node(provider_id="hcloud://1")) == ""


def test_what_stands_for_a_controller_stands_instead_of_what_is_said_of_all():
    ownership = said(FILE)
    assert ownership.for_controller(CLOUD_NODE) == ownership.for_controller(NODE_IPAM) == ownership.default
    assert ownership.default.provider_id_schemes == ("talos", "hcloud")
    assert ownership.for_controller(NODE_LIFECYCLE).provider_id_schemes == ()
    assert why_not_owned(ownership.for_controller(NODE_LIFECYCLE), make_node("web-1")) == ""
    assert "metadata.name" in why_not_owned(ownership.for_controller(NODE_LIFECYCLE), make_node("db-1"))
    assert ownership.for_controller(CSR_APPROVAL) == Ownership()


def test_a_node_is_ours_only_by_selector_and_scheme():
    ours = said(FILE).default
    assert why_not_owned(ours, make_node(labels={"Team": "a"}, provider_id="talos://metal/1")) == ""
    other_team = why_not_owned(ours, make_node(labels={"Team": "b"}, provider_id="talos://metal/1"))
    assert other_team == 'ownership.nodeSelector does not select it: Team is "b", not "a"'
    other_cloud = why_not_owned(ours, make_node(labels={"Team": "a"}, provider_id="aws:///eu/i-1"))
    assert "'aws:///eu/i-1' has none of ownership.providerIDSchemes (talos, hcloud)" in other_cloud


def test_a_scheme_is_what_stands_before_the_slashes_and_nothing_less():
    ours = said("ownership: {providerIDSchemes: [hcloud]}").default
    assert why_not_owned(ours, make_node(provider_id="hcloud://1")) == ""
    for foreign in ("hcloud", "hcloud:1", "HCLOUD://1", "hcloudx://1"):
        assert why_not_owned(ours, make_node(provider_id=foreign)), foreign


def test_none_selects_ids_without_a_scheme_and_nothing_else_does():
    ours = said("ownership: {providerIDSchemes: [none]}").default
    assert why_not_owned(ours, make_node(provider_id="ocid1.instance.oc1.phx.a")) == ""
    assert why_not_owned(ours, make_node(), provider_id="cn-hangzhou.i-1") == ""
    assert why_not_owned(ours, make_node(provider_id="hcloud://7"))
    assert why_not_owned(ours, make_node())


def test_without_a_provider_id_a_node_counts_by_the_one_that_it_will_be_given_and_else_is_nobodys():
    ours = said("ownership: {providerIDSchemes: [talos]}").default
    assert why_not_owned(ours, make_node(), provider_id="talos://metal/10.0.0.1") == ""
    assert "'hcloud://1'" in why_not_owned(ours, make_node(), provider_id="hcloud://1")
    assert "no providerID yet" in why_not_owned(ours, make_node())
    assert why_not_selected(ours, make_node(provider_id="hcloud://1")) == ""
    # What it has counts before what it would be given.
    assert why_not_owned(ours, make_node(provider_id="aws://1"), provider_id="talos://metal/1")


def test_labels_are_judged_as_kubernetes_judges_them():
    without, other, same = make_node(), make_node(labels={"team": "b"}), make_node(labels={"team": "a"})
    not_in = selecting("{key: team, operator: NotIn, values: [a]}")
    assert [why_not_owned(not_in, node) == "" for node in (without, other, same)] == [True, True, False]
    is_in = selecting("{key: team, operator: In, values: [a]}")
    assert [why_not_owned(is_in, node) == "" for node in (without, other, same)] == [False, False, True]
    assert why_not_owned(is_in, make_node(labels={"Team": "a"})), "letter case counts"


def test_what_a_kubelet_says_at_length_is_reported_in_short():
    ours = Ownership(provider_id_schemes=("talos",))
    assert len(why_not_owned(ours, make_node(provider_id="x://" + "y" * 100_000))) < 400


def test_a_label_that_is_called_like_the_name_does_not_stand_for_it():
    by_name = selecting("{key: metadata.name, operator: In, values: [web-1]}")
    assert why_not_owned(by_name, make_node("db-1", labels={"metadata.name": "web-1"}))
    assert why_not_owned(by_name, make_node("web-1", labels={"metadata.name": "db-1"})) == ""


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{nodeSelector: []}", "ownership.nodeSelector must have at least one entry"),
        ("{nodeSelector: [~]}", "ownership.nodeSelector must have at least one entry"),
        ("{providerIDSchemes: []}", "ownership.providerIDSchemes must have at least one entry"),
        ("{controllers: [{name: cloud-node, providerIDSchemes: []}]}", "must have at least one entry"),
        ("{providerIDSchemes: hcloud}", 'is "hcloud", not a list'),
        (
            "{providerIDSchemes: ['hcloud://']}",
            'providerIDSchemes[0] is "hcloud://", not the scheme of a providerID',
        ),
        ("{providerIDSchemes: ['']}", 'providerIDSchemes[0] is "", not the scheme of a providerID'),
        ("{selector: []}", 'ownership has no key "selector", only nodeSelector'),
        ("{controllers: [{providerIDSchemes: [a]}]}", "ownership.controllers[0] lacks name"),
        ("{controllers: [{name: lifecycle}]}", 'controllers[0].name is "lifecycle", not one of cloud-node'),
        ("{controllers: [{name: service}]}", 'is "service", not one of'),
        (
            "{controllers: [{name: nodeipam}, {name: node-ipam-controller}]}",
            "controllers[1].name is node-ipam-controller, which an earlier entry configures",
        ),
        (
            "{nodeSelector: [{matchExpressions: [{key: 'a b', operator: Exists}]}]}",
            'nodeSelector[0].matchExpressions[0].key is "a b", which is not a valid label key',
        ),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_nothing_is_obeyed(written: str, message: str):
    (mistake,) = mistakes(f"ownership: {written}")
    assert message in mistake


def test_a_platform_that_is_no_scheme_is_warned_of():
    config = parse_cloud_config("ownership: {providerIDSchemes: [gcp, hcloud, hcloud, alibabacloud]}", "f")
    assert [found.format("f") for found in config.warnings] == [
        "f, line 1: ownership.providerIDSchemes[0] is gcp, a platform: its providerIDs begin with gce://",
        "f, line 1: ownership.providerIDSchemes[2] is hcloud, a duplicate",
        (
            "f, line 1: ownership.providerIDSchemes[3] is alibabacloud, a platform: its providerIDs "
            '({region}.{id}) have no scheme, which "none" selects'
        ),
    ]
    assert config.ownership.default.provider_id_schemes == ("gcp", "hcloud", "alibabacloud")


LABELS = st.dictionaries(st.sampled_from(["team", "zone", "x.y/z"]), st.sampled_from(["a", "b", "1", ""]))
IDS = st.sampled_from(["", "talos://metal/1", "hcloud://1", "aws:///x/i-1", "odd"])


@given(labels=LABELS, has=IDS, coming=IDS)
def test_of_two_instances_with_different_schemes_at_most_one_owns_a_node(
    labels: dict[str, str], has: str, coming: str
):
    node = make_node(labels=labels, provider_id=has)
    instances = (Ownership(provider_id_schemes=("talos",)), Ownership(provider_id_schemes=("hcloud", "aws")))
    owned = [not why_not_owned(each, node, provider_id=coming) for each in instances]
    assert sum(owned) == (1 if "://" in (has or coming) else 0)
