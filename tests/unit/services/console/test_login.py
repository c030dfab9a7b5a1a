"""Sessions and attempts to log in, on times of the test."""

from hypothesis import given
from hypothesis import strategies as st

from services.console.login.attempt_limiter import AttemptLimiter, AttemptRate
from services.console.login.sessions import (
    CHECK_SECONDS,
    LIFETIME_SECONDS,
    MAX_SESSIONS,
    RETRY_SECONDS,
    UNCHECKED_SECONDS,
    Session,
    SessionTable,
)


def add(table: SessionTable, session_id: str, user: str = "anna", now: float = 0.0) -> Session:
    table.add(session_id, user, "token", now)
    found = table.find(session_id, now)
    assert found is not None
    return found


def test_a_session_is_found_by_its_id_until_its_lifetime_is_over():
    table = SessionTable()
    session = add(table, "one")
    assert table.find("two", 0.0) is table.find("", 0.0) is None
    assert table.find(b"\xff".decode(errors="surrogateescape"), 0.0) is None, "as aiohttp reads a cookie"
    assert table.find("one", LIFETIME_SECONDS - 1) is session
    assert table.find("one", LIFETIME_SECONDS) is None
    assert table.list_due(LIFETIME_SECONDS) == ()


def test_a_session_is_checked_at_intervals_and_sooner_after_a_check_without_answer():
    table = SessionTable()
    session = add(table, "one")
    assert table.list_due(CHECK_SECONDS - 1) == ()
    assert table.list_due(CHECK_SECONDS) == (session,)
    session.record_check(CHECK_SECONDS, is_answered=False)
    assert table.list_due(CHECK_SECONDS + RETRY_SECONDS - 1) == ()
    assert table.list_due(CHECK_SECONDS + RETRY_SECONDS) == (session,)
    session.record_check(CHECK_SECONDS + RETRY_SECONDS, is_answered=True)
    assert table.list_due(2 * CHECK_SECONDS) == ()


def test_a_session_without_answers_of_the_api_server_is_unverified_until_the_next_one():
    session = add(SessionTable(), "one")
    session.record_check(UNCHECKED_SECONDS - 1, is_answered=False)
    assert session.is_verified(UNCHECKED_SECONDS - 1)
    assert not session.is_verified(UNCHECKED_SECONDS)
    session.record_check(UNCHECKED_SECONDS, is_answered=True)
    assert session.is_verified(UNCHECKED_SECONDS)


def test_at_the_limit_a_login_replaces_a_session_of_the_user_with_the_most():
    table = SessionTable()
    add(table, "berta", "berta")
    for number in range(MAX_SESSIONS + 5):
        add(table, str(number))
    assert table.find("berta", 0.0) is not None
    assert table.find("5", 0.0) is None
    assert table.find("6", 0.0) is not None
    assert len(table.list_due(CHECK_SECONDS)) == MAX_SESSIONS


def test_a_text_of_a_session_does_not_contain_its_token():
    session = Session("anna", "secret-token", 1.0, 0.0, 0.0)
    assert "secret-token" not in repr(session) + str(session)


def make_limiter() -> AttemptLimiter:
    return AttemptLimiter(per_source=AttemptRate(3, 10.0), overall=AttemptRate(5, 1.0))


def test_a_source_has_a_burst_and_then_one_attempt_at_each_interval():
    limiter = make_limiter()
    assert [limiter.admit("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert [limiter.admit("a", 9.9), limiter.admit("a", 10.0), limiter.admit("a", 10.1)] == [
        False,
        True,
        False,
    ]


def test_another_source_has_attempts_of_its_own_and_all_share_the_overall_limit():
    limiter = make_limiter()
    assert [limiter.admit(source, 0.0) for source in "aaaabbbb"] == [True] * 3 + [False] + [True] * 2 + [
        False
    ] * 2
    assert limiter.admit("c", 1.0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0.0, 5.0)), max_size=80))
def test_no_pattern_of_attempts_exceeds_the_overall_limit(attempts: list[tuple[str, float]]):
    limiter, now, admitted = make_limiter(), 0.0, list[float]()
    for source, pause in attempts:
        now += pause
        if limiter.admit(source, now):
            admitted.append(now)
    for at in admitted:
        assert sum(at <= each <= at + 10 for each in admitted) <= 5 + 10 + 1
