"""A message that cannot be applied is remembered until the stream replaces or drops it."""

from libs.common.bus.follow_flow import EventApplier
from tests.builders import make_message, make_node, make_node_observed

BROKEN = make_message(make_node_observed(make_node("broken")))
GOOD = make_message(make_node_observed(make_node("good")))


def make_applier(applied: list[object]) -> EventApplier:
    def apply(event: object) -> None:
        if event == BROKEN.event and not applied:
            raise KeyError("defect")
        applied.append(event)

    return EventApplier(apply, consequence="Nodes may be missing")


def test_a_failed_message_is_reported_until_a_newer_one_of_its_subject_is_applied():
    applied: list[object] = []
    applier = make_applier(applied)
    applier.apply(BROKEN)
    failure = f"defect: cannot apply {BROKEN.subject}, so Nodes may be missing"
    assert applier.explain_failure() == failure
    applier.apply(GOOD)
    assert applier.explain_failure() == failure
    applier.apply(BROKEN)  # succeeds the second time
    assert applier.explain_failure() == ""
    assert applied == [GOOD.event, BROKEN.event]


def test_a_failure_ends_with_its_subject_or_the_stream():
    applier = make_applier([])
    applier.apply(BROKEN)
    applier.handle_expired(GOOD.subject)
    assert applier.explain_failure()
    applier.handle_expired(BROKEN.subject)
    assert applier.explain_failure() == ""
    applier.apply(BROKEN)
    applier.clear()
    assert applier.explain_failure() == ""
