"""`talos-ccm explain node` does not blame a machine, or metadata, for what its caller lacks."""

from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from cli.explain.node.node_context import NodeContext
from cli.explain.node.node_evidence import NodeEvidence, choose_machine_result
from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.inside import flow_snapshot
from libs.common.contract.events import Event
from libs.common.contract.machine import FaultKind, MachineFault
from libs.common.contract.node import Node, NodeCondition
from services.lifecycle.core.decide import DeletionPolicy
from tests.builders import NOW, make_facts, make_node, make_node_enriched

MINUTE: Final = timedelta(minutes=1)
READY: Final = NodeCondition(type="Ready", status="True")
SILENT: Final = NodeCondition(type="Ready", status="Unknown")
WELL: Final = make_node(conditions=(READY,), taints=(), provider_id="talos://metal/10.0.0.5")
ALL_IN_ONE: Final = flow_snapshot.FlowUnavailable(
    reason="all services run in one process", is_all_in_one=True
)


def fault(kind: FaultKind) -> MachineFault:
    return MachineFault(kind=kind, step="PlatformMetadata", endpoint="cp for 10.0.0.5", message="no way")


def heard(node: Node, *, ago: timedelta = MINUTE) -> flow_snapshot.FlowSnapshot:
    said: Event = make_node_enriched(node, make_facts(node_name=node.name, queried_at=NOW - ago))
    words = flow_snapshot.ObjectMessages(
        object=flow_snapshot.FlowObject("node", node.name),
        enriched=flow_snapshot.LastMessage(subject="s", published_at=NOW, event=said),
    )
    return flow_snapshot.FlowSnapshot(
        at=NOW, stream=flow_snapshot.StreamSnapshot(stream_id="1"), objects=(words,)
    )


def explained(node: Node, kind: FaultKind, **evidence: Any) -> NodeExplanation:
    gathered = NodeEvidence(node=node, nodes=(node,), at=NOW, machine_result=fault(kind), **evidence)
    return explain_node_evidence(choose_machine_result(gathered), DeletionPolicy())


@pytest.mark.parametrize("kind", ["certificate", "permission", "no_endpoint"])
def test_an_access_that_the_caller_lacks_is_not_metadatas(kind: FaultKind):
    untold = explained(WELL, kind, flow=ALL_IN_ONE)
    assert (untold.verdict.findings, untold.exit_status) == ((), 2)
    assert "no way" in next(check.text for check in untold.checks if check.result == "unknown")
    known = explained(WELL, kind, flow=heard(WELL))
    assert (known.verdict.state, known.exit_status) == ("well", 0)


@pytest.mark.parametrize("kind", ["timeout", "refused"])
def test_a_machine_that_answers_metadata_is_not_silent_because_a_laptop_has_no_way_to_it(kind: FaultKind):
    known = explained(WELL, kind, flow=heard(WELL))
    assert (known.verdict.state, known.exit_status) == ("well", 0)
    assert known.evidence.context.unavailable_parts == (
        "its machine, queried by this command: PlatformMetadata at cp for 10.0.0.5: no way",
    )


def test_what_metadata_heard_long_ago_or_of_a_kubelet_that_is_silent_proves_nothing():
    old = explained(WELL, "timeout", flow=heard(WELL, ago=20 * MINUTE))
    assert [one.fault for one in old.verdict.findings] == ["talos-silent"]
    gone = msgspec.structs.replace(WELL, status=msgspec.structs.replace(WELL.status, conditions=(SILENT,)))
    unheard = explained(gone, "timeout", flow=heard(gone), context=NodeContext())
    assert [one.fault for one in unheard.verdict.findings] == ["talos-silent", "kubelet-silent"]
