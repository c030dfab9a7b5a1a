"""A validating webhook against writes of Nodes, as an admission controller of a third party has one."""

import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from libs.testbed.kubelets import KubeletFleet
from libs.testbed.pki import CertificateAuthority

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

DenialReason = Callable[[dict[str, Any]], str]  # the Node as it would be written -> why not, "" if it may


class NodeWebhook:
    """Denies with `code` what `dislikes` names a reason against; counts what it was asked."""

    def __init__(self) -> None:
        self.find_denial_reason: DenialReason = lambda node: ""
        self.reviews = 0
        self.code = 403

    async def review(self, request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        self.reviews += 1
        why = self.find_denial_reason(asked["object"]) if asked.get("object") else ""
        answer: dict[str, Any] = {"uid": asked["uid"], "allowed": not why}
        if why:
            answer["status"] = {"code": self.code, "message": why}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        return web.json_response(review)


@asynccontextmanager
async def run_node_webhook(kubelets: KubeletFleet, folder: Path, *, node: str) -> AsyncIterator[NodeWebhook]:
    """A webhook that the real API server asks about each write of that one Node."""
    authority = CertificateAuthority.make(common_name="webhook")
    tls = _server_side(authority, folder)
    webhook = NodeWebhook()
    application = web.Application()
    application.router.add_post("/", webhook.review)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    address = f"https://127.0.0.1:{runner.addresses[0][1]}/"
    body = _configuration(node, address, authority.pem)
    try:
        created = await kubelets.request("POST", _CONFIGURATIONS, body=body)
        assert created.status == 201, created
        yield webhook
    finally:
        await kubelets.request("DELETE", f"{_CONFIGURATIONS}/{body['metadata']['name']}")
        await runner.cleanup()


def _configuration(node: str, address: str, authority: bytes) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"dislikes-{node}"},
        "webhooks": [
            {
                "name": "nodes.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
                "clientConfig": {"url": address, "caBundle": base64.b64encode(authority).decode()},
                "rules": [rule],
                "matchConditions": [{"name": "one", "expression": f"object.metadata.name == '{node}'"}],
            }
        ],
    }


def _server_side(authority: CertificateAuthority, folder: Path) -> ssl.SSLContext:
    pair = authority.issue_server(["127.0.0.1"])
    certificate, key = folder / "webhook.crt", folder / "webhook.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    return tls
