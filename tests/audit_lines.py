"""Lines of an audit log of kube-apiserver."""

from typing import Any

import msgspec


def make_audit_line(user: str, verb: str, answer: Any = None, code: int = 200, **entry: Any) -> bytes:
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
