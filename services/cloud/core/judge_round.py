"""What the answers of one round prove about an instance: the witness rule.

"Not found" alone proves nothing: a credential of another project gets the same answer for every instance. It
counts only beside a witness, which the same credential finds right after it.
"""

from collections.abc import Mapping
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
    if node.record is None:
        return _unknown(node, answers, account, NEVER_SEEN)
    witness = _find_witness(node.record, node, answers)
    if isinstance(witness, str):
        return _unknown(node, answers, account, witness)
    return _judge_name(node, answers, account, witness)


def build_seen_report(
    node: CloudNode, found: Instance, query: Query, account: Account
) -> InstanceExists | InstanceShutDown:
    """Return the report of an instance that the cloud has."""
    report = InstanceShutDown if found.is_shut_down else InstanceExists
    anchor = account.anchor
    return report(
        **_fields_of_each_report(node, query, account),
        anchor=None if anchor is None else InstanceAnchor(kind=anchor.kind, id=anchor.id),
        project=found.project,
        region=found.region,
    )


def build_absent_report(
    node: CloudNode, names: Mapping[str, Instance], query: Query, account: Account
) -> InstanceUnknown:
    """Return the report of an instance that another account may have; `names` are those of a list."""
    namesake = names.get(node.name)
    return InstanceUnknown(
        **_fields_of_each_report(node, query, account),
        namesake="" if namesake is None else namesake.id,
        is_absent=namesake is None,
        reason=NEVER_SEEN,
    )


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


def _judge_name(
    node: CloudNode, answers: Round, account: Account, witness: InstanceWitness
) -> InstanceGone | InstanceUnknown:
    """Return the report of an instance that is not found beside a witness: its name must be free."""
    name = answers.name
    if name is None or isinstance(name.answer, Unanswered):
        why = name.answer.reason if name is not None and isinstance(name.answer, Unanswered) else "not asked"
        return _unknown(node, answers, account, f"whether another instance has its name: {why}")
    if name.query.asked_at < answers.instance.query.answered_at:
        return _unknown(node, answers, account, "the name was asked for before the instance")
    same = next((each for each in name.answer if each.name == node.name), None)
    if same is not None:
        reason = f"the cloud does not find it, and instance {same.id} has the Node's name"
        return _unknown(node, answers, account, reason, namesake=same.id)
    whole_round = msgspec.structs.replace(answers.instance.query, answered_at=name.query.answered_at)
    return InstanceGone(**_fields_of_each_report(node, whole_round, account), witness=witness)


def _unknown(
    node: CloudNode, answers: Round, account: Account, reason: str, *, namesake: str = ""
) -> InstanceUnknown:
    common = _fields_of_each_report(node, answers.instance.query, account)
    return InstanceUnknown(**common, namesake=namesake, reason=reason)
