"""The real API server rejects the writes in the scope of a webhook that hangs or denies."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.admission_webhook import AdmissionWebhook, WebhookScope
from libs.testbed.kubelets import MERGE, HttpResponse, KubeletFleet, SimKubelet
from tests.bus_actors import wait_until

NODE = "webhook-status"
STATUS: dict[str, Any] = {"status": {"nodeInfo": {"kernelVersion": "6.12.0"}}}
SCOPE = WebhookScope(
    resources={"": ["nodes/status"], "certificates.k8s.io": ["certificatesigningrequests/approval"]},
    condition="request.userInfo.username == 'admin'",
    timeout_seconds=1,
)


@pytest.fixture
async def webhook(kubelets: KubeletFleet, tmp_path: Path) -> AsyncIterator[AdmissionWebhook]:
    await kubelets.join(SimKubelet(name=NODE))
    async with AdmissionWebhook.start("of-a-test", tmp_path) as webhook:
        try:
            yield webhook
        finally:
            await webhook.unregister(kubelets)
            await kubelets.delete_node(NODE)


async def patch(kubelets: KubeletFleet, subresource: str = "/status") -> HttpResponse:
    path = f"/api/v1/nodes/{NODE}{subresource}?dryRun=All"
    return await kubelets.request("PATCH", path, body=STATUS, content_type=MERGE)


async def wait_for_status(kubelets: KubeletFleet, status: HTTPStatus) -> None:
    async def has_status() -> bool:
        return (await patch(kubelets)).status == status

    await wait_until(has_status, f"a patch returns {status}")


async def test_writes_fail_while_the_webhook_hangs_and_pass_without_it(
    webhook: AdmissionWebhook, kubelets: KubeletFleet
):
    webhook.hangs = True
    await webhook.register(kubelets, SCOPE)
    await webhook.register(kubelets, SCOPE)  # the answer to the first attempt may have been lost
    await wait_for_status(kubelets, HTTPStatus.INTERNAL_SERVER_ERROR)
    assert "deadline exceeded" in (await patch(kubelets)).body["message"]
    assert (await patch(kubelets, "")).status == HTTPStatus.OK  # not in its scope
    await webhook.unregister(kubelets)
    await wait_for_status(kubelets, HTTPStatus.OK)


async def test_a_denial_names_the_webhook_and_its_reason(webhook: AdmissionWebhook, kubelets: KubeletFleet):
    webhook.find_denial_reason = lambda _: "not during this test"
    await webhook.register(kubelets, SCOPE)
    await wait_for_status(kubelets, HTTPStatus.FORBIDDEN)
    message = (await patch(kubelets)).body["message"]
    assert "not during this test" in message
    assert "of-a-test.example.com" in message
