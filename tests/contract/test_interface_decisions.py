"""Decisions on the bus: outcomes, reasons and changes of every service that decides."""

import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.contract.events import Decided, Event
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeCondition
from libs.common.contract.services import SERVICES
from libs.common.contract.subjects import subject_of
from services.csr.decide import decide
from services.csr.request_evaluator import SkipRequest
from services.labeler.node_decision_publisher import NodeDecisionPublisher
from services.labeler.plan import ClusterConfig, Plan, PlanOutcome, plan_node, plan_unreachable_node
from tests.builders import NOW, make_csr_enriched, make_facts, make_node
from tests.contract.interface_snapshot import assert_unchanged
from tests.csr_actors import CsrServiceFlow, make_serving_request
from tests.csr_cases import CASES, FACTS, NODES, POLICY, WHO, make_metadata_events
from tests.ipam_actors import IpamFlow, make_numbered_node
from tests.lifecycle_actors import LifecycleFlow
from tests.lifecycle_cases import make_unreachable
from tests.unit.services.csr.test_claim_index import claims_of

HCLOUD: dict[str, Any] = {"platform": "hcloud", "provider_id": "hcloud://7", "region": "eu", "zone": "eu-1"}
HONEST = make_facts()
# A signature has another length each time.
LENGTHS = re.compile(r"(?<=needed: )\d+|(?<=it has )\d+(?= bytes)")
GOING = msgspec.structs.replace(make_facts(), stage="shutting down")
OURS = "ownership: {nodeSelector: [{matchExpressions: [{key: team, operator: In, values: [a]}]}]}"


def said(decided: Decided) -> dict[str, Any]:
    """The decision as JSON with its subject, without the time and the uid."""
    document = msgspec.to_builtins(decided)
    return {key: document[key] for key in document if key not in {"decided_at", "uid"}} | {
        "subject": subject_of(decided)
    }


class Recorder:
    """A bus that keeps what is published."""

    def __init__(self) -> None:
        self.published: list[Event] = []

    async def publish(self, event: Event, **_: Any) -> int:
        self.published.append(event)
        return 1


async def published(plan: Plan, *, observe_only: bool = False) -> dict[str, Any]:
    bus = Recorder()
    decisions = NodeDecisionPublisher(bus, now=lambda: NOW, observe_only=observe_only)  # type: ignore[arg-type]  # only publishes
    await decisions.publish(make_node(), plan)
    [decided] = bus.published
    assert isinstance(decided, Decided)
    return said(decided)


async def test_outcomes_of_the_labeler_are_unchanged():
    plans = [Plan(outcome=outcome, reason="any") for outcome in typing.get_args(PlanOutcome)]
    assert_unchanged(
        "decided-labeler-outcomes",
        {
            plan.outcome: {
                "applied": (await published(plan))["outcome"],
                "observed only": (await published(plan, observe_only=True))["outcome"],
            }
            for plan in plans
        },
    )


async def test_what_the_labeler_decides_is_unchanged():
    def planned(node: Node, facts: MachineFacts | None = None, by: str = "nodename", **config: Any) -> Plan:
        return plan_node(node, facts or make_facts(**HCLOUD), by, ClusterConfig(**config))

    stale = (NodeCondition(type=BLOCKED_CONDITION, status="True"),)
    own = parse_cloud_config(OURS, "f").ownership.for_controller(CLOUD_NODE)
    silent = make_unreachable(
        make_node(taints=()), fault=MachineFault(kind="timeout", step="connect", message="no")
    )
    plans = {
        "a Node that joins": planned(make_node()),
        "by its UUID": planned(make_node(), make_facts(node_name="talos-abc", **HCLOUD), "system-uuid"),
        "a Node that differs": planned(make_node(taints=(), provider_id="hcloud://7")),
        "another providerID": planned(make_node(taints=(), provider_id="hcloud://8")),
        "of another cloud": planned(make_node(taints=(), provider_id="aws:///eu-1/i-5")),
        "of somebody else": planned(make_node(), ownership=own),
        "without a node IP": planned(make_node(ip="")),
        "with a broken node IP": planned(make_node(ip="nonsense")),
        "without metadata": planned(make_node(), make_facts(platform="hcloud")),
        "initialized, without metadata": planned(make_node(taints=()), make_facts(platform="hcloud")),
        "a condition that is not true any more": planned(
            make_node(taints=(), conditions=stale), make_facts(platform="hcloud")
        ),
        "a machine that does not answer": plan_unreachable_node(
            make_node(), make_unreachable(make_node()), ClusterConfig()
        ),
        "initialized, does not answer": plan_unreachable_node(make_node(taints=()), silent, ClusterConfig()),
    }
    assert_unchanged("decided-labeler", {what: await published(plan) for what, plan in plans.items()})


def test_what_csr_decides_about_every_known_request_is_unchanged():
    claims = claims_of(*NODES.values(), *make_metadata_events())

    def of(case: Any) -> Any:
        event = make_csr_enriched(
            case.request(), facts=FACTS[WHO], node_uid=NODES[WHO].uid, answering_addresses=("10.0.0.5",)
        )
        judged = decide(event, claims, POLICY)
        reason = getattr(judged.decision, "message", "") or judged.decision.reason
        return {"as": case.expected, "reason": LENGTHS.sub("<number>", reason)}

    assert_unchanged("decided-csr-reasons", {case.name: of(case) for case in CASES})


async def test_what_csr_publishes_is_unchanged(tmp_path: Path):
    decided: dict[str, Any] = {}
    evil = make_serving_request("csr-2", node="web-2", dns=("kubernetes",), ips=("10.0.0.6",))
    two, facts_of_two = (
        make_node("web-2", uid="uid-2", ip="10.0.0.6"),
        make_facts(node_name="web-2", node_ip="10.0.0.6"),
    )
    old, new = make_serving_request("csr-old", age_seconds=60), make_serving_request("csr-1")
    modes: dict[str, dict[str, Any]] = {"applied": {}, "observed only": {"observe_only": True}}
    for how, settings in modes.items():
        async with CsrServiceFlow.open("memory", tmp_path) as flow, flow.run_csr(**settings):
            would = "would-" if settings else ""
            await flow.enrich(make_node(), HONEST)
            await flow.enrich(two, facts_of_two)
            first, second = await flow.file_request(old), await flow.file_request(new)
            await flow.enrich_request(old, observed=first, facts=HONEST, node_uid="uid-1")
            seen = [await flow.wait_for_decision("csr-old", "superseded")]
            await flow.enrich_request(new, observed=second, facts=HONEST, node_uid="uid-1")
            seen += [await flow.wait_for_decision("csr-1", "would-approve" if would else "approved")]
            await flow.file_and_enrich(evil, facts=facts_of_two, node_uid="uid-2")
            seen += [await flow.wait_for_decision("csr-2", "would-deny" if would else "denied")]
            await flow.file_and_enrich(make_serving_request("csr-3", node="web-3", ips=("10.0.0.7",)))
            seen += [await flow.wait_for_decision("csr-3", "waiting")]
            decided[how] = [said(each) for each in seen]
    async with (
        CsrServiceFlow.open("memory", tmp_path) as flow,
        flow.run_csr(file=parse_cloud_config(OURS, "f")),
    ):
        await flow.enrich(make_node(), HONEST)
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        decided["of somebody else"] = said(await flow.wait_for_decision("csr-1", "not-ours"))
    left = {field.name: field.type for field in msgspec.structs.fields(SkipRequest)}["outcome"]
    decided["without an answer"] = sorted(typing.get_args(left))
    assert_unchanged("decided-csr", decided)


async def test_what_ipam_decides_is_unchanged(tmp_path: Path):
    decided: dict[str, Any] = {}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "served": ("allocated", {}),
        "observed only": ("would-allocate", {"observe_only": True}),
        "of somebody else": ("not-ours", {"file": parse_cloud_config(OURS, "f")}),
        "not initialized": ("waiting", {"cidr_allocator_type": "CloudAllocator"}),
    }
    for case, (outcome, settings) in cases.items():
        async with IpamFlow.open("memory", tmp_path) as flow, flow.run_ipam(**settings):
            await flow.join_nodes(1)
            decided[case] = said(await flow.wait_for_decision("web-1", outcome))
    pool = ("10.244.0.0/16",)
    async with IpamFlow.open("memory", tmp_path) as flow:
        await flow.publish_networks(pod_cidrs=pool)
        await flow.join_nodes(1, pod_cidrs=pool)
        async with flow.run_ipam(cluster_cidr=pool):
            await flow.join_nodes(2)
            decided["no room"] = said(await flow.wait_for_decision("web-2", "unserved"))
    async with IpamFlow.open("memory", tmp_path) as flow, flow.run_ipam():
        await flow.publish_unreachable(flow.kube.put(make_numbered_node(1)))
        decided["a machine that does not answer"] = said(await flow.wait_for_decision("web-1", "waiting"))
    assert_unchanged("decided-ipam", decided)


@pytest.mark.parametrize("how", ["applied", "dry-run"])
async def test_what_lifecycle_decides_is_unchanged(how: str, tmp_path: Path):
    async with LifecycleFlow.open("memory", tmp_path) as flow:
        async with flow.run_lifecycle(dry_run=how == "dry-run"):
            node, going = await flow.add_lost_node(), await flow.add_lost_node("web-2", uuid="")
            await flow.publish_poll_result(going, last_known=make_facts())
            seen = [await flow.wait_for_decision("web-2", "kept")]
            await flow.publish_poll_result(going, last_known=GOING)
            seen += [await flow.wait_for_decision("web-2", "shutdown")]
            for told in ("1 of 3", "2 of 3"):
                await flow.publish_replacement(node)
                seen += [await flow.wait_for_decision("web-1", "kept", told)]
            await flow.publish_replacement(node)
            seen += [await flow.wait_for_decision("web-1", "deleted" if how == "applied" else "would-delete")]
        async with flow.run_lifecycle(file=parse_cloud_config(OURS, "f"), identity="second"):
            theirs = await flow.add_lost_node("web-4", labels={"team": "b"}, uuid="")
            await flow.publish_poll_result(theirs, last_known=GOING)
            seen += [await flow.wait_for_decision("web-4", "not-owned")]
    assert_unchanged(f"decided-lifecycle-{how}", [said(each) for each in seen])


def test_names_of_services_are_unchanged():
    assert_unchanged("service-names", sorted(spec.service for spec in SERVICES))
