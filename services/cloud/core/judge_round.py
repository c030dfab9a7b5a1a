"""What the answers of one round prove about an instance: the witness rule.

"Not found" alone proves nothing: a credential of another project gets the same answer for every instance. It
counts only beside a witness, which the same credential finds right after it.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from libs.clouds.instances import (
    CREDENTIAL_ANCHOR,
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    Unanswered,
)
from libs.common.contract.events import (
    AnyInstanceReport,
    InstanceExists,
    InstanceGone,
    InstanceShutDown,
    InstanceUnknown,
)
from libs.common.contract.instances import InstanceAnchor, InstanceRecord, InstanceWitness
from services.cloud.core.node_table import CloudNode

NEVER_SEEN: Final = "this account has never seen the instance alive"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """When a query ran, and with which credential."""

    asked_at: datetime
    answered_at: datetime
    began: float = 0.0  # monotonic
    credential: Credential  # the one after the answer


class InstanceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for the exact id of a Node's instance."""

    query: Query
    instance_id: str
    answer: Instance | Deleted | NotFound | Unanswered


class WitnessAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for the exact id of this Node's recorded anchor, or of another recorded Node's instance."""

    query: Query
    asked_for: str | Anchor  # the id of the instance, or the anchor
    answer: Instance | Anchor | Deleted | NotFound | Unanswered


class NameAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The instances with exactly the Node's name."""

    query: Query
    answer: tuple[Instance, ...] | Unanswered


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of one round about one Node."""

    credential: Credential  # at the begin of the round
    instance: InstanceAnswer
    witness: WitnessAnswer | None = None
    name: NameAnswer | None = None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What each report of this account has in common."""

    name: str
    stream_id: str
    anchor: Anchor | None = None


def judge_round(node: CloudNode, answers: Round, account: Account) -> AnyInstanceReport:
    """Return what the round proves about the instance of this Node."""
    found = answers.instance.answer
    if reason := _explain_mixed_credentials(answers):
        return _unknown(node, answers, account, reason)
    if isinstance(found, Unanswered):
        return _unknown(node, answers, account, found.reason)
    if answers.instance.instance_id != node.instance_id:
        return _unknown(node, answers, account, "another instance was asked for")
    if isinstance(found, Instance):
        if found.id != node.instance_id:
            return _unknown(node, answers, account, f"the cloud returned the instance {found.id} instead")
        return build_seen_report(node, found, answers.instance.query, account)
    why, namesake = _explain_name(node, answers)
    if why:
        return _unknown(node, answers, account, why, namesake=namesake)
    if node.record is None:
        return _unknown(node, answers, account, NEVER_SEEN, absent_from=_describe_anchor(account))
    witness = _find_witness(node.record, node, answers)
    if isinstance(witness, str):
        return _unknown(node, answers, account, witness)
    return InstanceGone(**_fields_of_each_report(node, _span(answers), account), witness=witness)


def build_seen_report(
    node: CloudNode, found: Instance, query: Query, account: Account
) -> InstanceExists | InstanceShutDown:
    """Return the report of an instance that the cloud has."""
    report = InstanceShutDown if found.is_shut_down else InstanceExists
    return report(**_fields_of_each_report(node, query, account), anchor=_describe_anchor(account))


def build_unlisted_report(node: CloudNode, query: Query, account: Account) -> InstanceUnknown:
    """Return the report of an instance that a list lacks, which proves nothing."""
    reason = "the list of all instances does not have it"
    return InstanceUnknown(**_fields_of_each_report(node, query, account), reason=reason)


def _describe_anchor(account: Account) -> InstanceAnchor | None:
    anchor = account.anchor
    return None if anchor is None else InstanceAnchor(kind=anchor.kind, id=anchor.id)


def _fields_of_each_report(node: CloudNode, query: Query, account: Account) -> dict[str, Any]:
    return {
        "stream_id": account.stream_id,
        "account": account.name,
        "name": node.name,
        "node_uid": node.uid,
        "provider_id": node.provider_id,
        "asked_at": query.asked_at,
        "answered_at": query.answered_at,
        "credential_loaded_at": query.credential.loaded_at,
    }


def _explain_mixed_credentials(answers: Round) -> str:
    parts = (answers.instance, answers.witness, answers.name)
    generations = {part.query.credential.generation for part in parts if part is not None}
    if generations != {answers.credential.generation}:
        return "the credential changed during the queries"
    return ""


def _find_witness(record: InstanceRecord, node: CloudNode, answers: Round) -> InstanceWitness | str:
    """Return the witness of an instance that was not found, or why there is none."""
    if isinstance(answers.instance.answer, Deleted):
        return InstanceWitness(kind="cloud", asked_at=answers.instance.query.asked_at)
    witness = answers.witness
    if witness is None:
        return "the cloud does not find it, and neither another recorded Node's instance nor an anchor"
    if witness.query.asked_at < answers.instance.query.answered_at:
        return "the witness was asked for before the instance"
    if isinstance(witness.answer, Unanswered):
        return f"the cloud does not find it, and does not answer for the witness: {witness.answer.reason}"
    if witness.answer != witness.asked_for and not (
        isinstance(witness.answer, Instance) and witness.answer.id == witness.asked_for
    ):
        return "the cloud finds neither it nor the witness: the credential may be another project's"
    asked_for, recorded = witness.asked_for, record.anchor
    if isinstance(asked_for, Anchor):
        if recorded != InstanceAnchor(kind=asked_for.kind, id=asked_for.id):
            return "the anchor is not the one that was recorded with the instance"
        text = f"{asked_for.kind}/{asked_for.id}"
        return InstanceWitness(kind="anchor", id=text, asked_at=witness.query.asked_at)
    if recorded != InstanceAnchor(kind=CREDENTIAL_ANCHOR, id=answers.credential.fingerprint):
        return "another instance is a witness only by the credential that was recorded, without an anchor"
    if asked_for == node.instance_id:
        return "an instance is no witness for itself"
    return InstanceWitness(kind="instance", id=asked_for, asked_at=witness.query.asked_at)


def _explain_name(node: CloudNode, answers: Round) -> tuple[str, str]:
    """Return why the Node's name may be another instance's, and that instance's id; "" if it is none's."""
    name = answers.name
    if name is None or isinstance(name.answer, Unanswered):
        why = name.answer.reason if name is not None and isinstance(name.answer, Unanswered) else "not asked"
        return f"whether another instance has its name: {why}", ""
    if name.query.asked_at < answers.instance.query.answered_at:
        return "the name was asked for before the instance", ""
    same = next((each for each in name.answer if each.name == node.name), None)
    if same is None:
        return "", ""
    return f"the cloud does not find it, and instance {same.id} has the Node's name", same.id


def _span(answers: Round) -> Query:
    """Return the first query of the round with the end of its last one."""
    parts = (answers.witness, answers.name)
    ends = [part.query.answered_at for part in parts if part is not None]
    return msgspec.structs.replace(answers.instance.query, answered_at=max(ends))


def _unknown(
    node: CloudNode,
    answers: Round,
    account: Account,
    reason: str,
    *,
    namesake: str = "",
    absent_from: InstanceAnchor | None = None,
) -> InstanceUnknown:
    common = _fields_of_each_report(node, answers.instance.query, account)
    return InstanceUnknown(**common, namesake=namesake, reason=reason, absent_from=absent_from)
