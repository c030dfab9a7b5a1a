"""Input of machines fills neither the labeler's memory nor an operator's terminal."""

from libs.common.contract.machine import MachineFault
from services.labeler.blocker import block_on_fault
from services.labeler.event_deduplicator import MAX_NOTICES, EventDeduplicator
from services.labeler.plan import Notice


def test_a_machine_with_ever_new_words_does_not_fill_us():
    told = EventDeduplicator()
    notices = tuple(Notice(reason="LabelSkipped", message=f"zone {number}") for number in range(1000))
    for notice in notices:
        told.record_notice("web-1", "uid-1", notice)
    assert told.select_new_notices("web-1", "uid-1", notices) == notices[:-MAX_NOTICES]


def test_what_new_rules_cure_is_told_again_should_it_come_back():
    told, stays, cured = EventDeduplicator(), Notice(reason="A", message="m"), Notice(reason="A", message="n")
    for notice in (stays, cured):
        told.record_notice("web-1", "uid-1", notice)
    assert told.select_new_notices("web-1", "uid-1", (stays,)) == ()
    assert told.select_new_notices("web-1", "uid-1", (stays, cured)) == (), (
        "a machine that alternates does not fill the memory"
    )
    told.on_rules_changed()
    assert told.select_new_notices("web-1", "uid-1", (stays,)) == ()
    assert told.select_new_notices("web-1", "uid-1", (stays, cured)) == (cured,)


def test_what_a_machine_says_of_itself_is_one_plain_line_on_its_node():
    fault = MachineFault(kind="internal", step="look", message="\x1b[2J\x9b31mdone\r\nAll good")
    assert block_on_fault(fault).message.startswith(
        "look: \ufffd[2J\ufffd31mdone\ufffd\ufffdAll good; retried"
    )
