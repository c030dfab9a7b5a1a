"""What commands of `talos-ccm` read in tests of their views, and their output as a terminal shows it."""

import io
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_objects import (
    COMPONENT,
    INSTANCE,
    CertificateSigningRequest,
    Container,
    CsrCondition,
    CsrStatus,
    PodSpec,
)
from cli.cluster.lease_state import LeaseState
from cli.cluster.machine_events import make_enriched
from cli.cluster.pods import Pod
from cli.cluster.snapshot import ClusterSnapshot
from cli.explain.node.node_evidence import NodeEvidence, report_fault
from cli.inside.flow_snapshot import (
    FlowObject,
    FlowSnapshot,
    Kind,
    LastMessage,
    ObjectMessages,
    StreamSnapshot,
)
from cli.lines import Line, print_lines
from cli.render.compiled_config import compile_config
from libs.common.contract.events import Event, Leading
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node, ObjectMeta
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import subject_of
from tests.builders import NOW

STREAM: Final = StreamSnapshot(created="1")


def make_last_message(event: Event, seconds: float = 0) -> LastMessage:
    """Return the last message of its subject, published so long ago."""
    at = NOW - timedelta(seconds=seconds)
    return LastMessage(subject=subject_of(event), published_at=at, event=event)


def make_flow(
    name: str,
    *events: Event,
    kind: Kind = "node",
    unreadable: tuple[str, ...] = (),
    stream: StreamSnapshot = STREAM,
) -> FlowSnapshot:
    """Return the flow of a leading watcher with these messages about an object; `unreadable` are subjects."""
    messages = [make_last_message(each) for each in events]
    messages += [LastMessage(subject=each, published_at=NOW, unreadable="not JSON") for each in unreadable]
    about = ObjectMessages(object=FlowObject(kind, name), messages=tuple(messages))
    return FlowSnapshot(
        at=NOW,
        stream=stream,
        leading=make_last_message(Leading(stream_id="1", epoch=1, holder="watcher-1")),
        objects=(about,),
    )


def make_evidence(
    node: Node,
    machine: MachineFacts | MachineFault | None = None,
    foreign: tuple[ForeignMachine, ...] = (),
    *,
    file: str = "",
    **known: Any,
) -> NodeEvidence:
    """Return the evidence about a Node, and the answer of its machine to this command.

    Parts of the snapshot have their names, and are empty by default.
    """
    lease = LeaseState(holder="watcher-1", renewed_at=NOW)
    parts: dict[str, Any] = {"at": NOW, "nodes": (node,), "lease": lease, "config": None}
    parts |= dict.fromkeys(("events", "requests", "pods"), ())
    parts |= {name: known.pop(name) for name in [*known] if name in ClusterSnapshot.__struct_fields__}
    evidence = NodeEvidence(
        node=node,
        snapshot=ClusterSnapshot(**parts),
        config_file=compile_config(file, "ccm-config.yaml") if file else None,
        report=make_enriched(node, machine, NOW) if isinstance(machine, MachineFacts) else None,
        **known,
    )
    return report_fault(evidence, machine, foreign) if isinstance(machine, MachineFault) else evidence


def hold_request(
    request: SigningRequest, *conditions: CsrCondition, certificate: str = ""
) -> CertificateSigningRequest:
    """Return the request as Kubernetes holds it."""
    status = CsrStatus(conditions=conditions, certificate=certificate)
    return CertificateSigningRequest(metadata=request.metadata, spec=request.spec, status=status)


def make_pod(component: str, number: int = 1, *, waiting: str = "", restarts: int = 0) -> Pod:
    """Return a pod as the chart makes it, ready unless its container waits; "" = it runs all services."""
    state = {"waiting": {"reason": waiting}} if waiting else {}
    container = {"name": component or "ccm", "restartCount": restarts, "state": state}
    labels = {INSTANCE: "ccm"} | ({COMPONENT: component} if component else {})
    ready = {"type": "Ready", "status": str(not waiting)}
    pod = {
        "metadata": {"name": f"ccm-{component or 'all'}-{number}", "labels": labels},
        "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [container]},
    }
    return msgspec.convert(pod, Pod)


def make_running_pod(module: str, *flags: str) -> Pod:
    """Return a pod that runs this module with these flags."""
    container = Container(name="c", command=("python", "-m", module), args=flags)
    return Pod(metadata=ObjectMeta(name="pod-0"), spec=PodSpec(containers=(container,)))


def make_kube_event(reason: str, message: str, at: datetime = NOW) -> KubeEvent:
    """Return an Event of Kubernetes about some object."""
    return KubeEvent(metadata=ObjectMeta(name="e"), reason=reason, message=message, last_timestamp=at)


TEXTS: Final = Path(__file__).parent / "unit" / "cli" / "texts"


def render_lines(lines: Iterable[Line], width: int | None = None) -> str:
    """Return the output on a terminal of that width, or in a pipe if it is None; without colors."""
    screen = io.StringIO()
    terminal = {"width": width or 80, "force_terminal": width is not None, "color_system": None}
    print_lines(lines, Console(file=screen, highlight=False, **terminal))  # type: ignore[arg-type]  # by name
    return screen.getvalue()


def read_screens(kind: str) -> dict[str, str]:
    """Return the recorded output of each case in `<kind>.txt`, where it stands below a line `==== <case>`."""
    sections = (TEXTS / f"{kind}.txt").read_text().removeprefix("==== ").split("\n==== ")
    found = (section.partition("\n") for section in sections)
    return {name: text.removesuffix("\n") + "\n" for name, _, text in found}
