"""SelfSubjectAccessReviews: whether the requesting user may do something; answered and never stored."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType, field

from libs.testbed.sim_apiserver.objects import Meta, ResourceKind
from libs.testbed.sim_apiserver.refusals import Cause


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


class AccessReview(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SelfSubjectAccessReview on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: ReviewSpec = field(default_factory=ReviewSpec)
    status: ReviewStatus = field(default_factory=ReviewStatus)


def validate_review(new: AccessReview, old: Any | None) -> list[Cause]:
    """Return a cause unless exactly one of the two attributes is set."""
    attributes = (new.spec.resource_attributes, new.spec.non_resource_attributes)
    if sum(one is not UNSET for one in attributes) == 1:
        return []
    why = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
    return [Cause("FieldValueInvalid", why, "spec.resourceAttributes")]


ACCESS_REVIEWS: Final = ResourceKind(
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    AccessReview,
    group="authorization.k8s.io",
    is_stored=False,
    validate=validate_review,
)
