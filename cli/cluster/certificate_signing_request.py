"""A CertificateSigningRequest of Kubernetes, including the times that csr does not need. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from libs.common.contract.signing_request import (
    SigningRequest,
    SigningRequestCondition,
    SigningRequestStatus,
    trim_signing_request,
)

RequestPhase = Literal["pending", "approved", "denied", "failed"]
_PHASES: Final[Mapping[str, RequestPhase]] = {"Denied": "denied", "Failed": "failed", "Approved": "approved"}
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class CsrCondition(SigningRequestCondition, frozen=True, kw_only=True, rename="camel"):
    """One element of status.conditions."""

    last_update_time: datetime | None = None


class CsrStatus(SigningRequestStatus, frozen=True, kw_only=True):
    """The field `status`."""

    conditions: tuple[CsrCondition, ...] = ()


class CertificateSigningRequest(SigningRequest, frozen=True, kw_only=True):
    """A CertificateSigningRequest with the fields that commands show."""

    status: CsrStatus = CsrStatus()

    @property
    def created(self) -> datetime:
        """Return the creation time, in whole seconds."""
        return self.metadata.creation_timestamp or _LONG_AGO

    def find_condition(self, kind: str) -> CsrCondition | None:
        """Return the condition of this type; None if it is absent."""
        return next((one for one in self.status.conditions if one.type == kind), None)

    @property
    def phase(self) -> tuple[RequestPhase, CsrCondition | None]:
        """Return what has been decided, and the condition that says so."""
        for kind, phase in _PHASES.items():
            if condition := self.find_condition(kind):
                return phase, condition
        return "approved" if self.status.is_issued else "pending", None

    @property
    def signing_request(self) -> SigningRequest:
        """Return the request as the services exchange it."""
        return trim_signing_request(self)


def get_filing_order(request: CertificateSigningRequest) -> tuple[datetime, int, str]:
    """Return a key that sorts requests by their age, the oldest first."""
    return (request.created, request.resource_version_number, request.name)


def find_newest(requests: Iterable[CertificateSigningRequest]) -> CertificateSigningRequest | None:
    """Return the request that was created last, decided or not; None without requests."""
    return max(requests, key=get_filing_order, default=None)
