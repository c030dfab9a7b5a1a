"""Before metadata has reported on every machine that was there, it is unknown which addresses are taken."""

import pytest

from libs.common.contract.events import EnrichedNodeGone
from libs.common.contract.machine import FaultKind, MachineFacts, MachineFault
from libs.common.service.startup_gate import StartupGate
from tests.builders import (
    STREAM_ID,
    make_facts,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
    make_unreachable,
)

# apid of a control plane could not dial the machine
REFUSED = MachineFault(kind="refused", step="PlatformMetadata", message="UNAVAILABLE: connection refused")
NO_ENDPOINT = MachineFault(kind="no_endpoint", step="credentials", message="no talosconfig")


class EventSequence:
    """What the flow has said, in the order in which it comes."""

    def __init__(self) -> None:
        self.gate = StartupGate()

    def sees(self, name: str, uid: str = "", ip: str = "10.0.0.5") -> bool:
        return self.gate.apply(make_node_observed(make_node(name, uid=uid or f"uid-{name}", ip=ip)))

    def starts_with(self, *names: str) -> None:
        """These Nodes are there when the flow is complete."""
        for name in names:
            self.sees(name)
        self.gate.set()

    def speaks_of(self, name: str, uid: str = "") -> bool:
        node = make_node(name, uid=uid or f"uid-{name}")
        return self.gate.apply(make_node_enriched(node, make_facts()))

    def fails_at(
        self, name: str, fault: MachineFault = REFUSED, last_known: MachineFacts | None = None
    ) -> bool:
        node = make_node(name, uid=f"uid-{name}")
        return self.gate.apply(make_unreachable(node, fault=fault, last_known=last_known))

    def loses(self, name: str) -> bool:
        return self.gate.apply(make_node_gone(make_node(name, uid=f"uid-{name}")))

    def loses_the_report_of(self, name: str) -> None:
        self.gate.apply(
            EnrichedNodeGone(stream_id=STREAM_ID, observed_sequence=2, name=name, uid=f"uid-{name}")
        )


@pytest.fixture
def heard() -> EventSequence:
    return EventSequence()


def test_every_node_that_is_there_when_the_flow_is_complete_is_waited_for_and_reported(heard):
    heard.sees("a")
    heard.sees("b")
    heard.sees("c")
    heard.speaks_of("b")
    heard.gate.set()
    assert heard.gate.why_closed() == "waits for metadata's first report on 2 machines, such as a"
    assert heard.speaks_of("c") is False
    assert heard.gate.why_closed() == "waits for metadata's first report on 1 machine, such as a"
    assert heard.speaks_of("a") is True
    assert heard.speaks_of("a") is False, "news once"
    assert heard.gate.why_closed() == ""
    heard.gate.unset()
    assert not heard.gate.is_set


def test_who_joins_later_is_not_waited_for(heard):
    heard.gate.set()
    heard.sees("a")
    assert heard.gate.why_closed() == ""


def test_a_node_that_is_gone_or_another_one_by_now_is_waited_for_no_more(heard):
    heard.starts_with("a", "b")
    assert heard.loses("a") is False
    assert heard.sees("b", uid="another") is True


def test_a_node_whose_provided_node_ip_changes_is_awaited_no_more(heard):
    heard.sees("evil", ip="10.9.0.1")
    heard.starts_with("a")
    assert heard.sees("evil", ip="10.9.0.1") is False
    assert heard.gate.why_closed() == "waits for metadata's first report on 2 machines, such as a"
    assert heard.sees("evil", ip="10.9.0.2") is False
    assert heard.gate.why_closed() == "waits for metadata's first report on 1 machine, such as a"
    assert heard.speaks_of("a") is True
    assert heard.sees("evil", ip="10.9.0.1") is False
    assert heard.gate.is_open


def test_a_change_before_the_flow_is_complete_releases_no_node(heard):
    heard.sees("a", ip="10.9.0.1")
    heard.sees("a", ip="10.9.0.2")
    heard.gate.set()
    assert not heard.gate.is_open


def test_a_node_cannot_release_another_one(heard):
    heard.sees("evil", ip="10.9.0.1")
    heard.sees("victim", ip="10.0.0.5")
    heard.gate.set()
    heard.sees("evil", ip="10.0.0.5")
    assert heard.gate.why_closed() == "waits for metadata's first report on 1 machine, such as victim"


def test_a_word_of_the_node_that_had_the_name_before_does_not_count(heard):
    heard.speaks_of("a", uid="before")
    heard.starts_with("a")
    assert heard.speaks_of("a", uid="before") is False
    assert "such as a" in heard.gate.why_closed()
    assert heard.speaks_of("a") is True


def test_a_node_of_which_metadata_never_speaks_is_not_waited_for(heard):
    heard.sees("a", ip="")
    heard.starts_with("b")
    assert heard.gate.why_closed() == "waits for metadata's first report on 1 machine, such as b"
    assert heard.sees("b", ip="") is True


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("no_endpoint", "credentials"),
        ("no_endpoint", "connect"),
        ("certificate", "connect"),
        ("refused", "connect"),
        ("timeout", "connect"),
        ("permission", "PlatformMetadata"),
    ],
)
def test_a_fault_of_our_access_to_talos_is_no_report(heard, kind: FaultKind, step: str):
    heard.starts_with("a")
    assert heard.fails_at("a", MachineFault(kind=kind, step=step, message="no")) is False
    waits = "waits for metadata's first report on 1 machine, such as a; metadata cannot query Talos: no"
    assert heard.gate.why_closed() == waits
    assert heard.fails_at("a") is True


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("certificate", "PlatformMetadata"),  # between the endpoint and that machine
        ("bad_node_ip", "provided-node-ip"),
        *(
            (kind, "PlatformMetadata")
            for kind in ("refused", "timeout", "not_found", "wrong_machine", "invalid", "internal")
        ),
    ],
)
def test_a_fault_of_one_machine_is_a_report(heard, kind: FaultKind, step: str):
    heard.starts_with("a")
    assert not heard.gate.is_open
    assert heard.fails_at("a", MachineFault(kind=kind, step=step, message="no")) is True
    assert heard.gate.is_open


def test_an_access_fault_with_last_known_facts_is_a_report(heard):
    heard.starts_with("a")
    assert heard.fails_at("a", NO_ENDPOINT, make_facts()) is True


def test_an_access_fault_read_from_the_stream_is_no_report(heard):
    heard.sees("a")
    heard.fails_at("a", NO_ENDPOINT)
    heard.gate.set()
    assert "metadata cannot query Talos: no talosconfig" in heard.gate.why_closed()
    heard.loses_the_report_of("a")
    assert heard.gate.why_closed() == "waits for metadata's first report on 1 machine, such as a"


def test_a_denied_permission_is_a_report_once_another_machine_gives_facts(heard):
    denied = MachineFault(kind="permission", step="PlatformMetadata", message="not authorized")
    heard.starts_with("a", "b")
    heard.fails_at("a", denied)
    assert heard.speaks_of("b") is False
    assert not heard.gate.is_open  # its report is older than the first facts
    assert heard.fails_at("a", denied) is True


def test_an_outage_takes_back_no_report(heard):
    heard.starts_with("a", "b")
    heard.speaks_of("a")
    heard.fails_at("a", NO_ENDPOINT)
    assert heard.gate.why_closed() == "waits for metadata's first report on 1 machine, such as b"


def test_a_report_that_aged_out_of_the_stream_is_awaited_when_the_flow_is_complete_again(heard):
    heard.sees("a")
    heard.speaks_of("a")
    heard.sees("b")
    heard.gate.apply(make_node_enriched(make_node("b", uid="uid-b"), make_facts()))
    heard.gate.set()
    assert heard.gate.is_open
    heard.loses_the_report_of("a")
    heard.loses_the_report_of("b")
    assert heard.gate.is_open
    heard.gate.set()
    assert heard.gate.why_closed() == "waits for metadata's first report on 2 machines, such as a"
    assert heard.loses("a") is False
    assert heard.loses("b") is True


def test_an_empty_cluster_has_an_open_gate(heard):
    assert not heard.gate.is_set
    assert not heard.gate.is_open
    heard.gate.set()
    assert heard.gate.is_set
    assert heard.gate.is_open


def test_another_stream_forgets_every_report(heard):
    heard.sees("a")
    heard.speaks_of("a")
    heard.gate.clear()
    assert not heard.gate.is_set
    heard.starts_with("a")
    assert not heard.gate.is_open
