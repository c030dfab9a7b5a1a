"""What csr stores of a message leads to the same decisions as the whole message."""

from typing import TypeVar

import msgspec

from libs.common.contract.events import Event
from libs.common.contract.node import Node, ObjectMeta
from libs.common.contract.signing_request import SigningRequestCondition
from services.csr.core.decide import decide
from services.csr.core.flow_state import compact_message
from tests.builders import make_csr_enriched, make_csr_observed, make_facts, make_message, make_request
from tests.csr_cases import CASES, FACTS, NODES, POLICY, make_metadata_events
from tests.unit.services.csr.test_claim_index import claims_of

EventT = TypeVar("EventT", bound=Event)


def compact(event: EventT) -> EventT:
    stored = compact_message(make_message(event, sequence=7))
    assert msgspec.structs.replace(stored, event=event) == make_message(event, sequence=7)
    assert isinstance(stored.event, type(event))
    return stored.event


def test_a_report_keeps_the_identity_of_its_node_and_all_about_its_machine():
    for event in make_metadata_events():
        stored = compact(event)
        assert stored.node == Node(metadata=ObjectMeta(name=event.node.name, uid=event.node.uid))
        history = event.address_history.resolve(7)
        assert stored == msgspec.structs.replace(event, node=stored.node, address_history=history)


def test_every_request_gets_the_same_decision_by_what_is_stored():
    whole = claims_of(*NODES.values(), *make_metadata_events())
    stored = claims_of(*NODES.values(), *map(compact, make_metadata_events()))
    for case in CASES:
        request = case.request()
        node = request.node_name
        uid = NODES[node].uid if node in NODES else ""
        event = make_csr_enriched(request, facts=FACTS.get(node), node_uid=uid)
        assert decide(event, stored, POLICY) == decide(event, whole, POLICY), case


def test_only_a_decided_request_loses_what_it_asks_for():
    pending = make_csr_observed(make_request(pem=b"pem"))
    assert compact(pending) is pending
    approved = make_request(pem=b"pem", conditions=(SigningRequestCondition(type="Approved"),))
    stored = compact(make_csr_observed(approved))
    without = msgspec.structs.replace(approved, spec=msgspec.structs.replace(approved.spec, request=b""))
    assert stored == make_csr_observed(without)


def test_an_enriched_request_is_stored_as_it_is():
    event = make_csr_enriched(make_request(), facts=make_facts())
    assert compact(event) is event
