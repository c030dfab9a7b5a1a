"""The progress of the kubelets' requests for serving certificates. Pure: times are arguments."""

from datetime import datetime

import msgspec

from cli.demo.node_progress import compute_percentile
from libs.common.contract.signing_request import SigningRequest


class _RequestProgress(msgspec.Struct):
    requested_at: datetime
    issued_at: datetime | None = None
    trouble: str = ""


class CertificateProgress:
    """The progress of one request per node."""

    def __init__(self) -> None:
        self._asked: dict[str, _RequestProgress] = {}  # by node

    def add_request(self, node: str, at: datetime) -> None:
        """Record that the kubelet creates a request."""
        self._asked[node] = _RequestProgress(at)

    def update_request(self, request: SigningRequest, at: datetime) -> None:
        """Record the current state of a request."""
        asked = self._asked.get(request.node_name)
        if asked is None:
            return
        if (request.status.issued or request.status.certificate) and asked.issued_at is None:
            asked.issued_at = at
        against = request.find_condition("Denied") or request.find_condition("Failed")
        if against is not None:
            asked.trouble = against.message

    @property
    def are_all_issued(self) -> bool:
        """Whether every requesting node has its certificate."""
        return all(asked.issued_at for asked in self._asked.values())

    @property
    def is_settled(self) -> bool:
        """Whether each request is issued or will never be."""
        return all(asked.issued_at or asked.trouble for asked in self._asked.values())

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Return the requesting nodes without a certificate, with the reason."""
        return [
            (node, asked.trouble or "timeout") for node, asked in self._asked.items() if not asked.issued_at
        ]

    @property
    def summary(self) -> str:
        """Return one line: the number of certificates and the time since the request."""
        seconds = [
            max(0.0, (asked.issued_at - asked.requested_at).total_seconds())
            for asked in self._asked.values()
            if asked.issued_at
        ]
        how_many = f"{len(seconds)} of {len(self._asked)} certificates issued"
        if not seconds:
            return how_many
        median, longest = (f"{compute_percentile(seconds, p) * 1000:,.0f} ms" for p in (50, 100))
        return f"{how_many} (p50 {median}, max {longest})"
