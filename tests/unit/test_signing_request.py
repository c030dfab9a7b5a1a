"""What we read of a CertificateSigningRequest, and what of it is published."""

import msgspec
import pytest

from libs.common.signing_request import (
    REQUEST_LIMIT,
    SigningRequest,
    SigningRequestCondition,
    same_request_to_us,
    what_we_read_of_request,
)
from tests.builders import a_request

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
    assert (request.node_name, request.version, request.spec.expiration_seconds) == ("web-1", 7, 600)
    assert request.is_kubelet_serving
    assert not request.pending


def test_what_is_published_says_that_there_is_a_certificate_but_not_which():
    read = what_we_read_of_request(msgspec.json.decode(FROM_KUBERNETES, type=SigningRequest))
    assert (read.status.certificate, read.status.issued, read.metadata.labels) == ("", True, {})
    assert what_we_read_of_request(read) == read


def test_an_oversized_request_is_published_without_it():
    fits, too_large = a_request(pem=b"x" * REQUEST_LIMIT), a_request(pem=b"x" * (REQUEST_LIMIT + 1))
    assert what_we_read_of_request(fits).spec.request == fits.spec.request
    assert what_we_read_of_request(too_large).spec.request == b""


@pytest.mark.parametrize("username", ["system:node:", "system:nodes:web-1", "web-1", "", "System:node:web-1"])
def test_a_user_that_is_no_node_has_no_node_name(username: str):
    assert a_request(username=username).node_name == ""
    assert not a_request(username=username).is_kubelet_serving


@pytest.mark.parametrize("kind", ["Approved", "Denied", "Failed"])
def test_a_request_is_pending_until_somebody_has_decided_it(kind: str):
    assert a_request().pending
    assert not a_request(conditions=(SigningRequestCondition(type=kind),)).pending
    assert not what_we_read_of_request(a_request(certificate="LS0t")).pending


def test_only_the_version_apart_is_the_same_to_us():
    assert same_request_to_us(a_request(resource_version="1"), a_request(resource_version="2"))
    assert not same_request_to_us(a_request(), a_request(uid="another"))
