"""Services, balancers and answers of a cloud, for tests of the steps of a load balancer."""

from datetime import datetime, timedelta
from typing import Any

from libs.clouds.balancers import (
    Balancer,
    BalancerRequest,
    Ingress,
    InvalidField,
    Owner,
    ParsedRequest,
    Target,
)
from libs.clouds.instances import Anchor, Credential, NotFound, Unanswered
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import (
    ABANDON_ANNOTATION,
    BALANCER_ANNOTATION,
    BALANCER_BLOCKED_CONDITION,
    CLASS_FINALIZER,
    CLEANUP_FINALIZER,
    KubeService,
    KubeServiceCondition,
    KubeServiceMeta,
    KubeServiceSpec,
    KubeServiceStatus,
    LoadBalancerIngress,
    LoadBalancerStatus,
    ServicePort,
)
from services.cloud.core.balancers.balancer_record import (
    BalancerAccount,
    BalancerRecord,
    encode_balancer_record,
)
from services.cloud.core.balancers.balancer_steps import BlockedCondition
from services.cloud.core.balancers.balancer_view import (
    AnchorLookup,
    BalancerView,
    Listing,
    Lookup,
    Memory,
)
from services.cloud.core.balancers.select_targets import TargetSelection
from tests.builders import NOW

ACCOUNT = BalancerAccount(name="prod", load_balancer_class="talos-ccm/prod")
ANCHOR = InstanceAnchor(kind="network", id="4711")
FOUND_ANCHOR = Anchor(ANCHOR.kind, ANCHOR.id)
CREDENTIAL = Credential(1, NOW - timedelta(hours=1), "f1")
OWNER = Owner(cluster_uid="uid-kube-system", service_uid="uid-web", account="prod")
OTHER_OWNER = Owner(cluster_uid="uid-kube-system", service_uid="uid-other", account="prod")
SILENCE = Unanswered("unreachable", "no answer within 15 s")
NODE = Target(instance_id="1")
WRITE_SECONDS = 30.0
ADDRESS = Ingress(ip="192.0.2.1")


class VersionPlanner:
    """A cloud whose balancers have a version, and nothing else. The desired version is an annotation."""

    has_outliving_parts = False

    def read_request(self, request: BalancerRequest) -> ParsedRequest[str]:
        return ParsedRequest(desired=request.annotations.get("version", "v1"))

    def plan_changes(self, desired: str, targets: tuple[Target, ...], balancer: Balancer) -> tuple[str, ...]:
        added = tuple(f"add {each.instance_id}" for each in targets if each not in balancer.targets)
        removed = tuple(f"remove {each.instance_id}" for each in balancer.targets if each not in targets)
        return (*removed, *added, *(() if balancer.details == desired else (f"set {desired}",)))

    def plan_release(self, balancer: Balancer, *, keeps_address: bool) -> tuple[str, ...]:
        return ("untag",) if balancer.owner is not None else ()

    def plan_adoption(
        self, desired: str, targets: tuple[Target, ...], balancer: Balancer, owner: Owner
    ) -> str:
        return "tag"

    def plan_hand_back(self, balancer: Balancer, service_uid: str) -> str:
        return "hand back"

    def build_ingress(self, desired: str, balancer: Balancer) -> tuple[Ingress, ...] | None:
        return (Ingress(ip=f"192.0.2.{balancer.id}"),)


def make_service(
    *,
    record: BalancerRecord | None = None,
    annotations: dict[str, str] | None = None,
    kind: str = "LoadBalancer",
    own_class: str | None = ACCOUNT.load_balancer_class,
    finalizer: bool | None = None,
    ingress: tuple[Ingress, ...] = (),
    condition: BlockedCondition | None = None,
    abandon: str = "",
    is_deleting: bool = False,
) -> KubeService:
    """A Service that selects the account. It has the finalizer exactly if it has a record."""
    all_annotations = dict(annotations or {})
    if record is not None:
        all_annotations[BALANCER_ANNOTATION] = encode_balancer_record(record)
    if abandon:
        all_annotations[ABANDON_ANNOTATION] = abandon
    has_finalizer = record is not None if finalizer is None else finalizer
    conditions: tuple[KubeServiceCondition, ...] = ()
    if condition is not None:
        conditions = (
            KubeServiceCondition(
                type=BALANCER_BLOCKED_CONDITION,
                status="True",
                reason=condition.reason,
                message=condition.message,
            ),
        )
    return KubeService(
        metadata=KubeServiceMeta(
            namespace="shop",
            name="web",
            uid="uid-web",
            resource_version="100",
            creation_timestamp=NOW,
            deletion_timestamp=NOW if is_deleting else None,
            annotations=all_annotations,
            finalizers=(CLEANUP_FINALIZER if own_class is None else CLASS_FINALIZER,)
            if has_finalizer
            else (),
        ),
        spec=KubeServiceSpec(
            type=kind,
            load_balancer_class=own_class,
            ports=(ServicePort(name="http", port=80, node_port=30080),),
        ),
        status=KubeServiceStatus(
            load_balancer=LoadBalancerStatus(
                ingress=tuple(
                    LoadBalancerIngress(
                        ip=each.ip, hostname=each.hostname, ip_mode="Proxy" if each.is_proxy else "VIP"
                    )
                    for each in ingress
                )
            ),
            conditions=conditions,
        ),
    )


def make_balancer(balancer_id: str = "1", **changes: Any) -> Balancer:
    """A balancer of the Service with the version v1."""
    fields: dict[str, Any] = {
        "name": "web",
        "created_at": NOW,
        "owner": OWNER,
        "has_foreign_tags": False,
        "is_busy": False,
        "is_protected": False,
        "targets": (),
        "details": "v1",
    }
    return Balancer(id=balancer_id, **(fields | changes))


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def make_listing(
    *balancers: Balancer,
    at_second: float = 0,
    generation: int = 1,
    answer: Any = None,
    parts_at_second: float | None = None,
) -> Listing:
    """A listing; by default it has read parts, too."""
    began_at = at(at_second)
    return Listing(
        began_at=began_at,
        ended_at=began_at,
        generation=generation,
        answer=balancers if answer is None else answer,
        parts_began_at=began_at if parts_at_second is None else at(parts_at_second),
    )


def make_lookup(
    balancer_id: str, answer: Balancer | NotFound | Unanswered, *, at_second: float = 0, generation: int = 1
) -> Lookup:
    began_at = at(at_second)
    return Lookup(
        began_at=began_at, ended_at=began_at, generation=generation, balancer_id=balancer_id, answer=answer
    )


def make_anchor_lookup(
    answer: Any = FOUND_ANCHOR, *, at_second: float = 0, generation: int = 1
) -> AnchorLookup:
    began_at = at(at_second)
    return AnchorLookup(
        began_at=began_at, ended_at=began_at, generation=generation, anchor=ANCHOR, answer=answer
    )


def make_view(
    service: KubeService, *lookups: Lookup, anchor_lookup: AnchorLookup | None = None, **changes: Any
) -> BalancerView[Any, Any]:
    """A view at NOW of a process that has led for an hour, without any answer of the cloud."""
    fields: dict[str, Any] = {
        "account": ACCOUNT,
        "anchor": ANCHOR,
        "credential": CREDENTIAL,
        "owner": OWNER,
        "planner": VersionPlanner(),
        "parsed": ParsedRequest(desired=service.metadata.annotations.get("version", "v1")),
        "selection": TargetSelection(is_complete=True),
        "listing": None,
        "anchor_lookups": {} if anchor_lookup is None else {anchor_lookup.anchor: anchor_lookup},
        "memory": Memory(led_since=NOW - timedelta(hours=1)),
        "lease_until": NOW + timedelta(minutes=10),
        "write_seconds": WRITE_SECONDS,
        "now": NOW,
    }
    return BalancerView(
        service=service, lookups={each.balancer_id: each for each in lookups}, **(fields | changes)
    )


def make_invalid(field: str = "ports") -> ParsedRequest[str]:
    return ParsedRequest(desired="v1", invalid=(InvalidField(field=field, reason="no such value"),))
