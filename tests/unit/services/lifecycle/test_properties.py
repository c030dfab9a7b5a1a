"""Whatever happens in whatever order: never a deletion without all proofs, and none in an outage."""

from datetime import timedelta
from typing import Literal

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from libs.common.contract.machine import FaultKind, MachineFault
from services.lifecycle.core.decide import Delete, DeletionPolicy, ReplicaStatus, decide
from services.lifecycle.core.node_index import NodeIndex
from tests import lifecycle_actors
from tests.builders import NOW, make_node

NODE = lifecycle_actors.make_lost_node()
READY = lifecycle_actors.make_lost_node(conditions=(lifecycle_actors.make_ready_condition("True"),))
NEW = make_node("new-1", uid="uid-new", taints=(), system_uuid=lifecycle_actors.NEW_UUID)
TERMS = DeletionPolicy()
PROVEN = ReplicaStatus(uptime=timedelta(hours=2), leading_for=timedelta(hours=2))

What = Literal["proof", "proof again", "attempts restart", "silence", "half", "answers", "ready", "restart"]


class HistoryStep(msgspec.Struct, frozen=True):
    what: What
    seconds: float  # since the one before it, by our clock
    drift: float = 0.0  # of metadata's clock against ours, from then on


happenings = st.lists(
    st.builds(
        HistoryStep,
        # Mostly looks that prove it, or hardly any history would come near the three that are needed.
        st.one_of(
            st.just("proof"),
            st.just("proof"),
            st.just("proof"),
            st.sampled_from(What.__args__),  # type: ignore[attr-defined]
        ),
        st.sampled_from([1.0, 60.0, 240.0, 299.0, 301.0, 590.0, 601.0, 2000.0]),
        st.sampled_from([0.0, 0.0, 0.0, 0.0, 700.0, -700.0]),
    ),
    max_size=12,
)


class Replayed:
    """What the service would know after these, and what a naive reader of the same story concludes."""

    def __init__(self) -> None:
        self.known = NodeIndex()
        self.known.upsert_node(NODE)
        self.known.upsert_node(NEW)
        self.at = 0.0
        self.drift = 0.0
        self.attempt = 0
        self.proofs: list[tuple[float, float]] = []  # ours and metadata's clock, of those not contradicted

    def happens(self, one: HistoryStep) -> None:
        self.at += one.seconds
        self.drift += one.drift
        match one.what:
            case "proof":
                self._proof(self.at + self.drift)
            case "proof again":
                if self.proofs:
                    self._say(self.proofs[-1][1], self.attempt)
            case "attempts restart":
                self.attempt = 0
                self.proofs.clear()
                self._proof(self.at + self.drift)
            case "silence" | "half":
                kind: FaultKind = "refused" if one.what == "silence" else "wrong_machine"
                fault = MachineFault(kind=kind, step="connect", message="no")
                self.attempt += 1
                self.known.upsert_report(
                    lifecycle_actors.make_unreachable(NODE, fault=fault, attempt=self.attempt), self.at
                )
                self.proofs.clear()
            case "answers":
                self.attempt = 0
                self.known.upsert_report(lifecycle_actors.make_answering(NODE), self.at)
                self.proofs.clear()
            case "ready":
                self.known.upsert_node(READY)
                self.known.upsert_node(NODE)
                self.proofs.clear()
            case "restart":
                self.known.forget_histories()
                self.proofs.clear()

    def _proof(self, looked: float) -> None:
        self.attempt += 1
        self._say(looked, self.attempt)
        self.proofs.append((self.at, looked))

    def _say(self, looked: float, attempt: int) -> None:
        machine = lifecycle_actors.make_foreign_machine(queried_at=NOW + timedelta(seconds=looked))
        self.known.upsert_report(
            lifecycle_actors.make_unreachable(NODE, foreign_machines=(machine,), attempt=attempt), self.at
        )

    def may_be_deleted(self) -> bool:
        """Three proofs, ten minutes apart at least by both clocks, the last one just now."""
        distinct = {looked for _, looked in self.proofs}
        if len(distinct) < TERMS.min_polls:
            return False
        ours, theirs = zip(*self.proofs, strict=True)
        shortest: float = min(max(ours) - min(ours), max(theirs) - min(theirs))
        return shortest >= TERMS.min_span.total_seconds()

    def decided(self, standing: ReplicaStatus = PROVEN) -> bool:
        now = NOW + timedelta(seconds=self.at)
        judged = decide(self.known.build_case(NODE, now, self.at), TERMS, standing)
        return isinstance(judged, Delete)


@given(happenings)
@example(
    # The count restarted, by a clock that was set back: a success in between was missed.
    [
        HistoryStep("proof", 1.0),
        HistoryStep("proof", 60.0),
        HistoryStep("proof", 590.0),
        HistoryStep("attempts restart", 1.0, -700.0),
    ]
)
def test_nothing_is_deleted_without_all_proofs_whatever_happens_in_whatever_order(story: list[HistoryStep]):
    replayed = Replayed()
    for one in story:
        replayed.happens(one)
        assert not replayed.decided() or replayed.may_be_deleted(), story


def test_the_story_of_a_machine_that_was_replaced_ends_in_a_deletion():
    replayed = Replayed()
    decided = [replayed.decided()]
    for _ in range(11):
        replayed.happens(HistoryStep("proof", 60.0))
        decided.append(replayed.decided())
    assert decided == [False] * 11 + [True]


@given(happenings, st.sampled_from(["young", "new leader", "standby", "paused"]))
def test_who_is_young_or_does_not_lead_deletes_nothing(story: list[HistoryStep], what: str):
    short = TERMS.startup_grace - timedelta(seconds=1)
    standing = {
        "young": ReplicaStatus(uptime=short, leading_for=short),
        "new leader": ReplicaStatus(uptime=timedelta(hours=2), leading_for=short),
        "standby": ReplicaStatus(uptime=timedelta(hours=2), leading_for=None),
        "paused": ReplicaStatus(
            uptime=timedelta(hours=2), leading_for=timedelta(hours=2), pause_reason="no leader is heard"
        ),
    }[what]
    replayed = Replayed()
    for one in [*story, *[HistoryStep("proof", 300.0)] * 3]:
        replayed.happens(one)
        assert not replayed.decided(standing)


def test_a_proof_of_long_ago_is_none_nor_is_one_that_was_on_its_way_for_long():
    prompt, late = Replayed(), Replayed()
    late.drift = -TERMS.max_poll_age.total_seconds() - 1
    for replayed in (prompt, late):
        for _ in range(15):
            replayed.happens(HistoryStep("proof", 60.0))
    assert prompt.decided()
    assert not late.decided()
    prompt.at += TERMS.max_poll_age.total_seconds() + 1
    assert not prompt.decided()
