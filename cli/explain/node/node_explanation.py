"""The explanation of a Node from the evidence, computed by the code of the services. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from cli.cluster.kept_keys import KeptKeyReport, report_kept_keys
from cli.cluster.machine_events import describe_sources
from cli.explain.layout import CheckOutcome, CheckResult
from cli.explain.node.deletion_forecast import DeletionForecast, forecast_deletion
from cli.explain.node.finding import NodeCase
from cli.explain.node.initialization_steps import InitializationStep, list_initialization_steps
from cli.explain.node.node_evidence import NodeEvidence, complete_by_accounts
from cli.explain.node.node_verdict import NodeVerdict, is_starting, judge_node
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.controllers import CLOUD_NODE, NODE_LIFECYCLE, SELECTABLE
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.instances import derive_native_provider_id
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node
from libs.common.contract.node_patch import NodeChanges
from libs.common.contract.services import LABELER
from services.labeler.core.blocker import RETRY_SECONDS, Notice
from services.labeler.core.plan.node_ownership import check_ownership, find_exclusion
from services.labeler.core.plan.plan import Plan
from services.labeler.core.plan.plan_node import plan_node, plan_unreachable_node
from services.lifecycle.core.decide import DeletionPolicy

EXIT_WELL, EXIT_NOT_WELL, EXIT_UNKNOWN = 0, 1, 2
_NOT_READY: Final[dict[bool, CheckOutcome]] = {True: "waits", False: "failed"}
InitializationState = Literal["initialized", "not initialized", "being deleted"]


class ControllerOwnership(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a controller manages the Node, and why not."""

    controller: str
    manages: str
    why_not: str = ""  # "": it manages the Node


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """State, ownership, checks, plan, deletion forecast and steps of one Node."""

    evidence: NodeEvidence
    state: InitializationState
    owners: tuple[ControllerOwnership, ...]
    checks: tuple[CheckResult, ...]
    plan: Plan | None  # the labeler's plan; None if it needs facts of the machine that are missing
    deletion: DeletionForecast  # the decision that lifecycle would make
    verdict: NodeVerdict
    steps: tuple[InitializationStep, ...]
    kept_keys: tuple[KeptKeyReport, ...]

    @property
    def node(self) -> Node:
        return self.evidence.node

    @property
    def exit_status(self) -> int:
        """Return 0 if the Node is well or in progress, 1 if a check failed, 2 if the result is unknown."""
        results = {check.result for check in self.checks}
        if self.verdict.state == "stuck" or "failed" in results:
            return EXIT_NOT_WELL
        return EXIT_UNKNOWN if self.verdict.state == "unknown" or "unknown" in results else EXIT_WELL


def explain_node_evidence(evidence: NodeEvidence, terms: DeletionPolicy) -> NodeExplanation:
    """Explain the Node by the rules of the services; `terms` is the policy of lifecycle."""
    evidence = complete_by_accounts(evidence)
    node, plan = evidence.node, _plan_node_changes(evidence)
    gone = forecast_deletion(evidence, terms)
    state: InitializationState = "initialized" if node.is_initialized else "not initialized"
    owners = tuple(_list_owners(evidence, gone))
    case = NodeCase(
        evidence=evidence, plan=plan, not_managed_reason=owners[0].why_not, mismatch=_describe_mismatch(plan)
    )
    return NodeExplanation(
        evidence=evidence,
        state="being deleted" if node.metadata.deletion_timestamp is not None else state,
        owners=owners,
        checks=tuple(_list_checks(evidence, plan)),
        plan=plan,
        deletion=gone,
        verdict=judge_node(case),
        steps=tuple(list_initialization_steps(evidence, is_foreign=bool(owners[0].why_not))),
        kept_keys=_report_kept_keys(case),
    )


def _report_kept_keys(case: NodeCase) -> tuple[KeptKeyReport, ...]:
    if case.not_managed_reason:
        return ()
    evidence, changes = case.evidence, case.plan.changes if case.plan else NodeChanges()
    return report_kept_keys(evidence.node, changes)


def _plan_node_changes(evidence: NodeEvidence) -> Plan | None:
    node = evidence.node
    match evidence.report:
        case NodeEnriched(facts=facts, verified_by=by):
            return _block_as_reported(plan_node(node, facts, by, evidence.config), node)
        case NodeUnreachable() as event:
            return plan_unreachable_node(node, event, evidence.config)
    return None


def _block_as_reported(plan: Plan, node: Node) -> Plan:
    """Return the plan, blocked if the labeler, which knows more, withholds the providerID."""
    reported = node.find_condition(BLOCKED_CONDITION)
    if plan.outcome != "initialized" or reported is None or reported.reason not in RETRY_SECONDS:
        return plan
    blocker = Notice(reported.reason, reported.message)
    return Plan(outcome="blocked", reason=blocker.message, blocker=blocker, notices=plan.notices)


def _list_owners(evidence: NodeEvidence, gone: DeletionForecast) -> Iterator[ControllerOwnership]:
    for controller, manages in ((each.name, each.manages) for each in SELECTABLE if each.manages):
        if controller == CLOUD_NODE:
            why_not = _why_not_managed_by_labeler(evidence)
        elif controller == NODE_LIFECYCLE:
            why_not = gone.reason if gone.outcome == "not-owned" else ""
        else:
            why_not = why_not_owned(evidence.ownership.for_controller(controller), evidence.node)
        yield ControllerOwnership(controller=controller, manages=manages, why_not=why_not)


def _why_not_managed_by_labeler(evidence: NodeEvidence) -> str:
    """Return the labeler's reason: by the file, then by the providerID and the machine's facts."""
    node, config, report = evidence.node, evidence.config, evidence.report
    facts = report.last_known if isinstance(report, NodeUnreachable) else report.facts if report else None
    excluded = find_exclusion(node, facts, config)
    why = excluded.reason if excluded else _find_reported_reason(evidence)
    if why or report is None:
        return why
    not_ours = check_ownership(node, facts, config)
    return not_ours.reason if not_ours else ""


def _find_reported_reason(evidence: NodeEvidence) -> str:
    """Return the reason of the running labeler, if its --cloud-config is unknown here."""
    decided = evidence.find_decision(LABELER) if evidence.config_file is None else None
    return decided.reason if decided is not None and decided.outcome == "not-ours" else ""


def _list_checks(evidence: NodeEvidence, plan: Plan | None) -> Iterator[CheckResult]:
    yield _check_ready(evidence.node, is_starting=is_starting(evidence))
    yield from _check_machine(evidence)
    yield from _check_provider_id(evidence, plan)
    yield from _check_initialized(evidence, plan)


def _check_ready(node: Node, *, is_starting: bool) -> CheckResult:
    condition, result = node.find_condition("Ready"), _NOT_READY[is_starting]
    if condition is None:
        return CheckResult("ready", result, "its kubelet has not reported yet")
    since = f" since {condition.last_transition_time}" if condition.last_transition_time else ""
    if condition.status == "True":
        return CheckResult("ready", "passed", f"its kubelet reports Ready{since}")
    detail = ": ".join(filter(None, (condition.reason, condition.message)))
    text = f"Ready is {condition.status}{since}" + (f", {detail}" if detail else "")
    return CheckResult("ready", result, text)


def _check_machine(evidence: NodeEvidence) -> Iterator[CheckResult]:
    match evidence.report:
        case NodeEnriched(facts=facts, verified_by=by):
            platform = facts.platform
            parts = (platform.platform, platform.zone or platform.region, platform.instance_type)
            place = ", ".join(filter(None, parts))
            text = f"the machine at {facts.node_ip} answers as {facts.node_name} ({place or 'no platform'})"
            text += f"; {sources}" if (sources := describe_sources(facts)) else ""
            text += "" if by == "nodename" else ", identified by its systemUUID"
            text += f"; its stage is {facts.stage!r}" if facts.stage not in ("", "running") else ""
            text += _describe_bus_source(evidence)
            yield CheckResult("machine", "passed", text)
        case NodeUnreachable(fault=MachineFault(step=step, endpoint=endpoint, message=message)):
            where = f" at {endpoint}" if endpoint else ""
            text = f"{step}{where}: {message}{_describe_bus_source(evidence)}"
            yield CheckResult("machine", "failed", text)
        case _ if not evidence.is_query_skipped:
            yield CheckResult("machine", "unknown", evidence.not_queried_reason)


def _describe_bus_source(evidence: NodeEvidence) -> str:
    event = evidence.machine_event if evidence.is_from_bus else None
    return f"; reported by metadata at {event.enriched_at:%Y-%m-%d %H:%M:%S} UTC" if event is not None else ""


def _check_provider_id(evidence: NodeEvidence, plan: Plan | None) -> Iterator[CheckResult]:
    existing = evidence.node.spec.provider_id
    if mismatch := _describe_mismatch(plan):
        yield CheckResult("providerID", "failed", mismatch)
    elif existing:
        yield CheckResult("providerID", "passed", f"{existing}{_describe_reported_id(evidence, plan)}")
    elif plan and plan.changes.provider_id:
        text = f"none yet; the labeler writes {plan.changes.provider_id}"
        yield CheckResult("providerID", "waits", text)
    elif evidence.node.is_initialized:
        text = "none; the controller that initialized the Node set none"
        yield CheckResult("providerID", "passed", text)


def _describe_mismatch(plan: Plan | None) -> str:
    return next((n.message for n in plan.notices if n.reason == "ProviderIDMismatch"), "") if plan else ""


def _describe_reported_id(evidence: NodeEvidence, plan: Plan | None) -> str:
    if not isinstance(evidence.report, NodeEnriched):
        return ""
    by_rules = plan.rule_effects.platform if plan and plan.rule_effects else evidence.report.facts.platform
    reported = derive_native_provider_id(by_rules)
    if not reported:
        return "; its machine reports no native providerID"
    return "; its machine reports the same" if reported == evidence.node.spec.provider_id else ""


def _check_initialized(evidence: NodeEvidence, plan: Plan | None) -> Iterator[CheckResult]:
    node, name = evidence.node, "initialized"
    if node.is_initialized:
        yield CheckResult(name, "passed", "it has no uninitialized taint")
    elif plan is None and not evidence.is_query_skipped:
        yield CheckResult(name, "unknown", "unknown until its machine is queried")
    elif plan is None:
        # The caller disabled the query, so a missing answer is no failure.
        result: CheckOutcome = "unknown" if node.provided_node_ip else "failed"
        yield CheckResult(name, result, f"the taint remains; {evidence.not_queried_reason}")
    elif plan.outcome == "initialized":
        yield CheckResult(name, "waits", f"nothing blocks it: {plan.reason}")
    elif plan.blocker and evidence.fault:
        text = f"the taint remains until its machine answers ({plan.blocker.reason})"
        yield CheckResult(name, "failed", text)
    else:
        left = "not managed by the labeler: " if plan.outcome == "not-ours" else ""
        yield CheckResult(name, "failed", f"{left}{plan.reason}")
