"""A JSON Patch as the API server can test it: spelled as Go spells JSON.

The server compares a `test` of a text with the bytes of its own encoding, and Go's encoding/json escapes what
HTML and JavaScript would stumble over: unescaped, such a test fails for ever (seen on kube-apiserver 1.36).
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

# In JSON these stand in texts only, so the bytes may be replaced wherever they are.
_ESCAPED_BY_GO: Final = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def json_patch_body(json_patch: Sequence[dict[str, Any]]) -> bytes:
    """The request's body."""
    body = msgspec.json.encode(json_patch)
    for plain, escaped in _ESCAPED_BY_GO:
        body = body.replace(plain, escaped)
    return body
