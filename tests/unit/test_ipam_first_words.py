"""Before metadata has spoken of every machine that was there, nobody knows which addresses are taken."""

import pytest

from services.ipam.first_words import FirstWords
from services.ipam.known_nodes import KnownNodes
from tests.builders import a_node, some_facts
from tests.ipam_actors import an_enriched


class Heard:
    """What the flow has said, in the order in which it comes."""

    def __init__(self) -> None:
        self.known = KnownNodes()
        self.words = FirstWords(self.known)

    def sees(self, name: str, uid: str = "", ip: str = "10.0.0.5") -> bool:
        self.known.observed(a_node(name, uid=uid or f"uid-{name}", ip=ip))
        return self.words.news_of(name)

    def speaks_of(self, name: str, uid: str = "") -> bool:
        self.known.enriched(an_enriched(a_node(name, uid=uid or f"uid-{name}"), some_facts()))
        return self.words.news_of(name)

    def loses(self, name: str) -> bool:
        self.known.gone(name)
        return self.words.news_of(name)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_every_node_that_is_there_when_the_flow_is_complete_is_waited_for_and_told(heard):
    heard.sees("a")
    heard.sees("b")
    heard.sees("c")
    heard.speaks_of("b")
    heard.words.expect()
    assert heard.words.why_not() == "waits for metadata's first word on 2 machines, such as a"
    assert heard.speaks_of("c") is False
    assert heard.words.why_not() == "waits for metadata's first word on 1 machine, such as a"
    assert heard.speaks_of("a") is True
    assert heard.words.why_not() == ""


def test_that_nothing_is_awaited_any_more_is_news_once(heard):
    heard.sees("a")
    heard.words.expect()
    assert heard.speaks_of("a") is True
    assert heard.speaks_of("a") is False


def test_who_joins_later_is_not_waited_for(heard):
    heard.words.expect()
    heard.sees("a")
    assert heard.words.why_not() == ""


def test_a_node_that_is_gone_or_another_one_by_now_is_waited_for_no_more(heard):
    heard.sees("a")
    heard.sees("b")
    heard.words.expect()
    assert heard.loses("a") is False
    assert heard.sees("b", uid="another") is True


def test_a_word_of_the_node_that_had_the_name_before_does_not_count(heard):
    heard.speaks_of("a", uid="before")
    heard.sees("a")
    heard.words.expect()
    assert "such as a" in heard.words.why_not()
    assert heard.speaks_of("a") is True


def test_a_node_of_which_metadata_never_speaks_is_not_waited_for(heard):
    heard.sees("a", ip="")
    heard.sees("b")
    heard.words.expect()
    assert heard.words.why_not() == "waits for metadata's first word on 1 machine, such as b"
    assert heard.sees("b", ip="") is True


def test_another_stream_begins_the_wait_anew(heard):
    heard.words.expect()
    assert heard.words.expected
    heard.words.void()
    assert not heard.words.expected
    heard.sees("a")
    heard.words.expect()
    assert "1 machine" in heard.words.why_not()
