"""Each verb over the store: admission, defaults, validation, preconditions, then the write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from libs.testbed.pki import Authority
from libs.testbed.sim_apiserver.access_reviews import AccessReview, ReviewStatus
from libs.testbed.sim_apiserver.asked import KINDS, Asked, check, number
from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS
from libs.testbed.sim_apiserver.discovery import DOCUMENTS, HEALTH
from libs.testbed.sim_apiserver.listing import listed
from libs.testbed.sim_apiserver.objects import Caller, Kind
from libs.testbed.sim_apiserver.reading import patched, read_json, read_object
from libs.testbed.sim_apiserver.refusals import (
    Cause,
    Refusal,
    already_exists,
    bad_request,
    conflict,
    invalid,
    method_not_allowed,
    no_such_resource,
    not_found,
)
from libs.testbed.sim_apiserver.request_admission import admit_request
from libs.testbed.sim_apiserver.rights import Identity, admit, authorize, may
from libs.testbed.sim_apiserver.signing import answer_request
from libs.testbed.sim_apiserver.store import Key, Store, Stored
from libs.testbed.sim_apiserver.tables import has_table, table

NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")  # as in a new cluster


class Answer(msgspec.Struct, frozen=True):
    """What a request that is no watch is answered with."""

    code: int
    body: bytes
    content_type: str = "application/json"


class Api:
    """The server without its HTTP; `now` in UTC and `new_uid` are its only outside."""

    def __init__(
        self, *, now: Callable[[], datetime], new_uid: Callable[[], str], history_limit: int = 10_000
    ) -> None:
        self.store = Store((kind.plural for kind in KINDS), history_limit=history_limit)
        self._now = now
        self._new_uid = new_uid

    def answer(self, identity: Identity, asked: Asked, body: bytes, content_type: str) -> Answer:
        """Do it. Raises Refusal."""
        authorize(identity, asked, self.store)
        if asked.kind is None:
            return _about_the_server(asked)
        kind = check(asked)
        if kind.namespaced and asked.namespace and asked.namespace not in NAMESPACES:
            self._refuse_namespace(asked)
        match asked.verb:
            case "get":
                return Answer(200, self.told(asked, kind, self._stored(asked, kind)))
            case "list":
                return Answer(200, listed(self.store, asked, kind, self._now()))
            case "create" if not kind.stored:
                return self._review(identity, kind, read_object(kind, body))
            case "create":
                return self._create(identity, asked, kind, read_object(kind, body))
            case "update":
                return self._update(identity, asked, kind, read_object(kind, body))
            case "patch":
                stored = self._stored(asked, kind)
                new = patched(kind, stored, body, content_type)
                return self._write(identity, asked, kind, stored, new)
            case "delete" if not asked.subresource:
                return self._delete(asked, kind, body)
            case _:
                raise method_not_allowed()

    def open_watch(self, identity: Identity, asked: Asked) -> tuple[Kind, int, list[Stored]]:
        """The version to tell from, and what there is already if none was named. Raises Refusal."""
        authorize(identity, asked, self.store)
        kind = check(asked)
        since = number(asked, "resourceVersion")
        if since:
            return kind, since, []
        return kind, self.store.version, list(self.store.table(kind.plural).of(asked.namespace))

    def told(self, asked: Asked, kind: Kind, stored: Stored) -> bytes:
        """An object as it stands alone: lists carry it without kind and apiVersion."""
        if asked.as_table and has_table(kind):
            return table(kind, [stored.item], {"resourceVersion": str(stored.version)}, self._now())
        return _with_kind(kind, stored.raw)

    def _refuse_namespace(self, asked: Asked) -> None:
        if asked.verb == "create":
            raise Refusal(404, "NotFound", f'namespaces "{asked.namespace}" not found')

    def _stored(self, asked: Asked, kind: Kind) -> Stored:
        found = self.store.table(kind.plural).objects.get(Key(asked.namespace, asked.name))
        if found is None:
            raise not_found(kind.named(asked.name))
        return found

    def _create(self, identity: Identity, asked: Asked, kind: Kind, new: Any) -> Answer:
        meta = new.metadata
        name = meta.name or (meta.generate_name and self._generated(asked, kind, meta.generate_name))
        if meta.resource_version:
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if not name:
            cause = Cause(
                "FieldValueRequired", "Required value: name or generateName is required", "metadata.name"
            )
            raise invalid(kind.qualified, kind.named(), [cause])
        if meta.namespace not in {"", asked.namespace}:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        caller = self._caller(identity)
        meta = replace(
            meta, name=name, namespace=asked.namespace, uid=self._new_uid(), creation_timestamp=caller.now
        )
        new = kind.created(replace(new, metadata=meta), caller)
        admit(identity, asked, new, None)
        admit_request(identity, asked, new, self.store)
        if causes := kind.invalid(new, None):
            raise invalid(kind.qualified, kind.named(name), causes)
        key = Key(asked.namespace, name)
        if key in self.store.table(kind.plural).objects:
            raise already_exists(kind.named(name))
        return _object(201, kind, self._put(kind, key, new))

    def _generated(self, asked: Asked, kind: Kind, prefix: str) -> str:
        """A name that is free, unless eight tries found none; then it is refused as one that exists."""
        taken = self.store.table(kind.plural).objects
        for _ in range(8):
            name = prefix + self._new_uid()[:5]
            if Key(asked.namespace, name) not in taken:
                break
        return name

    def _review(self, identity: Identity, kind: Kind, review: AccessReview) -> Answer:
        if causes := kind.invalid(review, None):
            raise invalid(f".{kind.group}", kind.named(), causes)
        resource, other = review.spec.resource_attributes, review.spec.non_resource_attributes
        if resource is not UNSET:
            about = Kind(plural=resource.resource, kind="", group=resource.group, model=object)
            question = Asked(
                verb=resource.verb,
                path="",
                kind=about,
                namespace=resource.namespace,
                name=resource.name,
                subresource=resource.subresource,
            )
        else:
            question = Asked(verb="get", path=other.path if other is not UNSET else "")
        allowed = may(identity, question, self.store)
        answered = replace(review, status=ReviewStatus(allowed))
        return _object(201, kind, msgspec.json.encode(answered))

    def _update(self, identity: Identity, asked: Asked, kind: Kind, new: Any) -> Answer:
        meta = new.metadata
        if meta.name != asked.name:
            raise _other_name(meta.name, asked.name)
        stored = self.store.table(kind.plural).objects.get(Key(asked.namespace, asked.name))
        found = stored.item.metadata.uid if stored else ""
        if meta.uid and meta.uid != found:
            told = f"Precondition failed: UID in precondition: {meta.uid}, UID in object meta: {found}"
            raise conflict(kind.named(asked.name), told)
        if stored is None and kind.version_required:  # an update may create, and no version hinders it
            return self._create(
                identity, asked, kind, replace(new, metadata=replace(meta, resource_version=""))
            )
        if stored is None:
            raise not_found(kind.named(asked.name))
        if kind.version_required and not meta.resource_version:
            told = "Invalid value: 0: must be specified for an update"
            cause = Cause("FieldValueInvalid", told, "metadata.resourceVersion")
            raise invalid(kind.qualified, kind.named(asked.name), [cause])
        return self._write(identity, asked, kind, stored, replace(new, metadata=replace(meta, uid=found)))

    def _write(self, identity: Identity, asked: Asked, kind: Kind, stored: Stored, new: Any) -> Answer:
        old, meta = stored.item, new.metadata
        if meta.name != asked.name:
            raise _other_name(meta.name, asked.name)
        if meta.namespace not in {"", asked.namespace}:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if meta.resource_version not in {"", old.metadata.resource_version}:
            raise conflict(kind.named(asked.name))
        kept = {
            "namespace": asked.namespace,
            "creation_timestamp": old.metadata.creation_timestamp,
            "resource_version": old.metadata.resource_version,
        }
        new = kind.updated(
            old, replace(new, metadata=replace(meta, **kept)), asked.subresource, self._caller(identity)
        )
        admit(identity, asked, new, old)
        admit_request(identity, asked, new, self.store)
        if causes := kind.invalid(new, old):
            raise invalid(kind.qualified, kind.named(asked.name), causes)
        raw = stored.raw if new == old else self._put(kind, stored.key, new)
        return _object(200, kind, raw)

    def _delete(self, asked: Asked, kind: Kind, body: bytes) -> Answer:
        stored = self._stored(asked, kind)
        options = read_json(body) if body else {}
        preconditions = options.get("preconditions") or {} if isinstance(options, dict) else {}
        meta = stored.item.metadata
        for field, name, found in (
            ("uid", "UID", meta.uid),
            ("resourceVersion", "ResourceVersion", meta.resource_version),
        ):
            wanted = preconditions.get(field, found)
            if wanted != found:
                told = (
                    f"the {name} in the precondition ({wanted}) does not match the {name} in record ({found})"
                )
                raise conflict(kind.named(asked.name), told)
        version = str(self.store.version + 1)
        last = replace(stored.item, metadata=replace(meta, resource_version=version))
        self.store.delete(kind.plural, stored.key, msgspec.json.encode(last))
        details = {"name": asked.name, "group": kind.group, "kind": kind.plural, "uid": meta.uid}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        told_of = {key: value for key, value in details.items() if value}
        return Answer(200, msgspec.json.encode(status | {"details": told_of}))

    def _caller(self, identity: Identity) -> Caller:
        return Caller(identity.user, identity.groups, self._now().strftime("%Y-%m-%dT%H:%M:%SZ"))

    def sign(self, authority: Authority) -> None:
        """What kube-controller-manager does: sign what was approved and has no certificate yet."""
        for stored in self.store.table(SIGNING_REQUESTS.plural).of(""):
            if answered := answer_request(stored.item, authority, self._now()):
                self._put(SIGNING_REQUESTS, stored.key, answered)

    def _put(self, kind: Kind, key: Key, new: Any) -> bytes:
        version = str(self.store.version + 1)
        item = replace(new, metadata=replace(new.metadata, resource_version=version))
        return self.store.put(kind.plural, key, item, msgspec.json.encode(item)).raw


def _with_kind(kind: Kind, raw: bytes) -> bytes:
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode() + raw[1:]


def _object(code: int, kind: Kind, raw: bytes) -> Answer:
    return Answer(code, _with_kind(kind, raw))


def _about_the_server(asked: Asked) -> Answer:
    if asked.path in HEALTH:
        return Answer(200, b"ok", "text/plain")
    if asked.path in DOCUMENTS:
        return Answer(200, DOCUMENTS[asked.path])
    raise no_such_resource()


def _other_name(name: str, asked: str) -> Refusal:
    return bad_request(f"the name of the object ({name}) does not match the name on the URL ({asked})")
