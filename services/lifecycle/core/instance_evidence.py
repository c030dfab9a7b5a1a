"""Assesses the evidence that a cloud has deleted a Node's instance: any doubt keeps the Node."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from libs.common.contract.events import (
    InstanceExists,
    InstanceGone,
    InstanceShutDown,
    InstanceUnknown,
    NodeEnriched,
    NodeUnreachable,
)
from libs.common.contract.instance_metadata import METADATA_PROVIDERS, find_named_instance
from libs.common.contract.instances import InstanceRecord, is_same_instance
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid
from services.lifecycle.core.evidence import (
    Assessment,
    MachineReport,
    explain_machine_with_its_name,
    explain_shared_uuid,
)
from services.lifecycle.core.instance_reports import MAX_SILENCE, explain_unsound_round
from services.lifecycle.core.node_index import DeletionCase, scope_of

_MAX_AHEAD: Final = timedelta(minutes=1)  # of the account's clock, which is not ours


# Why the Node with that record is kept; "" if nothing speaks against its deletion.
Clause = Callable[[DeletionCase, InstanceRecord], str]


def assess_instance(case: DeletionCase, record: InstanceRecord) -> Assessment:
    """Assess every clause, and return what the account has shown if none keeps the Node."""
    missing = tuple(reason for clause in CLAUSES if (reason := clause(case, record)))
    gone = _get_gone(case, record)
    if missing or gone is None:
        return Assessment(missing=missing or ("its account does not report it as gone",))
    witness = (
        "the cloud itself reports its deletion"
        if gone.witness.kind == "cloud"
        else f"finds {gone.witness.kind} {gone.witness.id}"
    )
    text = f"account {record.account} has no instance {record.provider_id} any more, and {witness}"
    return Assessment(proven=(text,))


def _get_gone(case: DeletionCase, record: InstanceRecord) -> InstanceGone | None:
    view = case.instances.get(record.account)
    return view.last if view is not None and isinstance(view.last, InstanceGone) else None


# ---- what the account must have shown


def needs_same_machine(case: DeletionCase, record: InstanceRecord) -> str:
    """A machine with another UUID is another one, whatever providerID its Node has kept."""
    if is_same_uuid(record.system_uuid, case.node.status.node_info.system_uuid):
        return ""
    return "its systemUUID is not the one that was recorded with its instance: it may be another machine"


def needs_no_other_provider_id(case: DeletionCase, record: InstanceRecord) -> str:
    """A server that was rebuilt under the same name has another id than its Node, for ever."""
    reported = reported_provider_id(case.node, case.report)
    if reported in ("", case.node.spec.provider_id):
        return ""
    return f"its machine reports another providerID: {reported!r:.66}"


def needs_gone(case: DeletionCase, record: InstanceRecord) -> str:
    """Silence, errors and absence from a list prove nothing."""
    view = case.instances.get(record.account)
    if view is None:
        return f"account {record.account} has not reported on its instance yet"
    if isinstance(view.last, InstanceGone):
        return ""
    reason = getattr(view.last, "reason", "it exists")
    return f"account {record.account} does not report its instance as gone: {reason:.200}"


def needs_this_instance(case: DeletionCase, record: InstanceRecord) -> str:
    """A Node may be created again under its name, with another uid or instance."""
    gone = _get_gone(case, record)
    if gone is None or (gone.node_uid, gone.provider_id) == (case.node.uid, case.node.spec.provider_id):
        return ""
    return "its account reported on another Node of that name, or on another instance"


def needs_sound_round(case: DeletionCase, record: InstanceRecord) -> str:
    """Instance, witness and name belong to one round with one credential."""
    gone = _get_gone(case, record)
    return "" if gone is None else explain_unsound_round(gone)


def needs_past_times(case: DeletionCase, record: InstanceRecord) -> str:
    """A clock of the account that is ahead would hide later reports."""
    gone = _get_gone(case, record)
    ahead = gone is not None and gone.answered_at - case.now > _MAX_AHEAD
    return "the last round ended in the future" if ahead else ""


def needs_witness(case: DeletionCase, record: InstanceRecord) -> str:
    """A credential of another project finds neither: the witness must be one that lifecycle itself knows."""
    gone = _get_gone(case, record)
    if gone is None or gone.witness.kind == "cloud":
        return ""
    witness, anchor = gone.witness, record.anchor
    if anchor is None:
        return "no anchor was recorded with its instance, so no witness is known"
    if witness.kind == "anchor":
        known = witness.id == f"{anchor.kind}/{anchor.id}"
    else:
        others = set(case.recorded.get((scope_of(record), witness.id), ())) - {case.node.name}
        known = bool(others) and not record.provider_id.endswith(f"/{witness.id}")
    return "" if known else f"the witness is no {witness.kind} that was recorded: {witness.id!r:.66}"


# ---- vetoes


def needs_no_account_that_sees_it(case: DeletionCase, record: InstanceRecord) -> str:
    """A server that moved to another project is gone in the one and exists in the other."""
    for account, view in sorted(case.instances.items()):
        if view.seen is not None and case.now - view.seen.asked_at <= MAX_SILENCE:
            return f"account {account} has shown its instance alive at {view.seen.asked_at:%H:%M:%SZ}"
    return ""


def needs_answer_of_each_account(case: DeletionCase, record: InstanceRecord) -> str:
    """The instance may have moved to the project of an account that does not answer.

    An account that has records must show that its credential is of their project.
    """
    own = case.instances.get(record.account)
    if own is None or own.history is None:
        return ""
    since, anchors = own.history.first.started_at, case.list_anchors(case.now)
    for account in sorted({*case.accounts, *case.instances} - {record.account}):
        view = case.instances.get(account)
        if view is None:
            return f"account {account} has not reported on it yet: its instance may be there"
        last = view.last
        if isinstance(last, InstanceExists | InstanceShutDown) or last.namesake:
            continue  # another clause
        anchor = last.absent_from if isinstance(last, InstanceUnknown) else None
        expected = anchors.get(account, ())
        is_about_it = (last.node_uid, last.provider_id) == (case.node.uid, case.node.spec.provider_id)
        is_of_project = anchor is not None and (not expected or anchor in expected)
        is_in_time = last.asked_at > since and last.asked_at - case.now <= _MAX_AHEAD
        if not is_in_time or not is_about_it or not is_of_project:
            return f"account {account} has not shown since {since:%H:%M:%SZ} that it lacks the instance"
    return ""


def needs_no_namesake(case: DeletionCase, record: InstanceRecord) -> str:
    """A server that was rebuilt under the same name has another id."""
    for account, view in sorted(case.instances.items()):
        if view.last.namesake:
            return f"account {account} has another instance with its name: {view.last.namesake!r:.66}"
    return ""


def needs_silent_machine(case: DeletionCase, record: InstanceRecord) -> str:
    """A machine that answers as this Node contradicts every cloud."""
    return "its machine answers" if isinstance(case.report, NodeEnriched) else ""


def needs_machine_report(case: DeletionCase, record: InstanceRecord) -> str:
    """Only metadata can tell that the machine is silent."""
    report = case.report
    is_silent = isinstance(report, NodeUnreachable) and report.node.uid == case.node.uid
    answers = isinstance(report, NodeEnriched)  # another clause
    return "" if is_silent or answers else "metadata has not reported on its machine yet"


def needs_no_machine_with_its_name(case: DeletionCase, record: InstanceRecord) -> str:
    """The machine may have moved to another address."""
    return explain_machine_with_its_name(case.node, case.machines)


def needs_own_uuid(case: DeletionCase, record: InstanceRecord) -> str:
    """The machine may have joined again under another name."""
    return explain_shared_uuid(case.node, case.machines)


CLAUSES: Final[tuple[Clause, ...]] = (
    needs_same_machine,
    needs_no_other_provider_id,
    needs_gone,
    needs_this_instance,
    needs_sound_round,
    needs_past_times,
    needs_witness,
    needs_no_account_that_sees_it,
    needs_answer_of_each_account,
    needs_no_namesake,
    needs_silent_machine,
    needs_machine_report,
    needs_no_machine_with_its_name,
    needs_own_uuid,
)


def reported_provider_id(node: Node, report: MachineReport | None) -> str:
    """Return the providerID that the Node's machine reported last; "" if it reported none.

    Where Talos does not know the cloud of its machine, it is the one that the machine names in its SMBIOS.
    """
    if report is None or report.node.uid != node.uid:
        return ""
    facts = report.facts if isinstance(report, NodeEnriched) else report.last_known
    if facts is None:
        return ""
    named = (find_named_instance(provider, facts) for provider in METADATA_PROVIDERS)
    reported = facts.platform.provider_id or next(filter(None, named), "")
    return node.spec.provider_id if is_same_instance(reported, node.spec.provider_id) else reported


def is_same_uuid(recorded: str, current: str) -> bool:
    """Whether two texts are one machine's systemUUID; a placeholder is compared as it is."""
    return recorded == current or normalize_uuid(recorded) == normalize_uuid(current) != ""
