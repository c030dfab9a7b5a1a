"""The verbs of the API on the store: admission, defaults, validation, preconditions, write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from libs.testbed.pki import CertificateAuthority
from libs.testbed.sim_apiserver.access_reviews import AccessReview, ReviewStatus, SubjectReviewSpec
from libs.testbed.sim_apiserver.api_request import (
    KINDS,
    ApiRequest,
    check_container,
    check_request,
    parse_number,
)
from libs.testbed.sim_apiserver.authorization import Identity, admit, authorize, is_allowed
from libs.testbed.sim_apiserver.certificate_signer import sign_request
from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS
from libs.testbed.sim_apiserver.discovery import DOCUMENTS, HEALTH
from libs.testbed.sim_apiserver.kubectl_tables import has_table, render_table
from libs.testbed.sim_apiserver.listing import list_objects
from libs.testbed.sim_apiserver.nodes import Node, remove_not_ready_taint
from libs.testbed.sim_apiserver.object_store import Key, ObjectStore, StoredObject
from libs.testbed.sim_apiserver.objects import Caller, FinalizedMeta, Meta, ResourceKind
from libs.testbed.sim_apiserver.refusals import (
    Refusal,
    already_exists,
    bad_request,
    conflict,
    invalid,
    invalid_value,
    method_not_allowed,
    no_such_resource,
    not_found,
    required_value,
)
from libs.testbed.sim_apiserver.request_admission import admit_request
from libs.testbed.sim_apiserver.request_bodies import parse_json, parse_object, patch_object
from libs.testbed.sim_apiserver.workloads import NAMESPACES, Pod, make_namespace

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
        history_limit: int = 10_000,
        has_node_lifecycle: bool = False,
    ) -> None:
        """`has_node_lifecycle`: a Node that becomes Ready loses its not-ready taint in the same write."""
        self.store = ObjectStore((kind.plural for kind in KINDS), history_limit=history_limit)
        self._now = now
        self._new_uid = new_uid
        self._has_node_lifecycle = has_node_lifecycle
        for name in _NAMESPACES:
            metadata = Meta(name=name, uid=new_uid(), creation_timestamp=_format_time(now()))
            self._put(NAMESPACES, Key("", name), make_namespace(metadata))

    def handle(self, identity: Identity, request: ApiRequest, body: bytes, content_type: str) -> ApiResponse:
        """Carry out the request. Raises Refusal."""
        authorize(identity, request, self.store)
        if request.kind is None:
            return _describe_server(request)
        kind = check_request(request)
        if request.namespace and request.verb == "create":
            self._check_namespace(request)
        match request.verb:
            case "get":
                return ApiResponse(200, self.encode_object(request, kind, self._get_stored(request, kind)))
            case "list":
                return ApiResponse(200, list_objects(self.store, request, kind, self._now()))
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
                return self._delete(request, kind, body)
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
        pod: Pod = self._get_stored(asked, check_container(asked)).item
        names = [each.name for each in pod.spec.containers]
        if container and container not in names:
            raise bad_request(f"container {container} is not valid for pod {asked.name}")
        return container or names[0]

    def encode_object(self, request: ApiRequest, kind: ResourceKind, stored: StoredObject) -> bytes:
        """Encode a single object, with kind and apiVersion, which items of lists do not have."""
        if request.as_table and has_table(kind):
            return render_table(kind, [stored.item], {"resourceVersion": str(stored.version)}, self._now())
        return _add_kind(kind, stored.raw)

    def _check_namespace(self, asked: ApiRequest) -> None:
        if Key("", asked.namespace) not in self.store.table(NAMESPACES.plural).objects:
            raise Refusal(404, "NotFound", f'namespaces "{asked.namespace}" not found')

    def _get_stored(self, asked: ApiRequest, kind: ResourceKind) -> StoredObject:
        found = self.store.table(kind.plural).objects.get(Key(asked.namespace, asked.name))
        if found is None:
            raise not_found(kind.make_reference(asked.name))
        return found

    def _create(self, identity: Identity, asked: ApiRequest, kind: ResourceKind, new: Any) -> ApiResponse:
        meta = new.metadata
        name = meta.name or (meta.generate_name and self._generate_name(asked, kind, meta.generate_name))
        if meta.resource_version:
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if not name:
            cause = required_value("metadata.name", "name or generateName is required")
            raise invalid(kind.qualified_name, kind.make_reference(), [cause])
        if meta.namespace not in {"", asked.namespace}:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        caller = self._make_caller(identity)
        meta = replace(
            meta, name=name, namespace=asked.namespace, uid=self._new_uid(), creation_timestamp=caller.now
        )
        new = kind.on_create(replace(new, metadata=meta), caller)
        admit(identity, asked, new, None)
        admit_request(identity, asked, new, self.store)
        if causes := kind.validate(new, None):
            raise invalid(kind.qualified_name, kind.make_reference(name), causes)
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

    def _review(self, identity: Identity, kind: ResourceKind, review: AccessReview) -> ApiResponse:
        if causes := kind.validate(review, None):
            raise invalid(f".{kind.group}", kind.make_reference(), causes)
        resource, other = review.spec.resource_attributes, review.spec.non_resource_attributes
        if resource is not UNSET:
            about = ResourceKind(plural=resource.resource, kind="", group=resource.group, model=object)
            question = ApiRequest(
                verb=resource.verb,
                path="",
                kind=about,
                namespace=resource.namespace,
                name=resource.name,
                subresource=resource.subresource,
            )
        else:
            question = ApiRequest(verb="get", path=other.path if other is not UNSET else "")
        if isinstance(review.spec, SubjectReviewSpec):
            identity = Identity(review.spec.user, tuple(review.spec.groups))
        allowed = is_allowed(identity, question, self.store)
        answered = replace(review, status=ReviewStatus(allowed))
        return _make_object_response(201, kind, msgspec.json.encode(answered))

    def _update(self, identity: Identity, asked: ApiRequest, kind: ResourceKind, new: Any) -> ApiResponse:
        meta = new.metadata
        if meta.name != asked.name:
            raise _reject_other_name(meta.name, asked.name)
        stored = self.store.table(kind.plural).objects.get(Key(asked.namespace, asked.name))
        found = stored.item.metadata.uid if stored else ""
        if meta.uid and meta.uid != found:
            why = f"Precondition failed: UID in precondition: {meta.uid}, UID in object meta: {found}"
            raise conflict(kind.make_reference(asked.name), why)
        if stored is None and kind.requires_version:  # an update may create, with any version
            return self._create(
                identity, asked, kind, replace(new, metadata=replace(meta, resource_version=""))
            )
        if stored is None:
            raise not_found(kind.make_reference(asked.name))
        if kind.requires_version and not meta.resource_version:
            cause = invalid_value(0, "must be specified for an update", "metadata.resourceVersion")
            raise invalid(kind.qualified_name, kind.make_reference(asked.name), [cause])
        return self._write(identity, asked, kind, stored, replace(new, metadata=replace(meta, uid=found)))

    def _write(
        self, identity: Identity, asked: ApiRequest, kind: ResourceKind, stored: StoredObject, new: Any
    ) -> ApiResponse:
        old, meta = stored.item, new.metadata
        if meta.name != asked.name:
            raise _reject_other_name(meta.name, asked.name)
        if meta.namespace not in {"", asked.namespace}:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if meta.resource_version not in {"", old.metadata.resource_version}:
            raise conflict(kind.make_reference(asked.name))
        kept = {
            "namespace": asked.namespace,
            "creation_timestamp": old.metadata.creation_timestamp,
            "resource_version": old.metadata.resource_version,
        }
        if isinstance(old.metadata, FinalizedMeta):
            kept["deletion_timestamp"] = old.metadata.deletion_timestamp
        new = kind.on_update(
            old, replace(new, metadata=replace(meta, **kept)), asked.subresource, self._make_caller(identity)
        )
        admit(identity, asked, new, old)
        admit_request(identity, asked, new, self.store)
        if causes := kind.validate(new, old):
            raise invalid(kind.qualified_name, kind.make_reference(asked.name), causes)
        if _is_finalized(new.metadata):
            return _make_object_response(200, kind, self._remove(kind, stored.key, new))
        if self._has_node_lifecycle and isinstance(new, Node):
            new = remove_not_ready_taint(new)
        raw = stored.raw if new == old else self._put(kind, stored.key, new)
        return _make_object_response(200, kind, raw)

    def _delete(self, asked: ApiRequest, kind: ResourceKind, body: bytes) -> ApiResponse:
        stored = self._get_stored(asked, kind)
        options = parse_json(body) if body else {}
        preconditions = options.get("preconditions") or {} if isinstance(options, dict) else {}
        meta = stored.item.metadata
        for field, name, found in (
            ("uid", "UID", meta.uid),
            ("resourceVersion", "ResourceVersion", meta.resource_version),
        ):
            wanted = preconditions.get(field, found)
            if wanted != found:
                why = (
                    f"the {name} in the precondition ({wanted}) does not match the {name} in record ({found})"
                )
                raise conflict(kind.make_reference(asked.name), why)
        if isinstance(meta, FinalizedMeta) and meta.finalizers:
            ends = replace(meta, deletion_timestamp=meta.deletion_timestamp or _format_time(self._now()))
            marked = replace(stored.item, metadata=ends)
            raw = stored.raw if ends == meta else self._put(kind, stored.key, marked)
            return _make_object_response(200, kind, raw)
        self._remove(kind, stored.key, stored.item)
        details = {"name": asked.name, "group": kind.group, "kind": kind.plural, "uid": meta.uid}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        present = {key: value for key, value in details.items() if value}
        return ApiResponse(200, msgspec.json.encode(status | {"details": present}))

    def _remove(self, kind: ResourceKind, key: Key, item: Any) -> bytes:
        """Delete an object; return its last state."""
        version = str(self.store.version + 1)
        raw = msgspec.json.encode(replace(item, metadata=replace(item.metadata, resource_version=version)))
        self.store.delete(kind.plural, key, raw)
        return raw

    def _make_caller(self, identity: Identity) -> Caller:
        return Caller(identity.user, identity.groups, _format_time(self._now()))

    def sign_approved(self, authority: CertificateAuthority) -> None:
        """Sign approved requests without a certificate, as kube-controller-manager does."""
        for stored in self.store.table(SIGNING_REQUESTS.plural).list_namespace(""):
            if answered := sign_request(stored.item, authority, self._now()):
                self._put(SIGNING_REQUESTS, stored.key, answered)

    def _put(self, kind: ResourceKind, key: Key, new: Any) -> bytes:
        version = str(self.store.version + 1)
        item = replace(new, metadata=replace(new.metadata, resource_version=version))
        return self.store.put(kind.plural, key, item, msgspec.json.encode(item)).raw


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_finalized(meta: Meta) -> bool:
    """Whether an update removed the last finalizer of an object that was deleted."""
    return isinstance(meta, FinalizedMeta) and bool(meta.deletion_timestamp) and not meta.finalizers


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


def _reject_other_name(name: str, asked: str) -> Refusal:
    return bad_request(f"the name of the object ({name}) does not match the name on the URL ({asked})")
