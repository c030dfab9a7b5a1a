"""Answers of a cloud about the instance of web-1, for tests of the witness rule."""

from datetime import datetime, timedelta
from typing import Any

from libs.clouds.instances import (
    CREDENTIAL_ANCHOR,
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    Unanswered,
)
from libs.common.contract.instances import InstanceAnchor, InstanceRecord
from services.cloud.core.judge_round import (
    Account,
    InstanceAnswer,
    NameAnswer,
    Query,
    Round,
    WitnessAnswer,
)
from services.cloud.core.node_table import CloudNode
from tests.builders import NOW, STREAM_ID

ACCOUNT = Account(name="prod", stream_id=STREAM_ID)
ANCHOR = Anchor("network", "4711")
CREDENTIAL = Credential(1, NOW - timedelta(hours=1), "f1")
OTHER_CREDENTIAL = Credential(2, NOW, "f2")
BY_CREDENTIAL = Anchor(CREDENTIAL_ANCHOR, "f1")
SILENCE = Unanswered("unreachable", "no answer within 15 s")


def make_instance(instance_id: str = "7", name: str = "web-1", *, is_shut_down: bool = False) -> Instance:
    return Instance(id=instance_id, name=name, is_shut_down=is_shut_down, region="fsn1")


WITNESS = make_instance("8", "web-2")


def make_cloud_node(
    name: str = "web-1", instance_id: str = "7", *, anchor: Anchor | None = ANCHOR, is_recorded: bool = True,
    is_ready: bool = False,
) -> CloudNode:  # fmt: skip
    recorded = None if anchor is None else InstanceAnchor(kind=anchor.kind, id=anchor.id)
    record = InstanceRecord(
        account="prod", provider_id=f"hcloud://{instance_id}", node_uid=f"uid-{name}", system_uuid="u",
        anchor=recorded, seen_at=NOW,
    )  # fmt: skip
    return CloudNode(
        name=name, uid=f"uid-{name}", provider_id=f"hcloud://{instance_id}", instance_id=instance_id,
        is_ready=is_ready, record=record if is_recorded else None,
    )  # fmt: skip


def make_query(at_second: float, credential: Credential = CREDENTIAL) -> Query:
    asked_at: datetime = NOW + timedelta(seconds=at_second)
    return Query(asked_at=asked_at, answered_at=asked_at + timedelta(seconds=1), credential=credential)


def make_round(
    answer: Instance | Deleted | NotFound | Unanswered, *,
    instance_id: str = "7",
    witness: Any = WITNESS, asked_for: str | Anchor = "8", witness_at: float = 10.0,
    names: tuple[Instance, ...] | Unanswered | None = (), name_at: float = 20.0,
    credentials: tuple[Credential, Credential, Credential] = (CREDENTIAL, CREDENTIAL, CREDENTIAL),
) -> Round:  # fmt: skip
    """A round at 0, 10 and 20 s; `witness` and `names` None: not asked."""
    of_instance, of_witness, of_name = credentials
    return Round(
        credential=CREDENTIAL,
        instance=InstanceAnswer(query=make_query(0, of_instance), instance_id=instance_id, answer=answer),
        witness=None
        if witness is None
        else WitnessAnswer(query=make_query(witness_at, of_witness), asked_for=asked_for, answer=witness),
        name=None if names is None else NameAnswer(query=make_query(name_at, of_name), answer=names),
    )
