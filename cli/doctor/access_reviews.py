"""Queries the permissions of ServiceAccounts through access reviews, which the API server does not store."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cli.cluster.kube_reader import create_review
from cli.doctor.required_permissions import AccessReviewRequest, AccessReviewResult
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError

_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"
_SELF: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_OF_OTHERS: Final = "create subjectaccessreviews.authorization.k8s.io"


class _Allowed(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Allowed = _Allowed()


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _SelfStatus(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _User = _User()


class _SelfReview(msgspec.Struct, frozen=True):
    status: _SelfStatus = _SelfStatus()


async def review_access(
    kube: KubeApi, namespace: str, reviews: Sequence[AccessReviewRequest]
) -> tuple[AccessReviewResult, ...]:
    """Return the result of each review, for ServiceAccounts of that namespace.

    A caller that may not review others can only review itself. Raises KubeError.
    """
    if not reviews:
        return ()
    try:
        first = await _review_account(kube, namespace, reviews[0])
    except Forbidden:
        return await _review_self(kube, namespace, reviews)
    rest = await asyncio.gather(*(_review_account(kube, namespace, one) for one in reviews[1:]))
    return (first, *rest)


async def _review_account(kube: KubeApi, namespace: str, asked: AccessReviewRequest) -> AccessReviewResult:
    spec = {
        "user": f"system:serviceaccount:{namespace}:{asked.service_account}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ],
        "resourceAttributes": _build_attributes(asked),
    }
    return await _create_review(kube, "SubjectAccessReview", spec, asked)


async def _review_self(
    kube: KubeApi, namespace: str, questions: Sequence[AccessReviewRequest]
) -> tuple[AccessReviewResult, ...]:
    document = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        me = (await create_review(kube, _SELF, document, _SelfReview)).status.user_info.username
    except KubeError:
        me = ""
    found = []
    for one in questions:
        if me == f"system:serviceaccount:{namespace}:{one.service_account}":
            spec = {"resourceAttributes": _build_attributes(one)}
            found.append(await _create_review(kube, "SelfSubjectAccessReview", spec, one))
        else:
            found.append(AccessReviewResult(one, error=f"this requires permission to {_OF_OTHERS}"))
    return tuple(found)


async def _create_review(
    kube: KubeApi, kind: str, spec: dict[str, Any], asked: AccessReviewRequest
) -> AccessReviewResult:
    document = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = await create_review(kube, f"{_AUTHORIZATION}/{kind.lower()}s", document, _Review)
    return AccessReviewResult(asked, is_allowed=answer.status.allowed)


def _build_attributes(asked: AccessReviewRequest) -> dict[str, str]:
    resource, _, subresource = asked.resource.partition("/")
    said = {
        "namespace": asked.namespace,
        "verb": asked.verb,
        "group": asked.group,
        "resource": resource,
        "subresource": subresource,
        "name": asked.name,
    }
    return {key: value for key, value in said.items() if value}
