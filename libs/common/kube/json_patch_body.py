"""Encodes a JSON Patch with the escapes of Go's encoding/json.

The API server compares the text of a `test` with the bytes of its own encoding. Go escapes characters that
are special in HTML and JavaScript. Unescaped, such a test always fails (seen on kube-apiserver 1.36).
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

# In JSON these characters occur only in strings, so each occurrence can be replaced.
_ESCAPED_BY_GO: Final = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def json_patch_body(json_patch: Sequence[dict[str, Any]]) -> bytes:
    """Return the body of the request."""
    body = msgspec.json.encode(json_patch)
    for plain, escaped in _ESCAPED_BY_GO:
        body = body.replace(plain, escaped)
    return body
