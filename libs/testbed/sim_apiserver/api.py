"""The verbs of the API on the store: admission, defaults, validation, preconditions, write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.testbed.kubelet_node import format_time
from libs.testbed.pki import CertificateAuthority
from libs.testbed.sim_apiserver.api_request import ApiRequest, check_request, parse_number
from libs.testbed.sim_apiserver.authorization import admit_approval, authorize, is_allowed
from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS, sign_request
from libs.testbed.sim_apiserver.discovery import DOCUMENTS, HEALTH, has_table, render_table
from libs.testbed.sim_apiserver.kinds import KINDS, NAMESPACES, NODES, make_namespace, remove_not_ready_taint
from libs.testbed.sim_apiserver.object_store import Key, ObjectStore, StoredObject
from libs.testbed.sim_apiserver.refusals import (
    already_exists,
    bad_request,
    conflict,
    invalid,
    method_not_allowed,
    no_such_resource,
    not_found,
)
from libs.testbed.sim_apiserver.request_bodies import make_selector, parse_json, parse_object, patch_object
from libs.testbed.sim_apiserver.resource_kind import Document, Identity, ResourceKind, omit_empty

_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")  # as in a new cluster


class ApiResponse(msgspec.Struct, frozen=True):
    """The response to any request except a watch."""

    code: int
    body: bytes
    content_type: str = "application/json"


class SimApi:
    """The server without HTTP; `now` (in UTC) and `new_uid` are its only side effects."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        new_uid: Callable[[], str],
        has_node_lifecycle: bool = False,
    ) -> None:
        """`has_node_lifecycle`: a Node that becomes Ready loses its not-ready taint in the same write."""
        self.store = ObjectStore(kind.plural for kind in KINDS)
        self.tokens: dict[str, Identity] = {}  # for token reviews
        self._now = now
        self._new_uid = new_uid
        self._has_node_lifecycle = has_node_lifecycle
        for name in _NAMESPACES:
            metadata = {"name": name, "uid": new_uid(), "creationTimestamp": format_time(now())}
            self._put(NAMESPACES, Key("", name), make_namespace({"metadata": metadata}, Identity("")))

    def handle(self, identity: Identity, request: ApiRequest, body: bytes, content_type: str) -> ApiResponse:
        """Carry out the request. Raises Refusal."""
        authorize(identity, request, self.store)
        if request.kind is None:
            return _describe_server(request)
        kind = check_request(request)
        match request.verb:
            case "get":
                return ApiResponse(200, self.encode_object(request, kind, self._get_stored(request, kind)))
            case "list":
                return ApiResponse(200, self._list(request, kind))
            case "create" if not kind.is_stored:
                return self._review(identity, kind, parse_object(kind, body))
            case "create":
                return self._create(identity, request, kind, parse_object(kind, body))
            case "update":
                return self._update(identity, request, kind, parse_object(kind, body))
            case "patch":
                stored = self._get_stored(request, kind)
                new = patch_object(kind, stored, body, content_type)
                return self._write(identity, request, kind, stored, new)
            case "delete" if not request.subresource:
                return self._delete(identity, request, kind, body)
            case _:
                raise method_not_allowed()

    def open_watch(
        self, identity: Identity, asked: ApiRequest
    ) -> tuple[ResourceKind, int, list[StoredObject]]:
        """Return the version to start from, and the existing objects if none was given. Raises Refusal."""
        authorize(identity, asked, self.store)
        kind = check_request(asked)
        since = parse_number(asked, "resourceVersion")
        if since:
            return kind, since, []
        return kind, self.store.version, list(self.store.table(kind.plural).list_namespace(asked.namespace))

    def find_container(
        self, identity: Identity, asked: ApiRequest, container: str, verbs: Iterable[str] = ("get",)
    ) -> str:
        """Return the container for exec or log: the named one, or else the first. Raises Refusal."""
        for verb in verbs:
            authorize(identity, replace(asked, verb=verb), self.store)
        if asked.kind is None or asked.kind.plural != "pods":
            raise no_such_resource()
        pod = self._get_stored(asked, asked.kind).item
        names = [each["name"] for each in pod["spec"]["containers"]]
        if container and container not in names:
            raise bad_request(f"container {container} is not valid for pod {asked.name}")
        return container or names[0]

    def encode_object(self, request: ApiRequest, kind: ResourceKind, stored: StoredObject) -> bytes:
        """Encode a single object, with kind and apiVersion, which items of lists do not have."""
        if request.as_table and has_table(kind):
            return render_table(kind, [stored.item], {"resourceVersion": str(stored.version)}, self._now())
        return _add_kind(kind, stored.raw)

    def _get_stored(self, asked: ApiRequest, kind: ResourceKind) -> StoredObject:
        found = self.store.table(kind.plural).objects.get(Key(asked.namespace, asked.name))
        if found is None:
            raise not_found(kind.make_reference(asked.name))
        return found

    def _list(self, asked: ApiRequest, kind: ResourceKind) -> bytes:
        """Return all objects that the selectors match. Raises Refusal."""
        selected = make_selector(asked, kind)
        found = [
            stored
            for stored in self.store.table(kind.plural).list_namespace(asked.namespace)
            if selected(stored.item)
        ]
        metadata = {"resourceVersion": str(self.store.version)}
        if asked.as_table and has_table(kind):
            return render_table(kind, (stored.item for stored in found), metadata, self._now())
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        items = b",".join(stored.raw for stored in found)
        return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"

    def _create(
        self, identity: Identity, asked: ApiRequest, kind: ResourceKind, new: Document
    ) -> ApiResponse:
        meta = new["metadata"]
        prefix = meta.get("generateName", "")
        name = meta.get("name") or (prefix and self._generate_name(asked, kind, prefix))
        if not name:
            about = kind.make_reference()
            raise invalid(about, "metadata.name", "Required", "name or generateName is required")
        own = {"name": name, "namespace": asked.namespace, "uid": self._new_uid()}
        meta = {**meta, **own, "creationTimestamp": format_time(self._now())}
        new = omit_empty(kind.on_create({**new, "metadata": meta}, identity))
        key = Key(asked.namespace, name)
        if key in self.store.table(kind.plural).objects:
            raise already_exists(kind.make_reference(name))
        return _make_object_response(201, kind, self._put(kind, key, new))

    def _generate_name(self, asked: ApiRequest, kind: ResourceKind, prefix: str) -> str:
        """Return an unused name; after eight attempts a used one, which the caller then rejects."""
        taken = self.store.table(kind.plural).objects
        for _ in range(8):
            name = prefix + self._new_uid()[:5]
            if Key(asked.namespace, name) not in taken:
                break
        return name

    def _review(self, identity: Identity, kind: ResourceKind, review: Document) -> ApiResponse:
        spec = review.get("spec", {})
        if kind.plural == "tokenreviews":
            answered = {**review, "status": self._review_token(spec.get("token", ""))}
            return _make_object_response(201, kind, msgspec.json.encode(answered))
        if (resource := spec.get("resourceAttributes")) is not None:
            question = ApiRequest(
                verb=resource.get("verb", ""),
                path="",
                kind=ResourceKind(resource.get("resource", ""), "", group=resource.get("group", "")),
                namespace=resource.get("namespace", ""),
                name=resource.get("name", ""),
                subresource=resource.get("subresource", ""),
            )
        else:
            question = ApiRequest(verb="get", path=spec.get("nonResourceAttributes", {}).get("path", ""))
        if kind.plural == "subjectaccessreviews":
            identity = Identity(spec.get("user", ""), tuple(spec.get("groups", ())))
        answered = {**review, "status": {"allowed": is_allowed(identity, question, self.store)}}
        return _make_object_response(201, kind, msgspec.json.encode(answered))

    def _review_token(self, token: str) -> Document:
        """Return the status of a token review. Raises Refusal."""
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        holder = self.tokens.get(token)
        if holder is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": {"username": holder.user, "groups": holder.groups}}

    def _update(
        self, identity: Identity, asked: ApiRequest, kind: ResourceKind, new: Document
    ) -> ApiResponse:
        meta, about = new["metadata"], kind.make_reference(asked.name)
        _check_same_name(new, asked)
        stored = self.store.table(kind.plural).objects.get(Key(asked.namespace, asked.name))
        found = stored.item["metadata"]["uid"] if stored else ""
        if (wanted := meta.get("uid")) and wanted != found:
            why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
            raise conflict(about, why)
        if stored is None and kind.requires_version:  # an update may create, with any version
            return self._create(identity, asked, kind, {**new, "metadata": {**meta, "resourceVersion": ""}})
        if stored is None:
            raise not_found(about)
        if kind.requires_version and not meta.get("resourceVersion"):
            why = "must be specified for an update"
            raise invalid(about, "metadata.resourceVersion", "Invalid", why)
        return self._write(identity, asked, kind, stored, {**new, "metadata": {**meta, "uid": found}})

    def _write(
        self, identity: Identity, asked: ApiRequest, kind: ResourceKind, stored: StoredObject, new: Document
    ) -> ApiResponse:
        old, about = stored.item, kind.make_reference(asked.name)
        _check_same_name(new, asked)
        if new["metadata"].get("resourceVersion") not in {None, "", old["metadata"]["resourceVersion"]}:
            raise conflict(about)
        kept = ("namespace", "creationTimestamp", "resourceVersion", "deletionTimestamp")
        meta = new["metadata"] | {field: old["metadata"].get(field) for field in kept}
        now = format_time(self._now())
        new = omit_empty(kind.on_update(old, {**new, "metadata": meta}, asked.subresource, now))
        if asked.resource == "certificatesigningrequests/approval":
            admit_approval(identity, new, self.store)
        if new["metadata"]["uid"] != old["metadata"]["uid"]:
            raise invalid(about, "metadata.uid", "Invalid", "field is immutable")
        kind.check_update(old, new)
        if kind == NODES and self._has_node_lifecycle:
            new = omit_empty(remove_not_ready_taint(new))
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            raw = self._remove(kind, stored.key, new)
        else:
            raw = stored.raw if new == old else self._put(kind, stored.key, new)
        return _make_object_response(200, kind, raw)

    def _delete(self, identity: Identity, asked: ApiRequest, kind: ResourceKind, body: bytes) -> ApiResponse:
        """Delete the object; one with finalizers gets a deletionTimestamp, and goes with the last of them."""
        stored = self._get_stored(asked, kind)
        options = parse_json(body) if body else {}
        preconditions = options.get("preconditions") or {} if isinstance(options, dict) else {}
        meta = stored.item["metadata"]
        for field in ("uid", "resourceVersion"):
            wanted, found = preconditions.get(field, meta[field]), meta[field]
            if wanted != found:
                why = (
                    f"the {field} in the precondition ({wanted}) does not match that in the record ({found})"
                )
                raise conflict(kind.make_reference(asked.name), why)
        if meta.get("finalizers"):
            now = format_time(self._now())
            marked = {**stored.item, "metadata": {"deletionTimestamp": now, **meta}}
            raw = stored.raw if marked == stored.item else self._put(kind, stored.key, marked)
            return _make_object_response(200, kind, raw)
        self._remove(kind, stored.key, stored.item)
        details = {"name": asked.name, "group": kind.group, "kind": kind.plural, "uid": meta["uid"]}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        present = {key: value for key, value in details.items() if value}
        return ApiResponse(200, msgspec.json.encode(status | {"details": present}))

    def _remove(self, kind: ResourceKind, key: Key, item: Document) -> bytes:
        """Delete an object; return its last state."""
        raw = msgspec.json.encode(self._stamp(item))
        self.store.delete(kind.plural, key, raw)
        return raw

    def sign_approved(self, authority: CertificateAuthority) -> None:
        """Sign approved requests without a certificate, as kube-controller-manager does."""
        for stored in self.store.table(SIGNING_REQUESTS.plural).list_namespace(""):
            if answered := sign_request(stored.item, authority, self._now()):
                self._put(SIGNING_REQUESTS, stored.key, answered)

    def _put(self, kind: ResourceKind, key: Key, new: Document) -> bytes:
        item = self._stamp(new)
        return self.store.put(kind.plural, key, item, msgspec.json.encode(item)).raw

    def _stamp(self, item: Document) -> Document:
        """Return the object with the version of the next change."""
        return item | {"metadata": item["metadata"] | {"resourceVersion": str(self.store.version + 1)}}


def _add_kind(kind: ResourceKind, raw: bytes) -> bytes:
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode() + raw[1:]


def _make_object_response(code: int, kind: ResourceKind, raw: bytes) -> ApiResponse:
    return ApiResponse(code, _add_kind(kind, raw))


def _describe_server(asked: ApiRequest) -> ApiResponse:
    if asked.path in HEALTH:
        return ApiResponse(200, b"ok", "text/plain")
    if asked.path in DOCUMENTS:
        return ApiResponse(200, DOCUMENTS[asked.path])
    raise no_such_resource()


def _check_same_name(new: Document, asked: ApiRequest) -> None:
    if (name := new["metadata"].get("name", "")) != asked.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({asked.name})"
        )
