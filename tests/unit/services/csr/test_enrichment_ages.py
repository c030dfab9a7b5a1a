"""How old an enrichment may be, what is stored of it, and the flags of csr."""

from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.protocol import Message
from libs.common.contract.controllers import CSR_APPROVAL
from libs.common.contract.events import EnrichedCsrGone, Event, NodeEnriched, NodeUnreachable
from libs.common.contract.machine import MachineFacts, PlatformMetadata
from libs.common.contract.node import (
    PROVIDED_NODE_IP_ANNOTATION,
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
)
from libs.common.contract.signing_request import SigningRequestCondition
from libs.common.service.startup_gate import StartupGate
from libs.common.settings.help_text import format_help
from libs.common.settings.read_settings import SettingsError, list_options, read_settings
from services.csr.core.decide import decide
from services.csr.core.flow_state import compact_message
from services.csr.core.metadata_reports import MetadataReports
from services.csr.settings import CsrSettings
from services.metadata.settings import MetadataSettings
from tests.builders import (
    NOW,
    STREAM_ID,
    make_csr_enriched,
    make_csr_observed,
    make_message,
    make_node,
    make_node_observed,
    make_request,
)
from tests.csr_cases import CASES, FACTS, NODES, POLICY, make_metadata_events
from tests.unit.services.csr.test_claim_index import claims_of

ENRICHED = make_csr_enriched(make_request())
OTHER = make_node_observed(make_node())


def message(event: Event, sequence: int, stamp: float) -> Message:
    taken = make_message(event, sequence=sequence)
    return msgspec.structs.replace(taken, published_at=NOW + timedelta(seconds=stamp))


def make_reports() -> MetadataReports:
    return MetadataReports(StartupGate(), republish_seconds=300.0, without_talos=False)


@pytest.mark.parametrize(
    ("stamp", "is_live", "later", "asked_at", "age"),
    [
        pytest.param(0, True, (0, 50), 60, 10, id="what came live is as old as we have known it"),
        pytest.param(0, False, (900, 50), 57, 907, id="what was there before is as old as the stamps say"),
        # We were stopped, and all that came meanwhile is received in one go.
        pytest.param(0, True, (900, 50), 50, 900, id="what was received late is no younger for that"),
        pytest.param(0, True, (3600, 51), 51, 3600, id="a clock that jumps ahead makes it older"),
        pytest.param(3600, True, (0, 80), 90, 40, id="after a clock went back our own clock counts"),
        pytest.param(
            10, False, (9.5, 50), 52, 2, id="clocks that differ by less than a second change nothing"
        ),
    ],
)
def test_a_later_message_tells_the_age(stamp, is_live, later, asked_at, age):
    """`later` is the stamp of another message, and when we received it."""
    ages, enriched = make_reports(), message(ENRICHED, 1, stamp)
    ages.apply(enriched, now=50, is_live=is_live)
    later_stamp, received_at = later
    ages.apply(message(OTHER, 2, later_stamp), now=received_at, is_live=True)
    assert ages.age_seconds(enriched, asked_at) == age


def test_after_a_clock_went_back_nobody_knows_the_age_of_what_was_there_before():
    ages, enriched = make_reports(), message(ENRICHED, 1, 0)
    ages.apply(enriched, now=50, is_live=False)
    ages.apply(message(OTHER, 2, 3600), now=50, is_live=False)
    ages.apply(message(OTHER, 3, 60), now=50, is_live=True)
    assert ages.age_seconds(enriched, 50) is None
    again = message(ENRICHED, 4, 61)
    ages.apply(again, now=51, is_live=True)
    assert ages.age_seconds(again, 60) == 9
    assert ages.age_seconds(enriched, 60) is None, "it is another message by now"


def test_reading_the_stream_again_makes_nothing_younger():
    ages, enriched = make_reports(), message(ENRICHED, 1, 0)
    ages.apply(enriched, now=50, is_live=True)
    ages.apply(message(OTHER, 2, 5), now=55, is_live=True)
    ages.apply(enriched, now=80, is_live=False)
    ages.apply(message(OTHER, 2, 5), now=80, is_live=False)
    assert ages.age_seconds(enriched, 90) == 40


def test_the_age_of_what_was_never_heard_or_is_gone_is_unknown():
    ages, enriched = make_reports(), message(ENRICHED, 1, 0)
    assert ages.age_seconds(enriched, 50) is None
    ages.apply(enriched, now=50, is_live=True)
    ages.forget(enriched.subject)
    assert ages.age_seconds(enriched, 50) is None
    ages.apply(enriched, now=50, is_live=True)
    gone = EnrichedCsrGone(stream_id=STREAM_ID, observed_sequence=2, name="csr-1", uid="csr-uid-1")
    ages.apply(message(gone, 2, 1), now=51, is_live=True)
    assert ages.age_seconds(enriched, 51) is None
    ages.apply(enriched, now=50, is_live=True)
    ages.clear()
    assert ages.age_seconds(enriched, 51) is None


steps = st.floats(min_value=0, max_value=1000)
offsets = st.floats(min_value=-5000, max_value=5000)


@given(st.lists(st.tuples(steps, offsets, st.booleans()), min_size=1, max_size=20), steps)
def test_what_came_live_is_never_younger_than_it_is(past, later):
    """`past`: seconds until each message, how wrong the bus's clock is then, whether it is the request."""
    ages, at, last = make_reports(), 0.0, None
    for sequence, (seconds, wrong, is_request) in enumerate(past, 1):
        at += seconds
        taken = message(ENRICHED if is_request else OTHER, sequence, at + wrong)
        ages.apply(taken, now=at, is_live=True)
        last = (taken, at) if is_request else last
    if last is not None:
        age = ages.age_seconds(last[0], at + later)
        assert age is not None
        assert age >= at + later - last[1] - 1e-3


# ---- stored messages


EventT = TypeVar("EventT", bound=Event)


def compact(event: EventT) -> EventT:
    stored = compact_message(make_message(event, sequence=7))
    assert msgspec.structs.replace(stored, event=event) == make_message(event, sequence=7)
    assert isinstance(stored.event, type(event))
    return stored.event


def test_a_report_keeps_the_identity_of_its_node_and_the_addresses_and_names_of_its_machine():
    for event in make_metadata_events():
        stored = compact(event)
        assert stored.node == Node(metadata=ObjectMeta(name=event.node.name, uid=event.node.uid))
        assert stored.address_history == event.address_history.resolve(7)
        whole, kept = _get_facts(event), _get_facts(stored)
        platform = whole.platform
        assert kept == MachineFacts(
            platform=PlatformMetadata(
                hostname=platform.hostname,
                internal_dns=platform.internal_dns,
                external_dns=platform.external_dns,
            ),
            addresses=whole.addresses,
            node_name=whole.node_name,
            queried_at=whole.queried_at,
            node_ip=whole.node_ip,
            answering_addresses=whole.answering_addresses,
        )


def _get_facts(report: NodeEnriched | NodeUnreachable) -> MachineFacts:
    facts = report.facts if isinstance(report, NodeEnriched) else report.last_known
    assert facts is not None
    return facts


def test_a_node_keeps_what_its_owner_and_its_addresses_depend_on():
    """Nothing else of a Node: csr stores every Node of the cluster."""
    node = make_node(
        labels={"zone": "a"},
        annotations={"team": "web"},
        provider_id="talos://x/web-1",
        pod_cidrs=("10.244.0.0/24",),
        addresses=(NodeAddress(type="InternalIP", address="10.0.0.5"),),
        conditions=(NodeCondition(type="Ready", status="True"),),
        system_uuid="00000000-0000-0000-0000-000000000001",
    )
    kept = compact(make_node_observed(node)).node
    assert kept == Node(
        metadata=ObjectMeta(
            name=node.name,
            uid=node.uid,
            labels=node.labels,
            annotations={PROVIDED_NODE_IP_ANNOTATION: node.provided_node_ip},
        ),
        spec=NodeSpec(provider_id=node.spec.provider_id, pod_cidrs=node.spec.pod_cidrs),
        status=NodeStatus(addresses=node.status.addresses),
    )
    assert compact(make_node_observed(make_node(ip=""))).node.provided_node_ip == ""


def test_every_request_gets_the_same_decision_by_what_is_stored():
    whole = claims_of(*NODES.values(), *make_metadata_events())
    nodes = (compact(make_node_observed(node)).node for node in NODES.values())
    stored = claims_of(*nodes, *map(compact, make_metadata_events()))
    for case in CASES:
        request = case.request()
        node = request.node_name
        uid = NODES[node].uid if node in NODES else ""
        event = make_csr_enriched(request, facts=FACTS.get(node), node_uid=uid)
        assert decide(event, stored, POLICY) == decide(event, whole, POLICY), case


def test_only_a_decided_request_loses_what_it_asks_for():
    pending = make_csr_observed(make_request(pem=b"pem"))
    assert compact(pending) is pending
    approved = make_request(pem=b"pem", conditions=(SigningRequestCondition(type="Approved"),))
    stored = compact(make_csr_observed(approved))
    without = msgspec.structs.replace(approved, spec=msgspec.structs.replace(approved.spec, request=b""))
    assert stored == make_csr_observed(without)


# ---- flags


def read(*arguments: str) -> CsrSettings:
    return read_settings([CsrSettings], arguments, {}).get(CsrSettings)


def test_the_policy_is_what_the_flags_say():
    policy = read(
        "--csr-allowed-networks=10.0.0.0/8,fd00::/8", "--csr-min-expiration=1h", "--csr-max-expiration=24h"
    ).policy
    assert policy.allowed_networks == ("10.0.0.0/8", "fd00::/8")
    assert (policy.min_expiration_seconds, policy.max_expiration_seconds) == (3600, 86400)


def test_one_command_line_gives_csr_and_metadata_the_same_period_and_mode():
    arguments = ["--metadata-republish-interval=2m", "--without-talos"]
    reading = read_settings([MetadataSettings, CsrSettings], arguments, {})
    for settings in (reading.get(MetadataSettings), reading.get(CsrSettings)):
        assert (settings.republish_interval_seconds, settings.without_talos) == (120.0, True)
    assert MetadataSettings().republish_interval_seconds == CsrSettings().republish_interval_seconds == 300.0
    assert reading.warnings == ()


def test_whose_nodes_are_ours_stands_in_the_file_and_a_mistake_in_it_stops_the_start(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    file.write_text("ownership: {controllers: [{name: node-csr-approval, providerIDSchemes: [talos]}]}")
    settings = read(f"--cloud-config={file}")
    assert settings.cloud_config == file
    assert settings.file.ownership.for_controller(CSR_APPROVAL).provider_id_schemes == ("talos",)
    file.write_text("ownership: {providerIDSchemes: []}")
    with pytest.raises(SettingsError, match="must have at least one entry"):
        read(f"--cloud-config={file}")


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--csr-allowed-networks=10.0.0.5/8", '"10.0.0.5/8" is not a network'),
        ("--csr-allowed-networks=everywhere", '"everywhere" is not a network'),
        ("--csr-min-expiration=1s", "at least 10m0s"),
        ("--csr-in-flight=0", "at least 1"),
    ],
)
def test_what_cannot_be_obeyed_is_a_mistake(argument: str, told: str):
    with pytest.raises(SettingsError, match=told):
        read(argument)


def test_limits_that_leave_nothing_are_a_mistake():
    with pytest.raises(SettingsError, match="csr would deny every request"):
        read("--csr-min-expiration=24h", "--csr-max-expiration=1h")


def test_the_help_of_csr_lists_the_service_networks_under_a_heading_that_names_certificates():
    lines = format_help("csr", "Approves.", list_options(CsrSettings)).splitlines()
    assert "Pod CIDRs:" not in lines
    heading = lines.index("Service networks (for pod CIDRs and kubelet serving certificates):")
    assert "--service-cluster-ip-range" in lines[heading + 1]
