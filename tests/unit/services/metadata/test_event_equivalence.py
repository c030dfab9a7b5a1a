"""Which messages report news about a machine, and get a line at the default verbosity."""

import pytest

from libs.common.contract import events
from libs.common.contract.machine import ForeignMachine, MachineFault
from services.metadata.core.event_equivalence import is_news
from tests.builders import (
    NOW,
    make_csr_enriched,
    make_facts,
    make_node,
    make_node_enriched,
    make_request,
    make_unreachable,
)

REFUSED = MachineFault(kind="refused", step="connect", message="connection refused")
TIMEOUT = MachineFault(kind="timeout", step="connect", message="no answer")
CHANGED_NODE = make_node(labels={"a": "b"}, taints=())
SUCCESSOR = make_node(uid="uid-2")
FOREIGN = ForeignMachine(address="10.0.0.5", node_name="web-9", queried_at=NOW)
ENRICHED = make_node_enriched(make_node(), make_facts())
GONE = events.EnrichedNodeGone(stream_id="s", observed_sequence=1, name="web-1", uid="uid-1")
CSR_GONE = events.EnrichedCsrGone(stream_id="s", observed_sequence=1, name="csr-1", uid="csr-uid-1")
ATTESTED = make_csr_enriched(make_request(), facts=make_facts())


SILENT = make_unreachable(fault=REFUSED)


@pytest.mark.parametrize(
    ("event", "before"),
    [
        (ENRICHED, None),
        (ENRICHED, GONE),
        (ENRICHED, SILENT),
        (make_node_enriched(make_node(), make_facts(region="x")), ENRICHED),
        (make_node_enriched(make_node(), make_facts(), verified_by="system-uuid"), ENRICHED),
        (make_node_enriched(SUCCESSOR, make_facts()), ENRICHED),
        (SILENT, ENRICHED),
        (make_unreachable(fault=TIMEOUT), SILENT),
        (make_unreachable(fault=REFUSED, foreign_machines=(FOREIGN,)), SILENT),
        (make_csr_enriched(make_request(), fault=REFUSED), None),
        (make_csr_enriched(make_request(), fault=TIMEOUT), make_csr_enriched(make_request(), fault=REFUSED)),
        (make_csr_enriched(make_request(), fault=REFUSED), ATTESTED),
    ],
)
def test_other_facts_and_faults_are_news(event, before):
    assert is_news(event, before)


@pytest.mark.parametrize(
    ("event", "before"),
    [
        (make_node_enriched(CHANGED_NODE, make_facts()), ENRICHED),
        (make_unreachable(CHANGED_NODE, fault=REFUSED), SILENT),
        (GONE, ENRICHED),
        (ATTESTED, None),
        (ATTESTED, make_csr_enriched(make_request(), fault=REFUSED)),
        (make_csr_enriched(make_request(), fault=REFUSED), make_csr_enriched(make_request(), fault=REFUSED)),
        (CSR_GONE, ATTESTED),
    ],
)
def test_a_changed_node_an_attested_request_and_an_end_are_no_news(event, before):
    assert not is_news(event, before)
