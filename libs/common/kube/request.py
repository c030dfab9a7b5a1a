"""Builds a request to the Kubernetes API."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from libs.common.kube.errors import Invalid

_METHODS: Final = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
# The API server compares the text of a `test` in a JSON Patch with the bytes of its own encoding. Go escapes
# characters that are special in HTML and JavaScript. Unescaped, such a test always fails (seen on
# kube-apiserver 1.36). In JSON they occur only in strings, so each occurrence can be replaced.
_ESCAPED_BY_GO: Final = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request; verb and resource are those of Kubernetes, for metrics, audit and messages."""

    verb: str
    resource: str
    path: str
    method: str = "GET"
    query: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    name: str = ""
    max_bytes: int | None = None  # limit of a response that others write, such as a kubelet
    is_urgent: bool = False  # goes before all requests that wait for a connection, see RequestQueue
    # whether it may be sent again after a Retry-After; not if only the moment of its decision justifies it
    is_postponable: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".rstrip()


def build_request(
    verb: str, collection: str, name: str, body: bytes | None = None, *, subresource: str = "", **options: Any
) -> Request:
    """Return the request for an object of the collection with that path, or for its subresource.

    A `create` is sent to the collection. `options` are further fields of Request. Raises Invalid for a name
    that would address the collection.
    """
    path, resource = collection, collection.rpartition("/")[2]
    if verb != "create":
        path = f"{path}/{path_segment(name)}"
    if subresource:
        path, resource = f"{path}/{subresource}", f"{resource}/{subresource}"
    method = _METHODS.get(verb, "GET")
    return Request(verb=verb, resource=resource, name=name, path=path, method=method, body=body, **options)


def path_segment(name: str) -> str:
    """Return the name of an object or namespace for a URL. Raises Invalid for one that a URL cannot have."""
    if not name or name in {".", ".."}:
        raise Invalid(f"{name!r} is not an object name")
    return quote(name, safe="")


def json_patch_body(json_patch: Sequence[dict[str, Any]]) -> bytes:
    """Return the body of a JSON Patch, with the escapes of Go's encoding/json."""
    body = msgspec.json.encode(json_patch)
    for plain, escaped in _ESCAPED_BY_GO:
        body = body.replace(plain, escaped)
    return body
