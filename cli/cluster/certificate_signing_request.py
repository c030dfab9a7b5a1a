"""A CertificateSigningRequest of Kubernetes, including the times that csr does not need. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from libs.common.contract.node import ApiObject
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
    """The field `status`."""

    conditions: tuple[CsrCondition, ...] = ()
    certificate: str = ""


class CertificateSigningRequest(ApiObject, frozen=True, kw_only=True):
    """A CertificateSigningRequest, reduced to the fields that `explain` shows."""

    spec: SigningRequestSpec = SigningRequestSpec()
    status: CsrStatus = CsrStatus()

    @property
    def created(self) -> datetime:
        """Return the creation time, in whole seconds."""
        return self.metadata.creation_timestamp or _LONG_AGO

    @property
    def is_issued(self) -> bool:
        """Whether the signer has issued the certificate."""
        return bool(self.status.certificate)

    def find_condition(self, kind: str) -> CsrCondition | None:
        """Return the condition of this type; None if it is absent."""
        return next((one for one in self.status.conditions if one.type == kind), None)

    @property
    def signing_request(self) -> SigningRequest:
        """Return the request as the services exchange it."""
        conditions = tuple(
            SigningRequestCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
            for c in self.status.conditions
        )
        status = SigningRequestStatus(conditions=conditions, certificate=self.status.certificate)
        return trim_signing_request(SigningRequest(metadata=self.metadata, spec=self.spec, status=status))


def find_newest(requests: Iterable[CertificateSigningRequest]) -> CertificateSigningRequest | None:
    """Return the request that was created last, decided or not; None without requests."""
    return max(
        requests,
        key=lambda one: (one.created, one.signing_request.resource_version_number, one.name),
        default=None,
    )
