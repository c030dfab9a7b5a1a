"""Watchers and metadata through pauses, lost replies and restarts, on a virtual clock."""

from hypothesis import example, given
from hypothesis import strategies as st

from libs.common.contract.subjects import OBSERVED_NODE
from tests.handover_actors import NAMES, PROCESSES, HandoverRun
from tests.virtual_loop import run_virtually

Steps = list[tuple[str, str, float]]
SECONDS = st.sampled_from((0.0, 0.1, 0.7, 3.0, 12.0))
CHANGES = st.tuples(st.sampled_from(("put", "delete")), st.sampled_from(NAMES), SECONDS)
FAULTS = st.tuples(
    st.sampled_from(("pause", "resume", "lose_reply", "restart")), st.sampled_from(PROCESSES), SECONDS
)
# A leader is paused before it publishes web-2, which is deleted under the next leader.
GHOST: Steps = [
    ("delete", "web-2", 3.0),
    ("pause", "watcher-a", 0.0),
    ("put", "web-2", 0.7),
    ("delete", "web-2", 12.0),
    ("resume", "watcher-a", 3.0),
]


@given(st.lists(CHANGES | FAULTS, max_size=10))
@example(GHOST)
def test_after_any_schedule_of_faults_the_flow_equals_the_cluster(steps: Steps):
    assert play(steps).violations == []


def test_a_late_message_of_a_paused_leader_is_followed_by_the_deletion_of_the_next_one():
    handover = play(GHOST)
    subject = f"{OBSERVED_NODE}.web-2"
    events = [(event, epoch) for event, where, epoch in handover.messages if where == subject]
    assert events[-2:] == [("NodeObserved", 2), ("NodeGone", 3)]
    assert handover.violations == []


def test_the_same_schedule_leads_to_the_same_messages():
    first, second = play(GHOST), play(GHOST)
    assert first.messages == second.messages
    assert len(first.messages) > 10


def play(steps: Steps) -> HandoverRun:
    """Run one schedule to its end."""

    async def run() -> HandoverRun:
        handover = HandoverRun()
        await handover.run(steps)
        return handover

    return run_virtually(run())
