"""What travels from the watcher's pod is read by another version, and which pod is asked is said."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.credentials import NoAccess
from cli.exec.pods import AllInOne, choose, labels_of
from cli.inside.seen import (
    CertificateSeen,
    FlowSeen,
    Object,
    QueueSeen,
    Unknown,
    Word,
    certificates_decoded,
    certificates_encoded,
    decoded,
    encoded,
    is_spoken_of,
    objects_of,
)
from cli.inside.services import services_seen
from cli.inside.source import FlowSource, nats_of
from libs.common.kube_api.pods import Pod
from libs.common.service_spec import READER_USER, SERVICES
from tests.builders import NOW, a_node, leading, observed

LEADING = Word(subject="l", published_at=NOW - timedelta(seconds=3), event=leading())


def a_queue(service: str, **more: Any) -> QueueSeen:
    return QueueSeen(name=f"{service}-x", service=service, **more)


def a_pod(name: str, *, component: str = "watcher", release: str = "ccm", **status: Any) -> Pod:
    labels = {
        "app.kubernetes.io/name": "talos-cloud-controller-manager",
        "app.kubernetes.io/instance": release,
    } | ({"app.kubernetes.io/component": component} if component else {})
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": status}, Pod)


READY: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def test_what_is_seen_comes_back_as_it_was():
    word = Word(subject="s", published_at=NOW, event=observed(a_node()))
    seen = FlowSeen(at=NOW, leading=LEADING, dead=(word,), queues=(a_queue("csr", pending=3),))
    assert decoded(encoded(seen)) == seen
    unknown = Unknown(reason="no NATS", all_in_one=True)
    assert decoded(encoded(unknown)) == unknown
    certificates = (CertificateSeen(name="talos", expires_at=NOW),)
    assert certificates_decoded(certificates_encoded(certificates)) == certificates


def test_fields_of_a_newer_version_are_passed_over():
    text = encoded(FlowSeen(at=NOW)).replace(b'"at"', b'"shoe_size":43,"at"')
    assert decoded(text) == FlowSeen(at=NOW)


@given(st.binary())
def test_whatever_else_a_pod_says_is_refused_in_words(data: bytes):
    with pytest.raises(ValueError, match="inside"):
        decoded(b"[" + data)
    with pytest.raises(ValueError, match="inside"):
        certificates_decoded(b"{" + data)


@pytest.mark.parametrize(
    "more",
    [
        {"at": "2026-01-01T00:00:00"},
        {"leading": {"subject": "x", "published_at": "2026-01-01T00:00:00"}},
        {"queues": [{"name": "q", "service": "s", "delivered_at": "2026-01-01T00:00:00"}]},
        {"queues": [{"name": "q", "service": "s", "acknowledged_at": "2026-01-01T00:00:00"}]},
        {"certificates": [{"name": "nats-server", "expires_at": "2026-01-01T00:00:00"}]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_time_without_an_offset_is_refused_where_it_is_read(more: dict[str, Any]):
    """Later nobody could compare it with another one."""
    said: dict[str, Any] = {"type": "FlowSeen.v1", "at": "2026-01-01T00:00:00Z"}
    assert isinstance(decoded(msgspec.json.encode(said)), FlowSeen)
    with pytest.raises(ValueError, match="inside"):
        decoded(msgspec.json.encode(said | more))


def test_objects_are_named_by_kind_and_name():
    assert objects_of(["node/web-1", "csr/a/b"]) == (Object("node", "web-1"), Object("csr", "a/b"))
    for nonsense in ("web-1", "node/", "pod/web-1", ""):
        with pytest.raises(ValueError, match="neither"):
            objects_of([nonsense])
    assert is_spoken_of(Object("csr", "csr-1"))
    assert not is_spoken_of(Object("csr", "a > b"))


def test_how_old_the_leaders_word_is_and_who_they_are():
    seen = FlowSeen(at=NOW, leading=LEADING)
    assert seen.leader == leading()
    assert seen.leading_seconds == 3
    assert FlowSeen(at=NOW).leading_seconds is None
    odd = Word(subject="l", published_at=NOW, event=observed(a_node()))
    assert FlowSeen(at=NOW, leading=odd).leader is None


@pytest.mark.parametrize(
    ("queue", "here"),
    [
        ({"waiting": 1}, True),
        ({}, False),
        ({"unacknowledged": 1}, None),
        ({"exists": False}, False),
    ],
)
def test_a_service_is_there_if_it_asks_for_more(queue: dict[str, Any], here: bool | None):
    found = {one.service: one.here for one in services_seen([a_queue("labeler", **queue)], LEADING, NOW)}
    assert found["labeler"] is here
    assert found["watcher"] is True
    assert found["metadata"] is None
    assert list(found) == [wiring.service for wiring in SERVICES]


def test_nats_is_found_where_the_watchers_pod_names_it():
    assert nats_of(FlowSource(), {}) is None
    environment = {"NATS_URL": "tls://a:4222,tls://b:4222", "NATS_NKEY_FILE": "/k", "NATS_CA_FILE": "/c"}
    access = nats_of(FlowSource(), environment)
    assert access is not None
    assert (access.servers, access.service) == (("tls://a:4222", "tls://b:4222"), READER_USER)
    assert (str(access.nkey_seed_file), str(access.tls_ca_file)) == ("/k", "/c")
    told = nats_of(FlowSource(nats_servers=("nats://c",)), environment)
    assert told is not None
    assert told.servers == ("nats://c",)


# ---- which pod


def chosen(*pods: Pod, release: str = "") -> str:
    return choose(pods, "watcher", "kube-system", release)


def test_a_ready_pod_is_chosen():
    pod = a_pod("w-0", **READY)
    leaving = msgspec.structs.replace(pod.metadata, deletion_timestamp=NOW)
    gone = msgspec.structs.replace(pod, metadata=leaving)
    assert chosen(gone, a_pod("w-1", phase="Pending"), a_pod("w-2", **READY), a_pod("w-3", **READY)) == "w-2"


def test_why_there_is_none_is_said():
    waiting = {"name": "watcher", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    with pytest.raises(NoAccess, match=r"no pod of watcher is ready.*w-1 watcher: ImagePullBackOff"):
        chosen(a_pod("w-1", phase="Pending", containerStatuses=[waiting]))
    pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    with pytest.raises(NoAccess, match="w-1 Unschedulable: 0/3 nodes"):
        chosen(a_pod("w-1", phase="Pending", conditions=[pending]))
    with pytest.raises(NoAccess, match="--namespace and --release"):
        chosen()
    with pytest.raises(NoAccess, match="--namespace and --release"):
        chosen(a_pod("l-1", component="labeler", **READY))


def test_of_several_releases_one_must_be_named():
    with pytest.raises(NoAccess, match=r"more than one release \(a, b\): choose by --release"):
        chosen(a_pod("w-1", release="a", **READY), a_pod("w-2", release="b", **READY))
    assert labels_of("b") == {"app.kubernetes.io/instance": "b"}


def test_a_daemon_set_has_all_in_one():
    with pytest.raises(AllInOne):
        chosen(a_pod("ccm-x", component="", **READY))
