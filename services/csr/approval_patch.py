"""The only write of csr: a condition on exactly the request that csr evaluated."""

import base64
from typing import Any

import msgspec

from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition


def build_approval_patch(request: SigningRequest, condition: SigningRequestCondition) -> list[dict[str, Any]]:
    """Build a JSON Patch (RFC 6902) for the subresource `approval`, fenced to the evaluated request.

    It tests every field that csr evaluated, and that the request has no conditions yet. So a wrong message
    cannot approve a request that differs from the one in Kubernetes. A `test` for null passes where the field
    is missing. The API server sets the time of the condition. Raises ValueError for an approval if the
    message does not contain the PKCS #10 request.
    """
    spec = request.spec
    if condition.type == "Approved" and not spec.request:
        raise ValueError(f"{request.name} was published without its PKCS #10 request: cannot approve it")
    return [
        _test("/metadata/uid", request.uid),
        _test("/spec/username", spec.username),
        _test("/spec/groups", list(spec.groups) or None),
        _test("/spec/signerName", spec.signer_name),
        _test("/spec/usages", list(spec.usages) or None),
        _test("/spec/expirationSeconds", spec.expiration_seconds),
        # An oversized request is published without these bytes: csr can only deny it, fenced by its uid.
        *([_test("/spec/request", base64.b64encode(spec.request).decode())] if spec.request else []),
        _test("/status/conditions", None),
        {"op": "add", "path": "/status/conditions", "value": [msgspec.structs.asdict(condition)]},
    ]


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}
