"""Access reviews: whether the requesting user, or another one, may do something; never stored."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType, field

from libs.testbed.sim_apiserver.objects import Meta, ResourceKind
from libs.testbed.sim_apiserver.refusals import Cause, invalid_value


class ResourceAttributes(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A request for a resource; selectors are not simulated."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class NonResourceAttributes(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A request for another URL."""

    path: str = ""
    verb: str = ""


class ReviewSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The action to review: exactly one of the two."""

    resource_attributes: ResourceAttributes | UnsetType = UNSET
    non_resource_attributes: NonResourceAttributes | UnsetType = UNSET


class ReviewStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer, without a reason."""

    allowed: bool = False


class SubjectReviewSpec(ReviewSpec, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The action of another user to review."""

    user: str = ""
    groups: list[str] = []


class AccessReview(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SelfSubjectAccessReview on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: ReviewSpec = field(default_factory=ReviewSpec)
    status: ReviewStatus = field(default_factory=ReviewStatus)


class SubjectAccessReview(AccessReview, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SubjectAccessReview on the wire."""

    spec: SubjectReviewSpec = field(default_factory=SubjectReviewSpec)


def validate_review(new: AccessReview, old: Any | None) -> list[Cause]:
    """Return a cause unless exactly one of the two attributes is set."""
    attributes = (new.spec.resource_attributes, new.spec.non_resource_attributes)
    if sum(one is not UNSET for one in attributes) == 1:
        return []
    why = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
    return [Cause("FieldValueInvalid", why, "spec.resourceAttributes")]


def validate_subject_review(new: SubjectAccessReview, old: Any | None) -> list[Cause]:
    """Return the causes of a review without a user and groups, or without an action."""
    causes = validate_review(new, old)
    if not new.spec.user and not new.spec.groups:
        causes.append(invalid_value("", "at least one of user or group must be specified", "spec.user"))
    return causes


ACCESS_REVIEWS: Final = ResourceKind(
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    AccessReview,
    group="authorization.k8s.io",
    is_stored=False,
    validate=validate_review,
)
SUBJECT_ACCESS_REVIEWS: Final = ResourceKind(
    "subjectaccessreviews",
    "SubjectAccessReview",
    SubjectAccessReview,
    group="authorization.k8s.io",
    is_stored=False,
    validate=validate_subject_review,
)
