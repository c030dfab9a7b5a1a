"""Asks the API server who may do what: reviews, which it answers and does not store."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cli.doctor.ask_kubernetes import Ask
from cli.doctor.rights import Asked, Reviewed
from libs.common.kube_api.errors import Forbidden, KubeError

_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"
_SELF: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_OF_OTHERS: Final = "create subjectaccessreviews.authorization.k8s.io"


class _Allowed(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Allowed = _Allowed()


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Me(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _User = _User()


class _WhoAmI(msgspec.Struct, frozen=True):
    status: _Me = _Me()


async def review(ask: Ask, namespace: str, questions: Sequence[Asked]) -> tuple[Reviewed, ...]:
    """Of ServiceAccounts of that namespace; who may not ask about others asks about itself.

    Raises KubeError.
    """
    if not questions:
        return ()
    try:
        first = await _of_account(ask, namespace, questions[0])
    except Forbidden:
        return await _of_self(ask, namespace, questions)
    rest = await asyncio.gather(*(_of_account(ask, namespace, one) for one in questions[1:]))
    return (first, *rest)


async def _of_account(ask: Ask, namespace: str, asked: Asked) -> Reviewed:
    spec = {
        "user": f"system:serviceaccount:{namespace}:{asked.account}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ],
        "resourceAttributes": _attributes(asked),
    }
    return await _reviewed(ask, "SubjectAccessReview", spec, asked)


async def _of_self(ask: Ask, namespace: str, questions: Sequence[Asked]) -> tuple[Reviewed, ...]:
    document = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        me = (await ask.review(_SELF, document, _WhoAmI)).status.user_info.username
    except KubeError:
        me = ""
    found = []
    for one in questions:
        if me == f"system:serviceaccount:{namespace}:{one.account}":
            spec = {"resourceAttributes": _attributes(one)}
            found.append(await _reviewed(ask, "SelfSubjectAccessReview", spec, one))
        else:
            found.append(Reviewed(one, why_not=f"it takes the right to {_OF_OTHERS}"))
    return tuple(found)


async def _reviewed(ask: Ask, kind: str, spec: dict[str, Any], asked: Asked) -> Reviewed:
    document = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = await ask.review(f"{_AUTHORIZATION}/{kind.lower()}s", document, _Review)
    return Reviewed(asked, allowed=answer.status.allowed)


def _attributes(asked: Asked) -> dict[str, str]:
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
