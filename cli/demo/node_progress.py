"""The progress of each joining node and its certificate, by Kubernetes and the services' logs."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from libs.common.contract.node import Node
from libs.common.contract.services import LABELER, LIFECYCLE
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.api import KubeApi, raise_unreadable
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.kube.objects import Item, Resource
from libs.common.kube.reflector import Reflector
from libs.common.kube.watch_events import Changed, ListSnapshot, WatchEvent

MILESTONES: Final = ("observed", "answered", "ready")  # in the order in which a node reaches them
_RELOADS: Final = ("--cloud-config rejected, the previous one stays in use", "cloud-config reloaded")


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a JSON log line that the demo uses; a line may lack some."""

    time: datetime  # UTC, in milliseconds: when the service wrote the line
    message: str
    service: str
    node: str = ""
    event: str = ""
    outcome: str = ""
    step: str = ""
    reason: str = ""
    error: str = ""
    rules: int = 0
    mistakes: str = ""

    @property
    def announcement(self) -> str:
        """Return why lifecycle deleted a Node, or what the labeler did with a changed file; else ""."""
        if (self.service, self.message) == (LIFECYCLE.service, "Node deleted"):
            return f"lifecycle deleted Node {self.node}: {self.reason}"
        if self.message not in _RELOADS or self.service != LABELER.service:
            return ""
        if self.mistakes:
            return f"--cloud-config rejected, the previous one stays in use: {self.mistakes}"
        return f"--cloud-config applied: {self.rules or 'no'} rule{'' if self.rules == 1 else 's'}"


class NodeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one node; None for a milestone that it has not reached."""

    name: str
    platform: str
    joined_at: datetime  # the kubelet started to register
    is_registered: bool = False  # the Node exists in Kubernetes
    observed_at: datetime | None = None  # the watcher published it
    answered_at: datetime | None = None  # its machine answered metadata
    ready_at: datetime | None = None  # the Node has no uninitialized taint
    trouble: str = ""  # the last reason why it is stuck
    is_excluded: bool = False  # the labeler leaves it to others: `ownership` excludes it
    certificate_requested_at: datetime | None = None
    certificate_issued_at: datetime | None = None
    certificate_trouble: str = ""  # why the request was denied or failed

    @property
    def state(self) -> str:
        """Return the state: the last milestone, excluded or blocked."""
        if self.ready_at:
            return "ready"
        if self.is_excluded:
            return "excluded"
        if self.trouble:
            return "blocked"
        return "answered" if self.answered_at else "observed" if self.observed_at else "joining"

    @property
    def is_settled(self) -> bool:
        """Whether the node is ready, or `ownership` excludes it."""
        return self.state in ("ready", "excluded")

    @property
    def why_not_ready(self) -> str:
        """Return why the node is not ready at the timeout."""
        return self.trouble or f"timeout before it {'was ready' if self.is_registered else 'joined'}"

    def seconds_until(self, milestone: str, since: str = "joined") -> float | None:
        """Return the seconds from one milestone to another; None before it."""
        passed: datetime | None = getattr(self, f"{milestone}_at")
        begun: datetime = getattr(self, f"{since}_at")
        return None if passed is None else max(0.0, (passed - begun).total_seconds())


class DemoProgress:
    """The progress of all nodes of a run, in the order in which they joined."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeProgress] = {}

    def __iter__(self) -> Iterator[NodeProgress]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def add_node(self, name: str, platform: str, at: datetime) -> None:
        """Record that a kubelet starts to register."""
        self._nodes[name] = NodeProgress(name=name, platform=platform, joined_at=at)

    def apply_log_line(self, line: LogLine) -> None:
        """Record a log line; the first line of its kind sets the milestone."""
        match line:
            case LogLine(message="node observed", event="NodeObserved", outcome="published"):
                self._record_first(line.node, "observed_at", line.time)
            case LogLine(message="machine verified"):
                self._record_first(line.node, "answered_at", line.time)
                self._update(line.node, trouble="")
            case LogLine(message="poll failed"):
                self._update(line.node, trouble=f"{line.step}: {line.reason}")
            case LogLine(message="handling failed, will retry" | "published as dead letter"):
                self._update(line.node, trouble=f"{line.service}: {line.error}")
            case LogLine(message="handled", service="labeler"):
                trouble = {"trouble": line.reason} if line.outcome == "blocked" else {}
                self._update(line.node, is_excluded=line.outcome == "not-ours", **trouble)

    def apply_node(self, node: Node, at: datetime) -> None:
        """Record the current state of a Node in Kubernetes."""
        self._update(node.name, is_registered=True)
        if node.is_initialized:
            self._record_first(node.name, "ready_at", at)

    def add_certificate_request(self, name: str, at: datetime) -> None:
        """Record that the kubelet of a node creates a request for a serving certificate."""
        self._update(name, certificate_requested_at=at)

    def apply_certificate_request(self, request: SigningRequest, at: datetime) -> None:
        """Record the current state of a request in Kubernetes."""
        if request.status.issued or request.status.certificate:
            self._record_first(request.node_name, "certificate_issued_at", at)
        if against := request.find_condition("Denied") or request.find_condition("Failed"):
            self._update(request.node_name, certificate_trouble=against.message)

    def count_states(self) -> Counter[str]:
        """Return the number of nodes per state."""
        return Counter(node.state for node in self)

    @property
    def ready_names(self) -> frozenset[str]:
        """Return the names of the ready nodes."""
        return frozenset(node.name for node in self if node.ready_at)

    @property
    def are_all_ready(self) -> bool:
        """Whether all nodes are ready, except those that `ownership` excludes."""
        return all(node.is_settled for node in self)

    @property
    def are_certificates_settled(self) -> bool:
        """Whether each requested certificate is issued or will never be."""
        requesters = (node for node in self if node.certificate_requested_at)
        return all(node.certificate_issued_at or node.certificate_trouble for node in requesters)

    @property
    def without_certificate(self) -> list[NodeProgress]:
        """Return the nodes that requested a certificate and have none."""
        return [node for node in self if node.certificate_requested_at and not node.certificate_issued_at]

    def _record_first(self, name: str, milestone: str, at: datetime) -> None:
        if name in self._nodes and getattr(self._nodes[name], milestone) is None:
            self._update(name, **{milestone: at})

    def _update(self, name: str, **fields: Any) -> None:
        if name in self._nodes:
            self._nodes[name] = msgspec.structs.replace(self._nodes[name], **fields)


def compute_percentile(values: list[float], percent: float) -> float:
    """Return the percentile by nearest rank, NaN for no values.

    It is the smallest value that is not exceeded by that share of all values.
    """
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


_DECODER: Final = msgspec.json.Decoder(LogLine)


def parse_log_line(line: bytes) -> LogLine | None:
    """Parse a log line; None if it is no JSON of a service."""
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError:
        return None


# The services log every milestone with these flags, in lines that `parse_log_line` parses.
LOG_FLAGS = ("--v=4", "--logging-format=json")


class LogFollower:
    """Reads growing log files; each line is read once, when it is complete."""

    def __init__(self, files: Iterable[BinaryIO], progress: DemoProgress) -> None:
        self._rests = dict.fromkeys(files, b"")
        self._progress = progress

    def read_new_lines(self) -> list[LogLine]:
        """Pass the new lines to the progress, and return those that the running demo prints."""
        announced = []
        for file, rest in self._rests.items():
            *lines, self._rests[file] = (rest + file.read()).split(b"\n")
            for line in filter(None, map(parse_log_line, lines)):
                self._progress.apply_log_line(line)
                announced += [line] if line.announcement else []
        return announced


@contextlib.contextmanager
def follow_logs(paths: Iterable[Path], progress: DemoProgress) -> Iterator[LogFollower]:
    """Open the log files at their beginning."""
    with contextlib.ExitStack() as files:
        yield LogFollower([files.enter_context(path.open("rb")) for path in paths], progress)


@contextlib.asynccontextmanager
async def watch_objects(
    kubeconfig: Path, resource: Resource[Item], on_object: Callable[[Item, datetime], None]
) -> AsyncIterator[None]:
    """Watch objects in Kubernetes and pass each one with the time to the callback."""
    api = KubeApi(load_kube_config(kubeconfig, {}), user_agent="talos-ccm-demo")

    async def see(event: WatchEvent[Item]) -> None:
        match event:
            case ListSnapshot(items=items):
                for item in items:
                    on_object(item, datetime.now(UTC))
            case Changed(item=item):
                on_object(item, datetime.now(UTC))

    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(Reflector(api, resource, on_unreadable=raise_unreadable).run(see))
            yield
            watch.cancel()
    finally:
        await api.close()
