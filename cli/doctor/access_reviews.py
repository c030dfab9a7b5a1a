"""Queries the permissions of ServiceAccounts through access reviews, which the API server does not store."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cli.doctor.required_permissions import AccessReview
from libs.common.kube.access_reviews import create_review
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError

_OF_OTHERS: Final = "create subjectaccessreviews.authorization.k8s.io"


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    allowed: bool = False
    user_info: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


async def review_access(
    kube: KubeApi, namespace: str, reviews: Sequence[AccessReview]
) -> tuple[AccessReview, ...]:
    """Return the reviews with their answers, for ServiceAccounts of that namespace.

    A caller that may not review others can only review itself. Raises KubeError.
    """
    if not reviews:
        return ()

    async def review_account(asked: AccessReview) -> AccessReview:
        account, groups = "system:serviceaccount", "system:serviceaccounts"
        spec = {
            "user": f"{account}:{namespace}:{asked.service_account}",
            "groups": [groups, f"{groups}:{namespace}", "system:authenticated"],
        }
        return await _review(kube, "SubjectAccessReview", spec, asked)

    try:
        first = await review_account(reviews[0])
    except Forbidden:
        return await _review_self(kube, namespace, reviews)
    return (first, *await asyncio.gather(*map(review_account, reviews[1:])))


async def _review_self(
    kube: KubeApi, namespace: str, reviews: Sequence[AccessReview]
) -> tuple[AccessReview, ...]:
    try:
        me = (await _create(kube, "authentication", "SelfSubjectReview", {})).user_info.username
    except KubeError:
        me = ""
    return tuple(
        [
            await _review(kube, "SelfSubjectAccessReview", {}, one)
            if me == f"system:serviceaccount:{namespace}:{one.service_account}"
            else replace(one, error=f"this requires permission to {_OF_OTHERS}")
            for one in reviews
        ]
    )


async def _review(kube: KubeApi, kind: str, subject: dict[str, Any], asked: AccessReview) -> AccessReview:
    spec = {**subject, "resourceAttributes": asked.attributes}
    status = await _create(kube, "authorization", kind, {"spec": spec})
    return replace(asked, is_allowed=status.allowed)


async def _create(kube: KubeApi, group: str, kind: str, fields: dict[str, Any]) -> _Status:
    api = f"{group}.k8s.io/v1"
    document = {"apiVersion": api, "kind": kind, **fields}
    return (await create_review(kube, f"/apis/{api}/{kind.lower()}s", document, _Review)).status
