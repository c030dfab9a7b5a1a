"""A validating admission webhook of a third party, which the real API server calls."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from libs.testbed.kubelets import KubeletFleet
from libs.testbed.loopback_site import LoopbackSite
from libs.testbed.pki import CertificateAuthority, make_server_context

_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

DenialReason = Callable[[dict[str, Any]], str]  # the object as it would be written -> reason, "" to allow it


class WebhookScope(msgspec.Struct, frozen=True, kw_only=True):
    """The updates that the API server asks about."""

    resources: Mapping[str, Sequence[str]]  # by API group, such as "nodes/status" of ""
    condition: str  # in CEL
    timeout_seconds: int = 10


class AdmissionWebhook:
    """Denies an object with `code` if `find_denial_reason` returns a reason; counts its reviews."""

    def __init__(self, name: str, authority: CertificateAuthority) -> None:
        self.find_denial_reason: DenialReason = lambda _: ""
        self.hangs = False
        self.reviews = 0
        self.code = HTTPStatus.FORBIDDEN.value
        self._name = name
        self._authority = authority
        self._url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, name: str, folder: Path) -> AsyncIterator[AdmissionWebhook]:
        """Listen on the loopback during the block, with files in `folder`. Nothing calls it yet."""
        webhook = cls(name, CertificateAuthority.make(common_name="webhook"))
        application = web.Application()
        application.router.add_post("/", webhook._review)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        files = webhook._authority.issue_server(["127.0.0.1"]).write(folder, "webhook")
        site = await LoopbackSite.start(runner, "127.0.0.1", tls=make_server_context(*files))
        webhook._url = f"https://127.0.0.1:{site.port}/"
        try:
            yield webhook
        finally:
            await site.stop()

    async def register(self, admin: KubeletFleet, scope: WebhookScope) -> None:
        """Let the API server call it; an existing registration stays. Raises RequestRejected."""
        body = self._build_configuration(scope)
        await admin.send("POST", _CONFIGURATIONS, also=HTTPStatus.CONFLICT, body=body)

    async def unregister(self, admin: KubeletFleet) -> None:
        """Remove the registration, if there is one. Raises RequestRejected."""
        await admin.send("DELETE", f"{_CONFIGURATIONS}/{self._name}", also=HTTPStatus.NOT_FOUND)

    async def _review(self, request: web.Request) -> web.Response:
        review = (await request.json())["request"]
        self.reviews += 1
        if self.hangs:
            await asyncio.Event().wait()  # until the API server disconnects
        reason = self.find_denial_reason(review["object"]) if review.get("object") else ""
        answer: dict[str, Any] = {"uid": review["uid"], "allowed": not reason}
        if reason:
            answer["status"] = {"code": self.code, "message": reason}
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        )

    def _build_configuration(self, scope: WebhookScope) -> dict[str, Any]:
        rules = [
            {
                "apiGroups": [group],
                "apiVersions": ["v1"],
                "operations": ["UPDATE"],
                "resources": list(resources),
            }
            for group, resources in scope.resources.items()
        ]
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": self._name},
            "webhooks": [
                {
                    "name": f"{self._name}.example.com",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": scope.timeout_seconds,
                    "clientConfig": {
                        "url": self._url,
                        "caBundle": base64.b64encode(self._authority.pem).decode(),
                    },
                    "rules": rules,
                    "matchConditions": [{"name": "selected", "expression": scope.condition}],
                }
            ],
        }
