"""What we read of a CertificateSigningRequest, and what of it is published."""

import msgspec
import pytest

from libs.common.contract.signing_request import (
    REQUEST_LIMIT,
    SigningRequest,
    SigningRequestCondition,
    is_same_request,
    trim_signing_request,
)
from tests.builders import make_request

FROM_KUBERNETES = b"""{"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
 "metadata": {"name": "csr-x", "uid": "u", "resourceVersion": "7", "managedFields": [], "labels": {"a": "b"}},
 "spec": {"request": "LS0tLS1CRUdJTg==", "signerName": "kubernetes.io/kubelet-serving",
  "username": "system:node:web-1", "uid": "1", "groups": ["system:nodes"], "extra": {"x": ["y"]},
  "usages": ["server auth"], "expirationSeconds": 600},
 "status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "lastUpdateTime": null}],
  "certificate": "LS0tLS1CRUdJTg=="}}"""


def test_a_request_decodes_from_what_the_api_server_says():
    request = msgspec.json.decode(FROM_KUBERNETES, type=SigningRequest)
    assert request.spec.request == b"-----BEGIN"
    assert (request.node_name, request.resource_version_number, request.spec.expiration_seconds) == (
        "web-1",
        7,
        600,
    )
    assert request.is_kubelet_serving
    assert not request.is_pending


def test_what_is_published_says_that_there_is_a_certificate_but_not_which():
    read = trim_signing_request(msgspec.json.decode(FROM_KUBERNETES, type=SigningRequest))
    assert (read.status.certificate, read.status.issued, read.metadata.labels) == ("", True, {})
    assert trim_signing_request(read) == read


def test_an_oversized_request_is_published_without_it():
    fits, too_large = make_request(pem=b"x" * REQUEST_LIMIT), make_request(pem=b"x" * (REQUEST_LIMIT + 1))
    assert trim_signing_request(fits).spec.request == fits.spec.request
    assert trim_signing_request(too_large).spec.request == b""


@pytest.mark.parametrize("username", ["system:node:", "system:nodes:web-1", "web-1", "", "System:node:web-1"])
def test_a_user_that_is_no_node_has_no_node_name(username: str):
    assert make_request(username=username).node_name == ""
    assert not make_request(username=username).is_kubelet_serving


@pytest.mark.parametrize("kind", ["Approved", "Denied", "Failed"])
def test_a_request_is_pending_until_somebody_has_decided_it(kind: str):
    assert make_request().is_pending
    assert not make_request(conditions=(SigningRequestCondition(type=kind),)).is_pending
    assert not trim_signing_request(make_request(certificate="LS0t")).is_pending


def test_only_the_version_apart_is_the_same_to_us():
    assert is_same_request(make_request(resource_version="1"), make_request(resource_version="2"))
    assert not is_same_request(make_request(), make_request(uid="another"))
