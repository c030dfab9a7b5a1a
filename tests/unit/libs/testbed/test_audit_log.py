"""The audit log of the API server: its lines, the history of Nodes, and what chaos reads in it."""

import io
from typing import Any

import msgspec
import pytest

from libs.testbed.control_plane.audit_log import AuditedRequest, count_requests, find_last_line_end
from tests.chaos.history import History, is_ours, read_audit_log


def a_line(user: str, verb: str, answer: Any = None, code: int = 200, **entry: Any) -> bytes:
    """An answered request about the Node web-1; keywords replace fields of the entry."""
    line = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "requestReceivedTimestamp": "2026-01-01T00:00:01.000000Z",
        "stageTimestamp": "2026-01-01T00:00:02.000000Z",
        "sourceIPs": ["127.0.0.7"],
        "objectRef": {"resource": "nodes", "name": "web-1"},
        "responseStatus": {"code": code},
        "responseObject": answer,
    }
    return msgspec.json.encode(line | entry) + b"\n"


LINE = a_line("a", "get", objectRef={}, requestURI="/readyz?x=1")


@pytest.mark.parametrize("lines", [0, 3])
@pytest.mark.parametrize("half", [b"", LINE[:40], LINE[:-1]])
def test_a_mark_is_never_within_an_incomplete_line(lines: int, half: bytes):
    log = io.BytesIO(LINE * lines + half)
    mark = find_last_line_end(log)
    assert mark == lines * len(LINE)
    log = io.BytesIO(LINE * (lines + 1))  # the rest has been written
    log.seek(mark)
    assert count_requests(log) == {AuditedRequest("a", "get", "/readyz"): 1}


@pytest.mark.parametrize("end", [1, 60, 100, len(LINE) - 3])
def test_an_entry_that_a_killed_server_left_incomplete_hides_no_other(end: int):
    """The next server appends to the incomplete line."""
    assert count_requests([LINE, LINE[:end] + LINE, LINE[:end] + LINE[:-1]]) == {
        AuditedRequest("a", "get", "/readyz"): 2
    }


def test_a_line_that_ends_with_no_entry_is_an_error():
    with pytest.raises(msgspec.DecodeError):
        count_requests([LINE[:60] + b"\n"])


# ---- the history for chaos


WRITTEN = {
    "kind": "Node",
    "metadata": {"name": "web-1", "uid": "u1", "resourceVersion": "7", "labels": {"a": "b"}},
    "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "podCIDRs": ["10.244.0.0/24"]},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}],
    },
}


REQUEST = {
    "kind": "CertificateSigningRequest",
    "metadata": {"name": "csr-1", "uid": "u2", "resourceVersion": "9"},
    "spec": {"username": "system:node:web-1", "request": "cGVt"},
    "status": {"conditions": [{"type": "Approved", "status": "True"}], "certificate": "cGVt"},
}


def line_of(user: str = "talos-ccm-labeler", verb: str = "patch", **entry: Any) -> bytes:
    return a_line(user, verb, **({"answer": WRITTEN} | entry))


def test_a_write_has_its_writer_its_times_and_the_state_that_it_left():
    found = read_audit_log([line_of(), line_of(responseStatus={"code": 422})])
    (write, _), (state,) = found.writes, found.states  # a rejected write leaves none
    assert is_ours(write)
    assert write.sources == ("127.0.0.7",)
    assert (write.answered - write.received).total_seconds() == 1.0
    assert (state.uid, state.version, state.pod_cidrs, state.conditions) == (
        "u1",
        7,
        ("10.244.0.0/24",),
        frozenset({"Ready"}),
    )


def test_states_after_a_restore_of_etcd_have_versions_of_their_own():
    found = read_audit_log([line_of()], [line_of(), line_of("admin")])
    assert [state.restores for state in found.states] == [0, 1, 1]
    assert History(states=tuple(found.states)).nodes().keys() == {("u1", 0), ("u1", 1)}
    assert found.request_counts == {"patch nodes": 2}


def test_a_certificate_request_has_the_state_that_each_write_left():
    target = {"resource": "certificatesigningrequests", "subresource": "approval", "name": "csr-1"}
    approval: dict[str, Any] = {"verb": "update", "objectRef": target, "answer": REQUEST}
    found = read_audit_log([line_of(**approval), line_of(**approval, code=409)], [line_of(**approval)])
    assert [(each.uid, each.version, each.restores) for each in found.requests] == [
        ("u2", 9, 0),
        ("u2", 9, 1),
    ]
    assert found.requests[0].conditions == {"Approved"}
    assert found.requests[0].is_issued
