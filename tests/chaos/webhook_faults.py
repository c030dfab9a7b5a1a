"""An admission webhook of a third party that hangs, or denies what the services write."""

from collections.abc import Sequence
from typing import Final

from libs.testbed.admission_webhook import WebhookScope
from tests.chaos.fault import Fault, FaultSite
from tests.chaos.persist import persist

# Only requests of the services: Nodes join and operators write as ever.
_SCOPE: Final = WebhookScope(
    resources={"": ["nodes/status"], "certificates.k8s.io": ["certificatesigningrequests/approval"]},
    condition="request.userInfo.username.contains('talos-ccm')",
    timeout_seconds=2,
)


def _make_fault(name: str, *, hangs: bool) -> Fault:
    async def inject(site: FaultSite) -> None:
        webhook = site.cluster.webhook
        webhook.hangs = hangs
        webhook.find_denial_reason = lambda _: "not during this fault"
        await persist(f"inject {name}", lambda: webhook.register(site.cluster.kubelets, _SCOPE))

    async def heal(site: FaultSite) -> None:
        await persist(f"heal {name}", lambda: site.cluster.webhook.unregister(site.cluster.kubelets))

    return Fault(name=name, target="webhook", inject=inject, heal=heal)


WEBHOOK_FAULTS: Final[Sequence[Fault]] = (
    _make_fault("webhook-hangs", hangs=True),
    _make_fault("webhook-denies", hangs=False),
)
