"""A CertificateSigningRequest as Kubernetes holds it, with the times that csr has no use for. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.contract.signing_request import (
    SigningRequest,
    SigningRequestCondition,
    SigningRequestSpec,
    SigningRequestStatus,
    trim_signing_request,
)

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class CsrCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One element of status.conditions."""

    type: str
    status: str = "True"
    reason: str = ""
    message: str = ""
    last_update_time: datetime | None = None


class CsrStatus(msgspec.Struct, frozen=True, kw_only=True):
    """status."""

    conditions: tuple[CsrCondition, ...] = ()
    certificate: str = ""


class CertificateSigningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The object, as far as it can be explained."""

    metadata: ObjectMeta
    spec: SigningRequestSpec = SigningRequestSpec()
    status: CsrStatus = CsrStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def created(self) -> datetime:
        """When it was filed, in whole seconds."""
        return self.metadata.creation_timestamp or _LONG_AGO

    @property
    def is_issued(self) -> bool:
        """Whether the signer has signed."""
        return bool(self.status.certificate)

    def find_condition(self, kind: str) -> CsrCondition | None:
        """The condition of that type, None when it is absent."""
        return next((one for one in self.status.conditions if one.type == kind), None)

    @property
    def signing_request(self) -> SigningRequest:
        """The same as it travels between the services."""
        conditions = tuple(
            SigningRequestCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
            for c in self.status.conditions
        )
        status = SigningRequestStatus(conditions=conditions, certificate=self.status.certificate)
        return trim_signing_request(SigningRequest(metadata=self.metadata, spec=self.spec, status=status))


def find_newest(requests: Iterable[CertificateSigningRequest]) -> CertificateSigningRequest | None:
    """The request that was filed last, decided or not."""
    return max(
        requests,
        key=lambda one: (one.created, one.signing_request.resource_version_number, one.name),
        default=None,
    )
