"""Every version of every event stays readable as it was first written: no line of the file is ever edited."""

import contextlib
import typing
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract import events
from libs.common.contract.instances import InstanceAnchor, InstanceWitness
from libs.common.contract.kube_service import LoadBalancerIngress
from libs.common.contract.machine import MachineFault
from libs.common.contract.signing_request import SigningRequestCondition, trim_signing_request
from tests import builders

FILE = Path(__file__).parent / "golden_events.jsonl"
GOLDEN = {msgspec.json.decode(line)["event"]: line for line in FILE.read_bytes().splitlines()}
NODE = builders.make_node(
    provider_id="hcloud://7", labels={"a": "b"}, system_uuid="4C4C4544-0000", pod_cidrs=("10.244.1.0/24",)
)
FACTS = builders.make_facts(
    platform="hcloud", provider_id="hcloud://7", region="eu", zone="eu-1", spot=True, uuid="4C4C4544-0000",
    tags={"k": "v"}, cluster_name="prod",
)  # fmt: skip
REQUEST = trim_signing_request(
    builders.make_request(
        pem=b"-----BEGIN CERTIFICATE REQUEST-----",
        expiration_seconds=86400,
        conditions=(SigningRequestCondition(type="Approved", reason="by hand", message="fine"),),
        certificate="LS0t",
    )
)
SERVICE = builders.make_kube_service(
    load_balancer_class="example.com/lb",
    annotations={"load-balancer.hetzner.cloud/location": "fsn1"},
    finalizers=("service.kubernetes.io/load-balancer-cleanup",),
    ingress=(LoadBalancerIngress(ip="192.0.2.9", ip_mode="VIP"),),
    ip_families=("IPv4",),
)
ANCHOR = InstanceAnchor(kind="network", id="4711")
INSTANCE: dict[str, typing.Any] = {
    "stream_id": builders.STREAM_ID, "account": "prod", "name": "web-1", "node_uid": "uid-1",
    "provider_id": "hcloud://7", "asked_at": builders.NOW, "answered_at": builders.NOW + timedelta(seconds=1),
    "credential_loaded_at": builders.NOW - timedelta(hours=1),
}  # fmt: skip
SAMPLES: list[events.Event] = [
    builders.make_node_observed(NODE),
    builders.make_node_gone(NODE),
    builders.make_snapshot(nodes=3, service_cidrs=("10.96.0.0/12",)),
    builders.make_leading(),
    builders.make_node_enriched(NODE, FACTS),
    events.NodeUnreachable(
        stream_id=builders.STREAM_ID,
        observed_sequence=7,
        node=NODE,
        fault=MachineFault(
            kind="refused", step="connect", endpoint="10.0.0.1:50000", message="connection refused"
        ),
        last_known=FACTS,
        attempt=2,
        retry_at=builders.NOW + timedelta(seconds=2),
        observed_at=builders.NOW,
        enriched_at=builders.NOW,
    ),
    events.EnrichedNodeGone(stream_id=builders.STREAM_ID, observed_sequence=9, name="web-1", uid="uid-1"),
    builders.make_csr_observed(REQUEST),
    builders.make_csr_gone(REQUEST),
    builders.make_kube_service_observed(SERVICE),
    events.KubeServiceGone(
        stream_id=builders.STREAM_ID,
        order=events.ObservationOrder(epoch=2, resource_version=101),
        namespace="shop",
        name="web",
        uid="service-uid-1",
        observed_at=builders.NOW,
    ),
    builders.make_csr_enriched(REQUEST, node_uid="uid-1", facts=FACTS, answering_addresses=("10.0.0.5",)),
    events.ClusterNetworksObserved(
        stream_id=builders.STREAM_ID,
        pod_cidrs=("10.244.0.0/16", "fd00:10:244::/56"),
        service_cidrs=("10.96.0.0/12", "fd00:10:96::/112"),
        node_cidr_mask_size_ipv4=24,
        observed_at=builders.NOW,
    ),
    events.EnrichedCsrGone(stream_id=builders.STREAM_ID, observed_sequence=9, name="csr-1", uid="csr-uid-1"),
    events.InstanceExists(**INSTANCE, anchor=ANCHOR),
    events.InstanceShutDown(**INSTANCE, anchor=ANCHOR),
    events.InstanceGone(**INSTANCE, witness=InstanceWitness(kind="instance", id="8", asked_at=builders.NOW)),
    events.InstanceUnknown(**INSTANCE, namesake="9", reason="instance 9 has the Node's name"),
    events.InstanceMetadata(
        **INSTANCE, region="fsn1", zone="fsn1-dc14", instance_type="cx22", addresses=("192.0.2.5",)
    ),
    events.AccountReport(
        account="prod",
        provider="hcloud",
        failure="HTTP 401: the token is invalid",
        instances={"exists": 2, "unknown": 1},
        requests_left=3500,
        rate_limit=3600,
    ),
    events.Pulse(
        service="lifecycle",
        instance="host_1",
        problems=("no leader",),
        is_leading=False,
        errors={"failed Kubernetes requests": 2},
        lag=3,
        oldest_at=builders.NOW,
        quarantine=events.Quarantine(
            read_at=builders.NOW,
            count=1,
            blocks=(
                events.QuarantinedBlock(
                    block="10.244.3.0/24", node="web-1", since=builders.NOW, until=builders.NOW
                ),
            ),
        ),
        events=(
            events.RecordedNodeEvent(
                node="web-1",
                uid="uid-1",
                component="talos-ccm-lifecycle",
                type="Warning",
                reason="ProviderIDMismatch",
                message="Its record is void",
                at=builders.NOW,
            ),
        ),
    ),
    builders.make_decided(
        uid="uid-1",
        outcome="initialized",
        reason="all written",
        decided_at=builders.NOW,
        next_check_at=builders.NOW,
    ),
    builders.make_dead_letter("web-1", reason="not an event"),
]


def tag_of(event: events.Event) -> str:
    return str(type(event).__struct_config__.tag)


@pytest.mark.parametrize("event", SAMPLES, ids=tag_of)
def test_a_golden_sample_is_read_and_written_the_same_for_ever(event: events.Event):
    golden = GOLDEN.get(tag_of(event), b"")
    assert golden, f"append to {FILE.name}: {events.encode(event).decode()}"
    assert events.decode(golden) == event
    assert events.encode(event) == golden


def test_every_event_has_a_golden_sample_and_a_version():
    tags = {str(kind.__struct_config__.tag) for kind in typing.get_args(events.Event)}
    assert tags == {tag_of(event) for event in SAMPLES} == GOLDEN.keys()
    assert all(tag.rpartition(".v")[2].isdigit() for tag in tags)


@pytest.mark.parametrize("golden", GOLDEN.values(), ids=GOLDEN)
def test_fields_that_a_later_version_adds_are_ignored(golden: bytes):
    later = msgspec.json.decode(golden) | {"added_later": {"x": 1}}
    assert events.decode(msgspec.json.encode(later)) == events.decode(golden)


@given(st.sampled_from(list(GOLDEN.values())), st.integers(0, 400), st.binary(max_size=3))
def test_broken_bytes_are_an_event_error_and_nothing_else(golden: bytes, at: int, junk: bytes):
    broken = golden[:at] + junk + golden[at + 1 :]
    with contextlib.suppress(events.EventError):  # any other exception fails the test
        assert events.encode(events.decode(broken))


def test_deeply_nested_bytes_are_an_event_error():
    with pytest.raises(events.EventError):
        events.decode(b'{"event":"NodeObserved.v1","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
