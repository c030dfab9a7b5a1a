"""Events: named so that telling the same twice in a minute is one Event."""

import re
from datetime import timedelta

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
from tests.builders import NOW

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


def test_two_replicas_in_one_minute_make_one_name():
    early, late = NOW.replace(second=1), NOW.replace(second=59)
    assert event_name(an_event(message="one"), early) == event_name(an_event(message="another"), late)


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


def test_an_event_about_a_node_lives_in_default_and_refers_to_its_real_uid():
    body = event_body(an_event(), instance="pod-1", now=NOW)
    assert body["metadata"]["namespace"] == "default"
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "web-1", "uid": UID}
    assert (body["firstTimestamp"], body["count"]) == ("2026-03-01T12:00:00Z", 1)


def test_an_event_about_a_namespaced_object_lives_beside_it():
    about = ObjectReference(kind="ConfigMap", name="claims", uid=UID, namespace="kube-system")
    event = ObjectEvent(regarding=about, reason="Full", message="x", component="talos-ccm")
    body = event_body(event, instance="i", now=NOW)
    assert event_namespace(about) == body["metadata"]["namespace"] == "kube-system"
    assert body["involvedObject"]["namespace"] == "kube-system"


def test_a_message_beyond_what_kubernetes_takes_is_cut():
    body = event_body(an_event(message="x" * 5000), instance="i", now=NOW)
    assert len(body["message"]) == 1024
