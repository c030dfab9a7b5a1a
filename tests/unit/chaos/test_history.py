"""The lines of an audit log as kube-apiserver writes them, and what they contain."""

from typing import Any

from tests.audit_lines import make_audit_line
from tests.chaos.history import History, read_audit_log

NODE = {
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


def a_line(user: str = "talos-ccm-labeler", verb: str = "patch", **entry: Any) -> bytes:
    return make_audit_line(user, verb, **({"answer": NODE} | entry))


def test_a_write_has_its_writer_its_times_and_the_state_that_it_left():
    found = read_audit_log([a_line()])
    (write,), (state,) = found.writes, found.states
    assert (write.user, write.source, write.verb, write.resource, write.name) == (
        "talos-ccm-labeler",
        "127.0.0.7",
        "patch",
        "nodes",
        "web-1",
    )
    assert write.is_ours
    assert write.answered - write.received == 1.0
    assert (state.uid, state.version, state.pod_cidrs, state.conditions) == (
        "u1",
        7,
        ("10.244.0.0/24",),
        frozenset({"Ready"}),
    )


def test_a_rejected_write_leaves_no_state():
    found = read_audit_log([a_line(responseStatus={"code": 422})])
    assert not found.states
    assert not found.writes[0].succeeded


def test_states_after_a_restore_of_etcd_have_versions_of_their_own():
    found = read_audit_log([a_line()], [a_line(), a_line("admin")])
    assert [state.restores for state in found.states] == [0, 1, 1]
    assert History(states=tuple(found.states)).nodes().keys() == {("u1", 0), ("u1", 1)}
    assert found.request_counts == {"patch nodes": 2}


def test_a_certificate_request_has_the_state_that_each_write_left():
    target = {"resource": "certificatesigningrequests", "subresource": "approval", "name": "csr-1"}
    approval: dict[str, Any] = {"verb": "update", "objectRef": target, "answer": REQUEST}
    found = read_audit_log([a_line(**approval), a_line(**approval, code=409)], [a_line(**approval)])
    assert [(each.uid, each.version, each.restores) for each in found.requests] == [
        ("u2", 9, 0),
        ("u2", 9, 1),
    ]
    assert found.requests[0].conditions == {"Approved"}
    assert found.requests[0].is_issued
