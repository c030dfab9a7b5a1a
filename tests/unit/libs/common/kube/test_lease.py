"""Leases, pauses of the reflector, and names of Events, as pure values."""

import re
import socket
from datetime import timedelta
from itertools import count

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.kube.events import (
    ObjectEvent,
    ObjectReference,
    event_body,
    event_name,
    event_namespace,
    node_reference,
)
from libs.common.kube.keepalive_socket import keepalive_socket
from libs.common.kube.lease import acquired_document, read_lease, released_document, vacant_lease
from libs.common.kube.reflector import pause_seconds
from tests.builders import NOW
from tests.in_memory_api import make_lease

ME = "pod-a_1"


@given(st.lists(st.sampled_from([ME, "pod-b_2", "pod-c_3", ""]), max_size=20))
def test_the_count_of_transitions_begins_at_0_and_grows_with_each_new_holder(holders: list[str]):
    lease, last = vacant_lease("kube-system", "lease"), -1
    for step, holder in enumerate(["pod-0", *holders]):
        now = NOW + timedelta(seconds=step)
        document = acquired_document(lease, holder, 15, now) if holder else released_document(lease, now)
        document["metadata"]["resourceVersion"] = str(step)
        after = read_lease(msgspec.json.encode(document))
        assert after.transitions == last + (1 if holder and holder != lease.holder else 0)
        lease, last = after, after.transitions


def test_a_lease_that_was_emptied_by_hand_keeps_its_count_of_transitions():
    lease = make_lease("pod-b_2", transitions=7)
    emptied = msgspec.structs.replace(lease.spec, holder_identity=None, acquire_time=None, renew_time=None)
    after = acquired_document(msgspec.structs.replace(lease, spec=emptied), ME, 15, NOW)
    assert after["spec"]["leaseTransitions"] == 8


def test_a_renewal_changes_the_renew_time_and_nothing_else():
    before = make_lease(ME)
    after = acquired_document(before, ME, 15, NOW)
    assert after["spec"] == before.document["spec"] | {"renewTime": "2026-03-01T12:00:00.000000Z"}
    assert after["metadata"] == before.document["metadata"]


def test_an_update_keeps_what_we_do_not_read():
    metadata = {"namespace": "n", "name": "l", "resourceVersion": "1", "labels": {"a": "b"}}
    document = {"metadata": metadata, "spec": {"strategy": "OldestEmulationVersion"}, "extra": 1}
    lease = read_lease(msgspec.json.encode(document))
    for written in (acquired_document(lease, ME, 15, NOW), released_document(lease, NOW)):
        assert written["spec"]["strategy"] == "OldestEmulationVersion"
        assert (written["extra"], written["metadata"]) == (1, metadata)


def test_a_released_lease_names_nobody_and_runs_out_in_a_second():
    spec = released_document(make_lease(ME, transitions=7), NOW)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 7)


# ---- the reflector


jitters = st.floats(0.0, 1.0, exclude_max=True)


def test_a_watch_that_ended_as_it_should_is_followed_by_the_next_one_at_once():
    assert pause_seconds(0, 0.99) == 0.0


@given(jitters)
def test_a_server_that_fails_every_list_and_watch_hears_less_than_one_request_a_second(jitter: float):
    now, requests = 0.0, 0
    for failures in count(1):
        requests += 2
        now += pause_seconds(failures, jitter)
        if now >= 60.0:
            break
    assert requests < 60
    assert pause_seconds(100, jitter) <= 15.0, "recovery is quick after a long outage, too"


def test_the_kernel_ends_a_connection_whose_peer_acknowledges_nothing_within_half_a_minute():
    made = keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        between = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        probes = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle + between * probes <= 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


# ---- Events


UID = "0b9c5d6e-0000-4000-8000-000000000001"
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def an_event(
    name: str = "web-1",
    uid: str = UID,
    reason: str = "Synced",
    message: str = "synced",
    particular: str = "",
) -> ObjectEvent:
    return ObjectEvent(
        regarding=node_reference(name, uid),
        reason=reason,
        message=message,
        component="talos-ccm",
        discriminator=particular,
    )


def test_another_minute_reason_or_node_makes_another_name():
    names = {
        event_name(an_event(), NOW),
        event_name(an_event(), NOW + timedelta(minutes=1)),
        event_name(an_event(reason="Blocked"), NOW),
        event_name(an_event(particular="label zone"), NOW),
        event_name(an_event(particular="label region"), NOW),
        event_name(an_event(uid=UID[:-1] + "2"), NOW),
    }
    assert len(names) == 6


labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.lists(labels, min_size=1, max_size=5).map(lambda parts: ".".join(parts)[:253].rstrip("-.")))
def test_every_node_name_makes_a_name_that_kubernetes_takes(name: str):
    made = event_name(an_event(name=name), NOW)
    assert len(made) <= 253
    assert SUBDOMAIN.fullmatch(made)


def test_an_event_about_a_namespaced_object_lives_beside_it():
    about = ObjectReference(kind="ConfigMap", name="claims", uid=UID, namespace="kube-system")
    event = ObjectEvent(regarding=about, reason="Full", message="x", component="talos-ccm")
    body = event_body(event, instance="i", now=NOW)
    assert event_namespace(about) == body["metadata"]["namespace"] == "kube-system"
    assert body["involvedObject"]["namespace"] == "kube-system"


def test_a_message_beyond_what_kubernetes_takes_is_cut():
    body = event_body(an_event(message="x" * 5000), instance="i", now=NOW)
    assert len(body["message"]) == 1024
