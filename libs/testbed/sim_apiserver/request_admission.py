"""Admission of certificate requests and of their approvals."""

from __future__ import annotations

from typing import Final

from libs.testbed.sim_apiserver.api_request import ApiRequest
from libs.testbed.sim_apiserver.authorization import NODE_USER, Identity, is_allowed
from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS, SigningRequest
from libs.testbed.sim_apiserver.object_store import ObjectStore
from libs.testbed.sim_apiserver.objects import ResourceKind
from libs.testbed.sim_apiserver.refusals import forbidden
from libs.testbed.sim_apiserver.request_pem import get_common_name, get_organizations, parse_request_pem

_OF_KUBELETS: Final = {"kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"}
_OF_CLIENTS: Final = "kubernetes.io/kube-apiserver-client"
_SIGNERS: Final = ResourceKind("signers", "", object, group=SIGNING_REQUESTS.group)


def admit_request(identity: Identity, asked: ApiRequest, new: object, store: ObjectStore) -> None:
    """NodeRestriction, CertificateSubjectRestriction, CertificateApproval. Raises Refusal."""
    if not isinstance(new, SigningRequest):
        return
    if asked.subresource == "approval":
        _admit_approval(identity, new, store)
    elif asked.verb == "create":
        _admit_new(identity, new)


def _admit_approval(identity: Identity, new: SigningRequest, store: ObjectStore) -> None:
    signer = new.spec.signer_name
    names = (signer, f"{signer.partition('/')[0]}/*")
    if not any(
        is_allowed(identity, ApiRequest(verb="approve", path="", kind=_SIGNERS, name=one), store)
        for one in names
    ):
        about = SIGNING_REQUESTS.make_reference(new.metadata.name)
        raise forbidden(about, f'user not permitted to approve requests with signerName "{signer}"')


def _admit_new(identity: Identity, new: SigningRequest) -> None:
    signer, about = new.spec.signer_name, SIGNING_REQUESTS.make_reference(new.metadata.name)
    try:
        csr = parse_request_pem(new.spec.request)
    except ValueError as error:
        if identity.node and signer in _OF_KUBELETS:
            raise forbidden(about, f"unable to parse csr: {error}") from error
        return  # validation reports it
    own = f"{NODE_USER}{identity.node}"
    if identity.node and signer in _OF_KUBELETS and get_common_name(csr) != own:
        raise forbidden(about, f"can only create a node CSR with CN={own}")
    if signer == _OF_CLIENTS and "system:masters" in get_organizations(csr):
        raise forbidden(about, f"use of {signer} signer with system:masters group is not allowed")
