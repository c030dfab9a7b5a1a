"""Watchers, metadata and the labeler through pauses, losses and restarts, on a virtual clock."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from libs.common.contract.subjects import OBSERVED_NODE
from tests.clocks import run_virtually
from tests.handover_actors import NAMES, WITH_LABELER, WITHOUT_LABELER, HandoverRun

Steps = list[tuple[str, str, float]]
SECONDS = st.sampled_from((0.0, 0.1, 0.7, 3.0, 12.0))
CHANGES = st.tuples(st.sampled_from(("put", "delete")), st.sampled_from(NAMES), SECONDS)
# The labeler is paused before it writes to web-1, which another machine replaces.
STALE_WRITE: Steps = [
    ("delete", "web-1", 3.0),
    ("put", "web-1", 0.1),
    ("pause", "labeler", 0.7),
    ("delete", "web-1", 0.0),
    ("put", "web-1", 3.0),
    ("resume", "labeler", 3.0),
]
# NATS loses the facts of web-2. metadata reconnects after the watcher has published the Node again.
LOST_FACTS: Steps = [("put", "web-2", 3.0), ("lose_end_and_older", "8", 0.1)]
# The labeler gets the facts of another web-2 before it has reconnected. Their sequence is lower than that of
# the message that it knows, and that NATS has lost.
REUSED_SEQUENCE: Steps = [
    ("put", "web-1", 3.0),
    ("lose_end_and_older", "20", 0.1),
    ("resume", "labeler", 0.7),
    ("restart", "labeler", 12.0),
    ("lose_end", "2", 0.0),
    ("delete", "web-2", 0.1),
    ("put", "web-2", 0.1),
    ("lose_end", "8", 0.7),
]
LOSSES = st.tuples(
    st.sampled_from(("lose_end", "lose_end_and_older")), st.sampled_from(("1", "2", "4", "8", "20")), SECONDS
)
HALF_OF_THE_EXAMPLES = settings(max_examples=settings().max_examples // 2)
# A leader is paused before it publishes web-2, which is deleted under the next leader.
GHOST: Steps = [
    ("delete", "web-2", 3.0),
    ("pause", "watcher-a", 0.0),
    ("put", "web-2", 0.7),
    ("delete", "web-2", 12.0),
    ("resume", "watcher-a", 3.0),
]


def build_schedules(
    processes: tuple[str, ...], *others: st.SearchStrategy[tuple[str, str, float]]
) -> st.SearchStrategy[Steps]:
    faults = st.sampled_from(("pause", "resume", "lose_reply", "restart"))
    steps = st.one_of(CHANGES, *others, st.tuples(faults, st.sampled_from(processes), SECONDS))
    return st.lists(steps, max_size=10)


@HALF_OF_THE_EXAMPLES
@given(build_schedules(WITHOUT_LABELER))
@example(GHOST)
def test_after_any_schedule_of_faults_the_flow_equals_the_cluster(steps: Steps):
    assert play(steps).violations == []


@HALF_OF_THE_EXAMPLES
@given(build_schedules(WITH_LABELER))
@example(GHOST)
@example(STALE_WRITE)
def test_after_any_schedule_of_faults_every_node_is_initialized_for_its_own_machine(steps: Steps):
    assert play(steps, WITH_LABELER).violations == []


@HALF_OF_THE_EXAMPLES
@given(build_schedules(WITH_LABELER, LOSSES))
@example(LOST_FACTS)
@example(REUSED_SEQUENCE)
def test_whatever_nats_loses_at_the_end_of_its_stream_is_published_again(steps: Steps):
    assert play(steps, WITH_LABELER).violations == []


def test_a_late_message_of_a_paused_leader_is_followed_by_the_deletion_of_the_next_one():
    handover = play(GHOST)
    subject = f"{OBSERVED_NODE}.web-2"
    events = [(event, epoch) for event, where, epoch in handover.messages if where == subject]
    assert events[-2:] == [("NodeObserved", 1), ("NodeGone", 2)]
    assert handover.violations == []


def test_a_write_without_its_fence_to_the_node_of_another_machine_is_found():
    [violation] = play(STALE_WRITE, WITH_LABELER, has_fences=False).violations
    assert violation.startswith("web-1 has the providerID hcloud://3 of another machine")


def test_the_same_schedule_leads_to_the_same_messages():
    first, second = play(GHOST), play(GHOST)
    assert first.messages == second.messages
    assert len(first.messages) > 10


def play(steps: Steps, processes: tuple[str, ...] = WITHOUT_LABELER, **options: bool) -> HandoverRun:
    """Run one schedule to its end."""

    async def run() -> HandoverRun:
        handover = HandoverRun(processes, **options)
        await handover.run(steps)
        return handover

    return run_virtually(run())
