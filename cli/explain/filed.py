"""A CertificateSigningRequest as Kubernetes holds it, with the times that csr has no use for. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from libs.common.node import ObjectMeta
from libs.common.signing_request import (
    SigningRequest,
    SigningRequestCondition,
    SigningRequestSpec,
    SigningRequestStatus,
    trim_signing_request,
)

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One element of status.conditions."""

    type: str
    status: str = "True"
    reason: str = ""
    message: str = ""
    last_update_time: datetime | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """status."""

    conditions: tuple[Condition, ...] = ()
    certificate: str = ""


class Filed(msgspec.Struct, frozen=True, kw_only=True):
    """The object, as far as it can be explained."""

    metadata: ObjectMeta
    spec: SigningRequestSpec = SigningRequestSpec()
    status: Status = Status()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def created(self) -> datetime:
        """When it was filed, in whole seconds."""
        return self.metadata.creation_timestamp or _LONG_AGO

    @property
    def issued(self) -> bool:
        """Whether the signer has signed."""
        return bool(self.status.certificate)

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, None when it is absent."""
        return next((one for one in self.status.conditions if one.type == kind), None)

    @property
    def request(self) -> SigningRequest:
        """The same as it travels between the services."""
        conditions = tuple(
            SigningRequestCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
            for c in self.status.conditions
        )
        status = SigningRequestStatus(conditions=conditions, certificate=self.status.certificate)
        return trim_signing_request(SigningRequest(metadata=self.metadata, spec=self.spec, status=status))


def newest(requests: Iterable[Filed]) -> Filed | None:
    """The request that was filed last, decided or not."""
    return max(
        requests, key=lambda one: (one.created, one.request.resource_version_number, one.name), default=None
    )
