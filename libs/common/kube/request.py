"""One request to the Kubernetes API."""

from collections.abc import Mapping

import msgspec


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

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".rstrip()
