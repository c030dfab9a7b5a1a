"""The parts of a request: verb, kind, namespace, name and subresource, from its method and URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.testbed.sim_apiserver.kinds import KINDS
from libs.testbed.sim_apiserver.refusals import (
    bad_request,
    method_not_allowed,
    no_such_resource,
    not_simulated,
)
from libs.testbed.sim_apiserver.resource_kind import ResourceKind

_BY_PATH: Final = {(kind.api_version, kind.plural): kind for kind in KINDS}
_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# As of servers that do not support them: a list ignores `limit`, and a watch sends no bookmarks.
_LIST: Final = {"limit", "fieldSelector", "labelSelector", "resourceVersion", "watch"}
_WATCH: Final = {"watch", "resourceVersion", "timeoutSeconds", "allowWatchBookmarks", "fieldSelector"}
_COMMON: Final = {"fieldManager", "pretty", "fieldValidation", "timeout"}  # without effect


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`verb` is the Kubernetes verb, "" if the method has none; without a kind the target is `path`."""

    verb: str
    path: str
    kind: ResourceKind | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = {}
    as_table: bool = False  # for kubectl; kinds without a table ignore it

    @property
    def resource(self) -> str:
        """The resource as in RBAC rules and audit logs, such as "nodes/status"; the path of other URLs."""
        if self.kind is None:
            return self.path
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def parse_request(method: str, path: str, query: Mapping[str, str], *, as_table: bool = False) -> ApiRequest:
    """Parse a request; an unknown resource or verb stays empty, and `check_request` rejects it."""
    request = ApiRequest(verb=method.lower(), path=path, query=query, as_table=as_table)
    version, parts = _split(path)
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    kind = _BY_PATH.get((version, parts[0])) if parts else None
    if kind is None or len(parts) > 3 or (namespace and not kind.is_namespaced):
        return request
    name, subresource = [*parts[1:], "", ""][:2]
    verb = _verb(method, name, query)
    return replace(request, verb=verb, kind=kind, namespace=namespace, name=name, subresource=subresource)


def _split(path: str) -> tuple[str, list[str]]:
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        return "v1", parts[2:]
    if len(parts) > 3 and parts[0] == "apis":
        return f"{parts[1]}/{parts[2]}", parts[3:]
    return "", []


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method == "GET" and not name:
        return "watch" if query.get("watch") in {"1", "true"} else "list"
    if (method == "POST") == bool(name):  # create has no name in its URL, other writes have one
        return "get" if method == "GET" else ""
    return _VERBS.get(method, "")


def check_request(request: ApiRequest) -> ResourceKind:
    """Return the kind if the resource exists and every query parameter is known. Raises Refusal."""
    if request.kind is None or (request.subresource and request.subresource not in request.kind.subresources):
        raise no_such_resource()
    if not request.kind.is_stored and (request.verb != "create" or request.subresource):
        raise method_not_allowed()
    known = {"list": _LIST, "watch": _WATCH}.get(request.verb, set[str]()) | _COMMON
    for name in request.query.keys() - known:
        raise not_simulated(f"query parameter {name} of {request.verb}", name)
    return request.kind


def parse_number(request: ApiRequest, name: str) -> int:
    """Return a number from the query, 0 without one. Raises Refusal."""
    text = request.query.get(name, "")
    if text and not (text.isascii() and text.isdigit()):
        raise bad_request(f'{name}: strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text or 0)
