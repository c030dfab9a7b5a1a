"""What metadata publishes and when it polls: traces, news, cluster networks, schedule, flags."""

import random
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract import events
from libs.common.contract.machine import (
    ForeignMachine,
    MachineFault,
    PlatformMetadata,
    why_metadata_incomplete,
)
from libs.common.contract.ordering import Recency, compare_events
from libs.common.observability import metrics
from libs.common.settings.read_settings import SettingsError, read_settings
from libs.talos.machine_reading import MachineConfigNetworks
from services.ipam.settings import IpamSettings
from services.metadata.cluster_networks_poller import (
    build_observed,
    has_same_networks,
    select_later,
)
from services.metadata.core import object_state
from services.metadata.core.event_equivalence import is_news
from services.metadata.core.object_state import Observation, PollIntervals, Timing, make_observation
from services.metadata.enrichment_publisher import NODES, EnrichmentPublisher
from services.metadata.poll_requirements import PollRequirements
from services.metadata.settings import MetadataSettings
from tests.builders import (
    NOW,
    STREAM_ID,
    make_cluster_networks,
    make_csr_enriched,
    make_facts,
    make_message,
    make_node,
    make_node_enriched,
    make_node_observed,
    make_request,
    make_unreachable,
)


def newest(trace_headers: Mapping[str, str] | None = None, *, is_answered: bool = False) -> Observation[Any]:
    event = make_node_observed(make_node())
    return Observation(event=event, sequence=1, trace_headers=trace_headers or {}, is_answered=is_answered)


FIRST, SECOND, THIRD = ({"traceparent": f"00-{n}-1-01"} for n in "123")


def a_publisher() -> EnrichmentPublisher[events.EnrichedNode]:
    """A publisher two seconds after NOW, that publishes nothing."""
    parts: Any = SimpleNamespace(now=lambda: NOW + timedelta(seconds=2))
    return EnrichmentPublisher(NODES, "web-1", parts, parts, parts)


@pytest.mark.parametrize(
    ("observation", "trace"),
    [
        (newest(FIRST), (FIRST, ())),
        (newest(), ({}, ())),  # without a trace, the answer starts one
        (newest(FIRST, is_answered=True), (None, (FIRST,))),
        (newest(is_answered=True), (None, ())),
    ],
)
def test_an_answer_belongs_to_the_trace_of_its_observation_and_a_later_message_is_linked(observation, trace):
    assert observation.find_trace() == trace


def after(before: Observation[Any], trace_headers: Mapping[str, str]) -> Observation[Any]:
    message = make_message(make_node_observed(make_node()), headers=trace_headers)
    return make_observation(message, before.event, before)


def test_an_answer_to_several_observations_is_linked_to_a_limited_number_of_older_ones():
    third = after(after(after(newest(FIRST), SECOND), SECOND), THIRD)
    assert third.find_trace() == (THIRD, (FIRST, SECOND))
    answered = msgspec.structs.replace(third, is_answered=True)
    assert after(answered, FIRST).find_trace() == (FIRST, ())
    for n in range(100):
        third = after(third, {"traceparent": str(n)})
    _, links = after(third, THIRD).find_trace()
    assert [link["traceparent"] for link in links] == [str(n) for n in range(92, 100)]


def test_only_live_observations_are_measured_and_each_once():
    def count() -> float:
        labels = {"service": "metadata", "event": "NodeObserved"}
        return metrics.REGISTRY.get_sample_value("talosccm_hop_latency_seconds_count", labels) or 0.0

    publisher, before = a_publisher(), count()
    publisher.record_started()
    assert count() == before
    publisher.record_received(make_message(make_node_observed(make_node())))
    publisher.record_started()
    publisher.record_started()
    assert count() == before + 1


# ---- news


REFUSED = MachineFault(kind="refused", step="connect", message="connection refused")
TIMEOUT = MachineFault(kind="timeout", step="connect", message="no answer")
CHANGED_NODE = make_node(labels={"a": "b"}, taints=())
SUCCESSOR = make_node(uid="uid-2")
FOREIGN = ForeignMachine(address="10.0.0.5", node_name="web-9", queried_at=NOW)
ENRICHED = make_node_enriched(make_node(), make_facts())
GONE = events.EnrichedNodeGone(stream_id="s", observed_sequence=1, name="web-1", uid="uid-1")
CSR_GONE = events.EnrichedCsrGone(stream_id="s", observed_sequence=1, name="csr-1", uid="csr-uid-1")
ATTESTED = make_csr_enriched(make_request(), facts=make_facts())


SILENT = make_unreachable(fault=REFUSED)


@pytest.mark.parametrize(
    ("event", "before"),
    [
        (ENRICHED, None),
        (ENRICHED, GONE),
        (ENRICHED, SILENT),
        (make_node_enriched(make_node(), make_facts(region="x")), ENRICHED),
        (make_node_enriched(make_node(), make_facts(), verified_by="system-uuid"), ENRICHED),
        (make_node_enriched(SUCCESSOR, make_facts()), ENRICHED),
        (SILENT, ENRICHED),
        (make_unreachable(fault=TIMEOUT), SILENT),
        (make_unreachable(fault=REFUSED, foreign_machines=(FOREIGN,)), SILENT),
        (make_csr_enriched(make_request(), fault=REFUSED), None),
        (make_csr_enriched(make_request(), fault=TIMEOUT), make_csr_enriched(make_request(), fault=REFUSED)),
        (make_csr_enriched(make_request(), fault=REFUSED), ATTESTED),
    ],
)
def test_other_facts_and_faults_are_news(event, before):
    assert is_news(event, before)


@pytest.mark.parametrize(
    ("event", "before"),
    [
        (make_node_enriched(CHANGED_NODE, make_facts()), ENRICHED),
        (make_unreachable(CHANGED_NODE, fault=REFUSED), SILENT),
        (GONE, ENRICHED),
        (ATTESTED, None),
        (ATTESTED, make_csr_enriched(make_request(), fault=REFUSED)),
        (make_csr_enriched(make_request(), fault=REFUSED), make_csr_enriched(make_request(), fault=REFUSED)),
        (CSR_GONE, ATTESTED),
    ],
)
def test_a_changed_node_an_attested_request_and_an_end_are_no_news(event, before):
    assert not is_news(event, before)


# ---- cluster networks


ANSWER = MachineConfigNetworks(
    pod_cidrs=("10.0.0.0/16",), service_cidrs=("10.96.0.0/12",), node_cidr_mask_size_ipv4=25
)
A_SECOND = timedelta(seconds=1)


def test_the_networks_are_published_in_full():
    event = build_observed(ANSWER, queried_at=NOW, known=None)
    assert event.observed_at == NOW
    assert (event.pod_cidrs, event.service_cidrs) == (ANSWER.pod_cidrs, ANSWER.service_cidrs)
    assert (event.node_cidr_mask_size_ipv4, event.node_cidr_mask_size_ipv6) == (25, None)


def test_a_new_response_is_later_than_the_known_one_even_if_the_clock_was_set_back():
    known = make_cluster_networks(observed_at=NOW)
    for asked_at in (NOW - 9 * A_SECOND, NOW, NOW + A_SECOND):
        event = build_observed(ANSWER, queried_at=asked_at, known=known)
        event = msgspec.structs.replace(event, stream_id=STREAM_ID)
        assert compare_events(event, known, STREAM_ID) is Recency.NEWER


def test_the_later_of_two_events_is_selected():
    older, newer = make_cluster_networks(observed_at=NOW), make_cluster_networks(observed_at=NOW + A_SECOND)
    assert select_later(older, newer) is select_later(newer, older) is newer
    assert select_later(None, older) is select_later(older, None) is older
    assert select_later(None, None) is None


def test_events_are_compared_by_their_networks_alone():
    one = make_cluster_networks()
    assert has_same_networks(one, make_cluster_networks(stream_id="another", observed_at=NOW + A_SECOND))
    assert not has_same_networks(one, make_cluster_networks(service_cidrs=()))


# ---- the schedule of polls


JITTER = st.floats(0.0, 1.0, exclude_max=True)
CONNECTION_REFUSED = MachineFault(kind="refused", step="PlatformMetadata", message="connection refused")
TIMED_OUT = MachineFault(kind="timeout", step="Nodename", message="no answer")


def timing(jitter: float, intervals: PollIntervals | None = None) -> Timing:
    return Timing(now=0.0, jitter=jitter, intervals=intervals or PollIntervals())


def test_failures_back_off_from_half_a_second_to_a_minute():
    failures: object_state.Failures = {}
    waits = []
    for _ in range(10):
        failures = object_state.count_failure(failures, CONNECTION_REFUSED)
        waits.append(timing(0.999999).after_failure(failures, CONNECTION_REFUSED))
    assert [round(wait, 3) for wait in waits] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_alternating_faults_do_not_reset_each_others_count():
    failures: object_state.Failures = {}
    for fault in (CONNECTION_REFUSED, TIMED_OUT) * 5:
        failures = object_state.count_failure(failures, fault)
    assert (
        object_state.count_attempts(failures, CONNECTION_REFUSED)
        == object_state.count_attempts(failures, TIMED_OUT)
        == 5
    )


@given(st.integers(1, 10_000), JITTER)
def test_incomplete_metadata_is_polled_again_within_half_a_minute(looks, jitter):
    assert 0.75 <= timing(jitter).after_incomplete(looks) <= 30.0
    assert timing(jitter).after_incomplete(1) <= 1.0


@given(JITTER, st.floats(1.0, 3600.0))
def test_successful_polls_repeat_within_the_interval_and_spread(jitter, period):
    pace = PollIntervals(poll=period, watched_poll=2 * period, republish=period)
    now = timing(jitter, pace)
    assert 0.8 * period <= now.after_success(is_watched=False, is_first=False) <= period
    assert 1.6 * period <= now.after_success(is_watched=True, is_first=False) <= 2 * period
    assert 0.4 * period <= now.after_success(is_watched=False, is_first=True) <= period
    assert timing(jitter, pace).until_republish() <= period


def test_five_thousand_machines_that_are_polled_within_seconds_are_polled_evenly_afterwards():
    """The most polls in ten seconds of the next hour are at most twice the mean."""
    chance, hour, window = random.Random(1), 3600.0, 10
    polls = Counter[int]()
    for number in range(5000):
        first = number * 25 / 5000  # seconds
        at = first + timing(chance.random()).after_success(is_watched=False, is_first=True)
        while at < hour:
            polls[int(at / window)] += 1
            at += timing(chance.random()).after_success(is_watched=False, is_first=False)
    mean = polls.total() / (hour / window)
    assert max(polls.values()) <= 2 * mean


def test_cloud_metadata_is_complete_or_not_by_platform():
    assert "hcloud" in why_metadata_incomplete(PlatformMetadata(platform="hcloud", region="fsn1"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="hcloud", provider_id="hcloud://1"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="metal"))
    assert why_metadata_incomplete(PlatformMetadata(platform="nocloud"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="nocloud", instance_id="100"))
    assert why_metadata_incomplete(PlatformMetadata(platform="a-new-cloud"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="a-new-cloud", zone="1"))
    assert why_metadata_incomplete(PlatformMetadata())


# ---- flags


@pytest.mark.parametrize(
    "kinds", [[MetadataSettings], [MetadataSettings, IpamSettings]], ids=["alone", "in one"]
)
@pytest.mark.parametrize("asked", ["--allocate-node-cidrs", "--controllers=*,node-ipam-controller"])
def test_pod_cidrs_without_talos_are_rejected_at_the_start(kinds: list, asked: str):
    name = asked.partition("=")[0]
    with pytest.raises(SettingsError, match=f"--without-talos and {name}.* before machines report"):
        read_settings(kinds, ["--without-talos", asked], {})


@pytest.mark.parametrize(
    "said",
    [
        ["--without-talos"],
        ["--without-talos", "--allocate-node-cidrs=false"],
        ["--without-talos", "--allocate-node-cidrs", "--controllers=*,-node-ipam-controller"],
        ["--allocate-node-cidrs"],
    ],
    ids=str,
)
def test_each_of_the_two_flags_alone_is_valid(said: list[str]):
    assert not read_settings([MetadataSettings], said, {}).get(MetadataSettings).problems()


@pytest.mark.parametrize(("accounts", "needed"), [((), False), (("hcloud/prod",), True)])
def test_smbios_is_queried_only_where_an_account_supplies_metadata(accounts: tuple[str, ...], needed: bool):
    assert PollRequirements(MetadataSettings(metadata_accounts=accounts)).needs_system is needed


def test_an_account_of_an_unknown_cloud_is_rejected():
    with pytest.raises(SettingsError, match="--cloud-metadata-accounts: 'aws/prod'"):
        read_settings([MetadataSettings], ["--cloud-metadata-accounts=aws/prod"], {})
