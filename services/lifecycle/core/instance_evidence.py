"""Assesses the evidence that a cloud has deleted a Node's instance: any doubt keeps the Node."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import (
    InstanceExists,
    InstanceGone,
    InstanceShutDown,
    InstanceUnknown,
    NodeEnriched,
    NodeUnreachable,
)
from libs.common.contract.instance_metadata import METADATA_PROVIDERS, find_named_instance
from libs.common.contract.instances import InstanceAnchor, InstanceRecord, is_same_instance
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid
from services.lifecycle.core.evidence import Assessment, MachineIndex, MachineReport
from services.lifecycle.core.instance_reports import MAX_SILENCE, InstanceViews, explain_unsound_round

_MAX_AHEAD: Final = timedelta(minutes=1)  # of the account's clock, which is not ours


class InstanceCase(msgspec.Struct, frozen=True, kw_only=True):
    """All data about one Node whose instance an account has shown alive."""

    node: Node
    record: InstanceRecord
    views: InstanceViews  # of accounts that still report
    # ids of the instances that the account has shown alive in that project -> the Nodes with those records
    recorded: Mapping[str, Collection[str]]
    accounts: Collection[str]  # of its cloud, which report on any Node
    # account -> those of its records, and those with which it has shown their instances alive lately
    anchors: Mapping[str, Collection[InstanceAnchor]]
    report: MachineReport | None  # metadata's last one
    machines: MachineIndex
    now: datetime


class RecordScope(msgspec.Struct, frozen=True):
    """The project in which an account has shown an instance alive.

    A witness of another project proves nothing: the account may have recorded it by a credential of that one.
    """

    account: str
    anchor: InstanceAnchor | None


def scope_of(record: InstanceRecord) -> RecordScope:
    """Return the project that the record shows."""
    return RecordScope(record.account, record.anchor)


Clause = Callable[[InstanceCase], str]  # why the Node is kept; "" if nothing speaks against its deletion


def assess_instance(case: InstanceCase) -> Assessment:
    """Assess every clause, and return what the account has shown if none keeps the Node."""
    return _combine(case, tuple(clause(case) for clause in CLAUSES))


def _combine(case: InstanceCase, reasons: tuple[str, ...]) -> Assessment:
    missing = tuple(reason for reason in reasons if reason)
    if missing:
        return Assessment(missing=missing)
    gone = _get_gone(case)
    if gone is None:
        return Assessment(missing=("its account does not report it as gone",))
    witness = (
        "the cloud itself reports its deletion"
        if gone.witness.kind == "cloud"
        else f"finds {gone.witness.kind} {gone.witness.id}"
    )
    text = f"account {case.record.account} has no instance {case.record.provider_id} any more, and {witness}"
    return Assessment(proven=(text,))


def _get_gone(case: InstanceCase) -> InstanceGone | None:
    view = case.views.get(case.record.account)
    return view.last if view is not None and isinstance(view.last, InstanceGone) else None


# ---- what the account must have shown


def needs_same_machine(case: InstanceCase) -> str:
    """A machine with another UUID is another one, whatever providerID its Node has kept."""
    if is_same_uuid(case.record.system_uuid, case.node.status.node_info.system_uuid):
        return ""
    return "its systemUUID is not the one that was recorded with its instance: it may be another machine"


def needs_no_other_provider_id(case: InstanceCase) -> str:
    """A server that was rebuilt under the same name has another id than its Node, for ever."""
    reported = reported_provider_id(case.node, case.report)
    if reported in ("", case.node.spec.provider_id):
        return ""
    return f"its machine reports another providerID: {reported!r:.66}"


def needs_gone(case: InstanceCase) -> str:
    """Silence, errors and absence from a list prove nothing."""
    view = case.views.get(case.record.account)
    if view is None:
        return f"account {case.record.account} has not reported on its instance yet"
    if isinstance(view.last, InstanceGone):
        return ""
    reason = getattr(view.last, "reason", "it exists")
    return f"account {case.record.account} does not report its instance as gone: {reason:.200}"


def needs_this_instance(case: InstanceCase) -> str:
    """A Node may be created again under its name, with another uid or instance."""
    gone = _get_gone(case)
    if gone is None or (gone.node_uid, gone.provider_id) == (case.node.uid, case.node.spec.provider_id):
        return ""
    return "its account reported on another Node of that name, or on another instance"


def needs_sound_round(case: InstanceCase) -> str:
    """Instance, witness and name belong to one round with one credential."""
    gone = _get_gone(case)
    return "" if gone is None else explain_unsound_round(gone)


def needs_past_times(case: InstanceCase) -> str:
    """A clock of the account that is ahead would hide later reports."""
    gone = _get_gone(case)
    ahead = gone is not None and gone.answered_at - case.now > _MAX_AHEAD
    return "the last round ended in the future" if ahead else ""


def needs_witness(case: InstanceCase) -> str:
    """A credential of another project finds neither: the witness must be one that lifecycle itself knows."""
    gone = _get_gone(case)
    if gone is None or gone.witness.kind == "cloud":
        return ""
    witness, anchor = gone.witness, case.record.anchor
    if anchor is None:
        return "no anchor was recorded with its instance, so no witness is known"
    if witness.kind == "anchor":
        known = witness.id == f"{anchor.kind}/{anchor.id}"
    else:
        others = set(case.recorded.get(witness.id, ())) - {case.node.name}
        known = bool(others) and not case.record.provider_id.endswith(f"/{witness.id}")
    return "" if known else f"the witness is no {witness.kind} that was recorded: {witness.id!r:.66}"


# ---- vetoes


def needs_no_account_that_sees_it(case: InstanceCase) -> str:
    """A server that moved to another project is gone in the one and exists in the other."""
    for account, view in sorted(case.views.items()):
        if view.seen is not None and case.now - view.seen.asked_at <= MAX_SILENCE:
            return f"account {account} has shown its instance alive at {view.seen.asked_at:%H:%M:%SZ}"
    return ""


def needs_answer_of_each_account(case: InstanceCase) -> str:
    """The instance may have moved to the project of an account that does not answer.

    An account that has records must show that its credential is of their project.
    """
    own = case.views.get(case.record.account)
    if own is None or own.history is None:
        return ""
    since = own.history.first.started_at
    for account in sorted({*case.accounts, *case.views} - {case.record.account}):
        view = case.views.get(account)
        if view is None:
            return f"account {account} has not reported on it yet: its instance may be there"
        last = view.last
        if isinstance(last, InstanceExists | InstanceShutDown) or last.namesake:
            continue  # another clause
        anchor = last.absent_from if isinstance(last, InstanceUnknown) else None
        expected = case.anchors.get(account, ())
        is_about_it = (last.node_uid, last.provider_id) == (case.node.uid, case.node.spec.provider_id)
        is_of_project = anchor is not None and (not expected or anchor in expected)
        is_in_time = last.asked_at > since and last.asked_at - case.now <= _MAX_AHEAD
        if not is_in_time or not is_about_it or not is_of_project:
            return f"account {account} has not shown since {since:%H:%M:%SZ} that it lacks the instance"
    return ""


def needs_no_namesake(case: InstanceCase) -> str:
    """A server that was rebuilt under the same name has another id."""
    for account, view in sorted(case.views.items()):
        if view.last.namesake:
            return f"account {account} has another instance with its name: {view.last.namesake!r:.66}"
    return ""


def needs_silent_machine(case: InstanceCase) -> str:
    """A machine that answers as this Node contradicts every cloud."""
    return "its machine answers" if isinstance(case.report, NodeEnriched) else ""


def needs_machine_report(case: InstanceCase) -> str:
    """Only metadata can tell that the machine is silent."""
    report = case.report
    is_silent = isinstance(report, NodeUnreachable) and report.node.uid == case.node.uid
    answers = isinstance(report, NodeEnriched)  # another clause
    return "" if is_silent or answers else "metadata has not reported on its machine yet"


def needs_no_machine_with_its_name(case: InstanceCase) -> str:
    """The machine may have moved to another address."""
    found = sorted(case.machines.nodes_by_machine_name.get(case.node.name, ()))
    return f"a machine with its name answers at an address of Node {found[0]}" if found else ""


def needs_own_uuid(case: InstanceCase) -> str:
    """The machine may have joined again under another name."""
    uuid = normalize_uuid(case.node.status.node_info.system_uuid)
    others = sorted(set(case.machines.nodes_by_uuid.get(uuid, ())) - {case.node.name}) if uuid else []
    return f"Node {others[0]} claims its systemUUID as well: its machine may live on" if others else ""


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
