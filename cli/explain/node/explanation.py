"""What becomes of a Node by this evidence: judged by the services' own code. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from cli.explain.explanation import Result, Told
from cli.explain.node.evidence import Evidence
from cli.explain.node.finding import Case
from cli.explain.node.journey import Step, journey
from cli.explain.node.lifecycle import Gone, is_gone
from cli.explain.node.verdict import Verdict, is_starting, judge
from cli.render.described import DescribedNode
from libs.common.cloud_config.model import OwnershipConfig
from libs.common.controllers import CLOUD_NODE, CSR_APPROVAL, NODE_IPAM, NODE_LIFECYCLE
from libs.common.machine import MachineFault
from libs.common.node import Node
from libs.common.ownership import why_not_owned
from libs.common.service_spec import LABELER
from services.labeler.native_provider_id import derive_native_provider_id
from services.labeler.node_ownership import why_not_managed
from services.labeler.plan import (
    Plan,
    plan_node,
    plan_unreachable_node,
    why_excluded,
    why_not_managed_by_rules,
)
from services.lifecycle.decide import DeletionPolicy

WELL, NOT_WELL, UNTOLD = 0, 1, 2
_NOT_READY: Final[dict[bool, Result]] = {True: "waits", False: "failed"}
State = Literal["initialized", "not initialized", "being deleted"]

# What each does to a Node.
CONTROLLERS: Final = {
    CLOUD_NODE: "labels, addresses, providerID",
    CSR_APPROVAL: "serving certificates",
    NODE_IPAM: "pod CIDRs",
    NODE_LIFECYCLE: "its deletion",
}


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a controller looks after the Node."""

    controller: str
    does: str
    why_not: str = ""  # "": it does


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    evidence: Evidence
    state: State
    owners: tuple[Owner, ...]
    checks: tuple[Told, ...]
    plan: Plan | None  # the labeler's; None where it would have to know the machine
    gone: Gone  # what lifecycle would make of it
    verdict: Verdict
    journey: tuple[Step, ...]

    @property
    def node(self) -> Node:
        return self.evidence.node

    @property
    def says_ownership(self) -> bool:
        """Whether the file says whose Nodes are whose."""
        return self.evidence.ownership != OwnershipConfig()

    @property
    def exit_status(self) -> int:
        """0: all is well, or is being made so; 1: something is not; 2: that cannot be told."""
        results = {check.result for check in self.checks}
        if self.verdict.state == "stuck" or "failed" in results:
            return NOT_WELL
        return UNTOLD if self.verdict.state == "unknown" or "unknown" in results else WELL


def explain(evidence: Evidence, terms: DeletionPolicy) -> Explanation:
    """Judge it as the services would; `terms` are lifecycle's."""
    node, plan = evidence.node, _plan(evidence)
    gone = is_gone(evidence, terms)
    state: State = "initialized" if node.is_initialized else "not initialized"
    owners = tuple(_owners(evidence, gone))
    case = Case(evidence=evidence, plan=plan, why_not_ours=owners[0].why_not, mismatch=_mismatch(plan))
    return Explanation(
        evidence=evidence,
        state="being deleted" if node.metadata.deletion_timestamp is not None else state,
        owners=owners,
        checks=tuple(_checks(evidence, plan)),
        plan=plan,
        gone=gone,
        verdict=judge(case),
        journey=journey(evidence, is_anothers=bool(owners[0].why_not)),
    )


def _plan(evidence: Evidence) -> Plan | None:
    node, look = evidence.node, evidence.look
    if isinstance(look, DescribedNode):
        return plan_node(node, look.facts, look.recognized_by, evidence.config)
    if evidence.unreachable is not None:
        return plan_unreachable_node(node, evidence.unreachable, evidence.config)
    return None


def _owners(evidence: Evidence, gone: Gone) -> Iterator[Owner]:
    for controller, does in CONTROLLERS.items():
        if controller == CLOUD_NODE:
            why_not = _why_not_labelers(evidence)
        elif controller == NODE_LIFECYCLE:
            why_not = gone.reason if gone.outcome == "not-owned" else ""
        else:
            why_not = why_not_owned(evidence.ownership.for_controller(controller), evidence.node)
        yield Owner(controller=controller, does=does, why_not=why_not)


def _why_not_labelers(evidence: Evidence) -> str:
    """As the labeler judges it: by the file, then by the providerID, of which the machine has a say."""
    node, config, silent = evidence.node, evidence.config, evidence.unreachable
    facts = evidence.look.facts if isinstance(evidence.look, DescribedNode) else None
    facts = silent.last_known if silent else facts
    why = why_excluded(node, facts, config) or _said_not_ours(evidence)
    if why or (facts is None and evidence.look is None):
        return why
    if facts is None:
        return why_not_managed(node, None, configured=config.ownership)
    return why_not_managed_by_rules(node, facts, config)


def _said_not_ours(evidence: Evidence) -> str:
    """The running labeler's reason, where its --cloud-config is not known here."""
    decided = evidence.last_words.of(LABELER.service, evidence.node) if evidence.last_words else None
    is_said = decided is not None and decided.outcome == "not-ours" and evidence.file is None
    return decided.reason if decided is not None and is_said else ""


def _checks(evidence: Evidence, plan: Plan | None) -> Iterator[Told]:
    yield _ready(evidence.node, is_starting=is_starting(evidence))
    yield from _machine(evidence)
    yield from _provider_id(evidence, plan)
    yield from _initialized(evidence, plan)


def _ready(node: Node, *, is_starting: bool) -> Told:
    condition, result = node.find_condition("Ready"), _NOT_READY[is_starting]
    if condition is None:
        return Told(name="ready", result=result, text="its kubelet has told nothing of itself yet")
    since = f" since {condition.last_transition_time}" if condition.last_transition_time else ""
    if condition.status == "True":
        return Told(name="ready", result="passed", text=f"its kubelet says that it is ready{since}")
    said = ": ".join(filter(None, (condition.reason, condition.message)))
    text = f"Ready is {condition.status}{since}" + (f", {said}" if said else "")
    return Told(name="ready", result=result, text=text)


def _machine(evidence: Evidence) -> Iterator[Told]:
    match evidence.look:
        case DescribedNode(facts=facts, recognized_by=by):
            said = facts.platform
            place = ", ".join(filter(None, (said.platform, said.zone or said.region, said.instance_type)))
            text = f"the machine at {facts.node_ip} answers as {facts.node_name} ({place or 'no platform'})"
            text += "" if by == "nodename" else ", recognised by its systemUUID"
            text += f"; its stage is {facts.stage!r}" if facts.stage not in ("", "running") else ""
            text += _as_heard(evidence)
            yield Told(name="machine", result="passed", text=text)
        case MachineFault(step=step, endpoint=endpoint, message=message):
            where = f" at {endpoint}" if endpoint else ""
            yield Told(name="machine", result="failed", text=f"{step}{where}: {message}{_as_heard(evidence)}")
        case _ if not evidence.withheld:
            yield Told(name="machine", result="unknown", text=evidence.not_asked)


def _as_heard(evidence: Evidence) -> str:
    said = evidence.last_words.machine_of(evidence.node) if evidence.heard and evidence.last_words else None
    return f"; so it told metadata at {said.enriched_at:%Y-%m-%d %H:%M:%S} UTC" if said is not None else ""


def _provider_id(evidence: Evidence, plan: Plan | None) -> Iterator[Told]:
    existing = evidence.node.spec.provider_id
    if mismatch := _mismatch(plan):
        yield Told(name="providerID", result="failed", text=mismatch)
    elif existing:
        yield Told(name="providerID", result="passed", text=f"{existing}{_as_reported(evidence, plan)}")
    elif plan and plan.changes.provider_id:
        text = f"none yet; the labeler writes {plan.changes.provider_id}"
        yield Told(name="providerID", result="waits", text=text)
    elif evidence.node.is_initialized:
        yield Told(name="providerID", result="passed", text="none, and who initialised the Node gave none")


def _mismatch(plan: Plan | None) -> str:
    return next((n.message for n in plan.notices if n.reason == "ProviderIDMismatch"), "") if plan else ""


def _as_reported(evidence: Evidence, plan: Plan | None) -> str:
    if not isinstance(evidence.look, DescribedNode):
        return ""
    by_rules = plan.rule_effects.platform if plan and plan.rule_effects else evidence.look.facts.platform
    reported = derive_native_provider_id(by_rules)
    if not reported:
        return ", and its machine reports none of its own"
    return ", as its machine reports" if reported == evidence.node.spec.provider_id else ""


def _initialized(evidence: Evidence, plan: Plan | None) -> Iterator[Told]:
    node, name = evidence.node, "initialized"
    if node.is_initialized:
        yield Told(name=name, result="passed", text="nothing keeps pods from it on our account")
    elif plan is None and not evidence.withheld:
        yield Told(
            name=name, result="unknown", text="what stands in its way is told when its machine is asked"
        )
    elif plan is None:
        # Whoever did not want its machine asked is not told that something is wrong with it.
        result: Result = "unknown" if node.provided_node_ip else "failed"
        yield Told(name=name, result=result, text=f"the taint stands; {evidence.not_asked}")
    elif plan.outcome == "initialized":
        yield Told(name=name, result="waits", text=f"nothing stands in its way: {plan.reason}")
    elif plan.blocker and isinstance(evidence.look, MachineFault):
        text = f"the taint stays until its machine answers ({plan.blocker.reason})"
        yield Told(name=name, result="failed", text=text)
    else:
        left = "the labeler leaves it alone: " if plan.outcome == "not-ours" else ""
        yield Told(name=name, result="failed", text=f"{left}{plan.reason}")
