"""Facts files: nodes that are read, and the errors for invalid ones. The sample nodes are such a file."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.render.facts_file import FactsError, encode_facts, load_samples, parse_facts
from libs.common.contract.events import encode
from tests.architecture.sources import ROOT
from tests.builders import make_facts, make_node, make_node_enriched
from tools.platform_samples import render_samples

MINIMAL = b"facts: {platform: {platform: hcloud, zone: fsn1}, node_name: web-1, node_ip: 10.0.0.5}"


def test_a_stored_message_is_a_facts_file():
    node, facts = make_node(), make_facts(platform="hcloud")
    (read,) = parse_facts(encode(make_node_enriched(node, facts)))
    assert (read.node, read.facts, read.verified_by) == (node, facts, "nodename")


def test_several_messages_one_a_line_are_a_facts_file():
    messages = [
        encode(make_node_enriched(make_node(name), make_facts(node_name=name))) for name in ("a", "b")
    ]
    assert [each.node.name for each in parse_facts(b"\n".join(messages))] == ["a", "b"]


def test_without_a_node_it_is_what_the_machines_kubelet_would_register():
    (read,) = parse_facts(MINIMAL)
    assert (read.node.name, read.node.provided_node_ip, read.node.is_initialized) == (
        "web-1",
        "10.0.0.5",
        False,
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"nodes: []", "it is empty"),
        (b"3", "expected one node"),
        (b"- {facts: {}}\n- 3", "[0]: "),
        (b"{}", "it has no machine facts"),
        (b"facts: 3", "Expected `object`, got `int` - at `$.facts`"),
        (b"facts: {platform: {platform: 3}}", "at `$.facts.platform.platform`"),
        (b"facts: {platfrm: {}}", "facts.platfrm is not a machine fact"),
        (b"facts: {platform: {zones: x}}", "facts.platform.zones is not a machine fact"),
        (
            b"facts: {inventory: {processors: {core: 1}}}",
            "facts.inventory.processors.core is not a machine fact",
        ),
        (b"facts: {addresses: [{ip: x}]}", "facts.addresses[0].ip is not a machine fact"),
        (b"facts: {platform: {platform: metal}, node_ip: 10.0.0.1}", "must contain node_name and node_ip"),
        (b"- [", "it is neither JSON nor YAML: line"),
    ],
)
def test_what_describes_no_node_is_refused_with_what_was_expected(content: bytes, reason: str):
    with pytest.raises(FactsError) as refused:
        parse_facts(content)
    assert reason in str(refused.value)


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: repr(v).encode())
)
def test_any_bytes_are_nodes_or_refused(content: bytes):
    with suppress(FactsError):
        assert parse_facts(content)


def test_the_samples_are_those_of_the_testbed():
    stale = "stale: make render-samples"
    assert (ROOT / "cli" / "render" / "samples.json").read_text() == render_samples(), stale


def test_a_sample_can_be_written_to_a_facts_file_and_read_again():
    nodes = tuple(load_samples().values())
    assert parse_facts(encode_facts(nodes)) == nodes
