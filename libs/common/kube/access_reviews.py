"""Asks the API server whose a bearer token is, and what a user may do. It stores none of these reviews."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from libs.common.kube.api import KubeApi
from libs.common.kube.objects import decode_answer
from libs.common.kube.request import Request

T = TypeVar("T")


class UserInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user, as an authenticator of the API server describes it."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: UserInfo = UserInfo()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


async def _create_review(
    kube: KubeApi, path: str, document: dict[str, Any], kind: type[T], deadline_seconds: float | None
) -> T:
    resource = path.rpartition("/")[2]
    body = msgspec.json.encode(document)
    request = Request(verb="create", resource=resource, method="POST", path=path, body=body)
    return decode_answer(await kube.transport.call(request, deadline_seconds=deadline_seconds), kind, request)


async def review_token(kube: KubeApi, token: str, *, deadline_seconds: float) -> UserInfo | None:
    """Return whose this token for the API server is, None if it is not valid. Raises KubeError."""
    api = "authentication.k8s.io/v1"
    document = {"apiVersion": api, "kind": "TokenReview", "spec": {"token": token}}
    path = f"/apis/{api}/tokenreviews"
    answer = await _create_review(kube, path, document, _TokenReview, deadline_seconds)
    user = answer.status.user
    return user if answer.status.authenticated and user.username else None


async def review_access(
    kube: KubeApi, user: UserInfo, attributes: Mapping[str, str], *, deadline_seconds: float | None = None
) -> bool:
    """Return whether the user may do this; `attributes` are resourceAttributes. Raises KubeError."""
    api = "authorization.k8s.io/v1"
    of_user = {"user": user.username, "groups": user.groups, "uid": user.uid, "extra": user.extra}
    spec = {**of_user, "resourceAttributes": attributes}
    document = {"apiVersion": api, "kind": "SubjectAccessReview", "spec": spec}
    answer = await _create_review(
        kube, f"/apis/{api}/subjectaccessreviews", document, _AccessReview, deadline_seconds
    )
    return answer.status.allowed and not answer.status.denied
