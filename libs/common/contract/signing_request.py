"""The fields of a CertificateSigningRequest that this project reads, as in certificates/v1."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.contract.node import ApiObject

KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"  # the signer of kubelets' serving certificates
NODE_USER_PREFIX: Final = "system:node:"  # prefix of the user name of a node
NODES_GROUP: Final = "system:nodes"

# Bytes of PEM. A kubelet's request has about 600. A larger one is published without the PEM, and never
# approved.
REQUEST_LIMIT: Final = 32 * 1024
# What csr writes into conditions, in the words of the reference: dashboards and operators search for them.
APPROVED_REASON: Final = "Approved by TalosCloudControllerManager"
APPROVED_MESSAGE: Final = "This CSR was approved by Talos Cloud Controller Manager"
DENIED_MESSAGE: Final = "This CSR was denied by Talos Cloud Controller Manager, Reason"
_PREFIXES: Final = re.compile(f"^(?:{APPROVED_MESSAGE}|{DENIED_MESSAGE}): ")
_FINAL: Final = frozenset({"Approved", "Denied", "Failed"})


class SigningRequestSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The spec. The API server sets username and groups; the requester sets the other fields."""

    request: bytes = b""  # PEM; base64 on the wire
    signer_name: str = ""
    username: str = ""
    groups: tuple[str, ...] = ()
    usages: tuple[str, ...] = ()
    expiration_seconds: int | None = None


class SigningRequestCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One element of status.conditions."""

    type: str
    status: str = "True"
    reason: str = ""
    message: str = ""


class SigningRequestStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status; instead of `certificate`, only `issued` is published, which Kubernetes does not have."""

    conditions: tuple[SigningRequestCondition, ...] = ()
    certificate: str = ""
    issued: bool = False

    @property
    def is_issued(self) -> bool:
        """Whether the signer has issued the certificate."""
        return self.issued or bool(self.certificate)


class SigningRequest(ApiObject, frozen=True, kw_only=True):
    """A CertificateSigningRequest as the API server encodes it in a list or a watch event."""

    spec: SigningRequestSpec = SigningRequestSpec()
    status: SigningRequestStatus = SigningRequestStatus()

    @property
    def node_name(self) -> str:
        """The name of the requesting node, "" if the requester is not a node."""
        username = self.spec.username
        name = username.removeprefix(NODE_USER_PREFIX)
        return "" if name == username else name

    @property
    def is_kubelet_serving(self) -> bool:
        """Whether a node requests a serving certificate; other requests are ignored."""
        return self.spec.signer_name == KUBELET_SERVING and bool(self.node_name)

    @property
    def is_requested_by_node(self) -> bool:
        """Whether the requester is a node: other users may have such a name (OIDC without a prefix)."""
        return bool(self.node_name) and NODES_GROUP in self.spec.groups

    @property
    def is_pending(self) -> bool:
        """Whether the request has not been decided yet."""
        return not self.status.is_issued and not any(c.type in _FINAL for c in self.status.conditions)

    @property
    def is_awaiting_certificate(self) -> bool:
        """Whether the request is approved, and the signer has not answered yet."""
        is_approved = self.find_condition("Approved") is not None
        return is_approved and not self.status.is_issued and self.find_condition("Failed") is None

    def find_condition(self, kind: str) -> SigningRequestCondition | None:
        """Return the condition of that type, None if it is absent."""
        return next((c for c in self.status.conditions if c.type == kind), None)


def strip_prefix(message: str) -> str:
    """Return the part of a message of csr that differs from request to request; any other message whole."""
    return _PREFIXES.sub("", message)


_NONE: Final[Mapping[str, str]] = {}


def trim_signing_request(request: SigningRequest) -> SigningRequest:
    """Return the request for publishing, without labels, annotations, certificate and oversized PEM."""
    status = request.status
    return msgspec.structs.replace(
        request,
        metadata=msgspec.structs.replace(request.metadata, labels=_NONE, annotations=_NONE),
        spec=msgspec.structs.replace(
            request.spec, request=request.spec.request if len(request.spec.request) <= REQUEST_LIMIT else b""
        ),
        status=msgspec.structs.replace(status, certificate="", issued=status.is_issued),
    )
