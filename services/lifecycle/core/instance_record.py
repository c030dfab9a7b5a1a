"""Plans the record that an account has shown a Node's instance alive, and its end with another machine."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import InstanceExists, InstanceGone, InstanceShutDown, NodeEnriched
from libs.common.contract.instances import (
    RECORD_ANNOTATION,
    RECORD_DIGEST_LABEL,
    InstanceRecord,
    encode_instance_record,
    get_provider,
)
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges
from libs.common.contract.protected_annotation import compute_digest
from services.lifecycle.core.instance_evidence import is_same_uuid, reported_provider_id
from services.lifecycle.core.instance_reports import InstanceSeen, InstanceViews
from services.lifecycle.core.node_change import ChangeKind, NodeChange
from services.lifecycle.core.node_index import DeletionCase
from services.lifecycle.core.query_history import MAX_GAP

# In place of the digest, with the Unix time in milliseconds: no kubelet can remove or change it.
_VOID: Final = "void"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_LATEST_VOID: Final = 2**47  # milliseconds, the year 6429: who may write the label may write any number
# lifecycle, metadata and the account each read their own clock.
_CLOCK_MARGIN: Final = timedelta(minutes=1)
_MAX_UUID_LENGTH: Final = 64  # characters; a kubelet reports it


def plan_instance_record(case: DeletionCase) -> NodeChange | None:
    """Return the change of the record; None if none is needed, or if anything is in doubt.

    Only a machine that answers gets a record, so that neither a restart nor an old report records one that
    was replaced meanwhile. After a void it must report the Node's providerID itself, and both machine and
    cloud must have been asked a minute later: the last reports may be about the former machine.
    """
    node, report, record = case.node, case.report, case.record
    reported, current = reported_provider_id(node, report), node.spec.provider_id
    if record is not None:
        if reported not in ("", current):
            return _void(f"its machine reports providerID {reported!r:.66}, the Node has {current}", case.now)
        if not is_same_uuid(record.system_uuid, node.status.node_info.system_uuid):
            return _void(
                f"its systemUUID is another one than when its instance {current} was seen alive", case.now
            )
    if not isinstance(report, NodeEnriched) or report.node.uid != node.uid or reported not in ("", current):
        return None
    if record is None and RECORD_DIGEST_LABEL in node.labels and not reported:
        return None
    seen = _find_only_account(case)
    if seen is None or not 0 < len(node.status.node_info.system_uuid) <= _MAX_UUID_LENGTH:
        return None
    if record is not None and not _may_follow(record, seen, case.instances):
        return None
    if min(report.facts.queried_at, seen.asked_at) <= _read_void_time(node) + _CLOCK_MARGIN:
        return None
    wanted = InstanceRecord(
        account=seen.account,
        provider_id=current,
        node_uid=node.uid,
        system_uuid=node.status.node_info.system_uuid,
        anchor=seen.anchor
        or (record.anchor if record is not None and record.account == seen.account else None),
        seen_at=seen.asked_at,
    )
    if record is not None and msgspec.structs.replace(record, seen_at=wanted.seen_at) == wanted:
        return None
    text = encode_instance_record(wanted)
    return NodeChange(
        kind=ChangeKind.WROTE_RECORD,
        changes=NodeChanges(
            annotations={RECORD_ANNOTATION: text}, labels={RECORD_DIGEST_LABEL: compute_digest(text)}
        ),
        reason=f"account {seen.account} has shown its instance alive at {seen.asked_at:%Y-%m-%dT%H:%M:%SZ}",
    )


def _find_only_account(case: DeletionCase) -> InstanceSeen | None:
    """Return the last report of the one account that has the instance; None if it is not exactly one."""
    last = [view.last for view in case.instances.values()]
    claims = [report for report in last if isinstance(report, InstanceExists | InstanceShutDown)]
    if len(claims) != 1:
        return None
    (seen,) = claims
    is_current = -MAX_GAP <= case.now - seen.asked_at <= MAX_GAP
    is_own = (seen.node_uid, seen.provider_id) == (case.node.uid, case.node.spec.provider_id)
    is_own = is_own and bool(get_provider(seen.provider_id))
    has_namesake = any(report.namesake for report in last)
    return seen if is_current and is_own and not has_namesake else None


def _may_follow(record: InstanceRecord, seen: InstanceSeen, views: InstanceViews) -> bool:
    """Whether the record may go to this account: the former one says "gone", or is none any more.

    Else any account could take the record while the cloud of the former one does not answer.
    """
    former = views.get(record.account)
    return record.account == seen.account or former is None or isinstance(former.last, InstanceGone)


def _void(reason: str, now: datetime) -> NodeChange:
    label = f"{_VOID}.{int(now.timestamp() * 1000)}"
    changes = NodeChanges(annotations={RECORD_ANNOTATION: None}, labels={RECORD_DIGEST_LABEL: label})
    return NodeChange(kind=ChangeKind.VOIDED_RECORD, changes=changes, reason=reason)


def _read_void_time(node: Node) -> datetime:
    """Return when the record was voided; the epoch if it was not."""
    word, _, milliseconds = node.labels.get(RECORD_DIGEST_LABEL, "").partition(".")
    is_voided = word == _VOID and milliseconds.isdecimal()
    return _EPOCH + timedelta(milliseconds=min(int(milliseconds), _LATEST_VOID)) if is_voided else _EPOCH
