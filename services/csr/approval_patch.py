"""The one write of csr: a condition on exactly the request that was judged."""

import base64
from typing import Any

from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition


def build_approval_patch(request: SigningRequest, condition: SigningRequestCondition) -> list[dict[str, Any]]:
    """JSON Patch (RFC 6902) for the subresource `approval`, which applies only to what was judged.

    It tests all that a decision rests upon, and that nobody has decided yet: whatever the messages said,
    nothing is approved that Kubernetes does not hold. A `test` for null passes where nothing is. The time of
    the condition is the server's. Raises ValueError for an approval of what the message does not hold.
    """
    spec = request.spec
    if condition.type == "Approved" and not spec.request:
        raise ValueError(f"{request.name} was published without its request: it cannot be approved")
    return [
        _test("/metadata/uid", request.uid),
        _test("/spec/username", spec.username),
        _test("/spec/groups", list(spec.groups) or None),
        _test("/spec/signerName", spec.signer_name),
        _test("/spec/usages", list(spec.usages) or None),
        _test("/spec/expirationSeconds", spec.expiration_seconds),
        # published without it when oversized: then nothing can be approved, only denied, by its uid
        *([_test("/spec/request", base64.b64encode(spec.request).decode())] if spec.request else []),
        _test("/status/conditions", None),
        {"op": "add", "path": "/status/conditions", "value": [_encode_condition(condition)]},
    ]


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}


def _encode_condition(condition: SigningRequestCondition) -> dict[str, str]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
    }
