"""Changes that run after the request: one at a time for each object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from libs.testbed.clouds.hcloud.objects import Document

Effect = Callable[[], object]


class _RunningAction(msgspec.Struct):
    document: Document
    ends_at: float
    effect: Effect
    error_code: str  # "": success


class SimActions:
    """The actions of one project; their effects come when they end, and never if they fail."""

    def __init__(self, ids: Iterator[int], now: Callable[[], float], unix_time: Callable[[], float]) -> None:
        """`now` is monotonic, in seconds."""
        self.seconds = 0.0  # how long each takes from now on; 0 = it has ended when the next request comes
        self.documents: dict[int, Document] = {}
        self._ids, self._now, self._unix_time = ids, now, unix_time
        self._running: list[_RunningAction] = []
        self._failures: list[tuple[str, str]] = []

    def fail_next(self, command: str, code: str = "action_failed") -> None:
        """Let the next action with this command end with an error, without an effect."""
        self._failures.append((command, code))

    def fail_no_more(self) -> None:
        """Let all later actions succeed."""
        self._failures.clear()

    def start(self, command: str, resources: Sequence[Document], effect: Effect) -> Document:
        """Start an action of these objects; return its document as it is now, running."""
        document: dict[str, Any] = {
            "id": next(self._ids),
            "command": command,
            "status": "running",
            "progress": 0,
            "started": format_time(self._unix_time()),
            "finished": None,
            "error": None,
            "resources": list(resources),
        }
        self.documents[document["id"]] = document
        failure = next((each for each in self._failures if each[0] == command), None)
        if failure is not None:
            self._failures.remove(failure)
        answered = dict(document)
        code = failure[1] if failure else ""
        self._running.append(_RunningAction(document, self._now() + self.seconds, effect, code))
        self.settle()
        return answered

    def settle(self) -> None:
        """End the actions whose time is over."""
        now = self._now()
        for action in [each for each in self._running if each.ends_at <= now]:
            self._running.remove(action)
            status = "error" if action.error_code else "success"
            action.document |= {"status": status, "progress": 100, "finished": format_time(self._unix_time())}
            if action.error_code:
                action.document["error"] = {"code": action.error_code, "message": "the action failed"}
            else:
                action.effect()

    def is_running(self, kind: str, object_id: int) -> bool:
        """Whether an action of the object runs."""
        return any(self._is_of(each.document, kind, object_id) for each in self._running)

    def list_of(self, kind: str, object_id: int) -> list[Document]:
        """All actions of the object, the oldest first."""
        return [each for each in self.documents.values() if self._is_of(each, kind, object_id)]

    @staticmethod
    def _is_of(document: Document, kind: str, object_id: int) -> bool:
        return {"id": object_id, "type": kind} in document["resources"]


def format_time(unix_time: float) -> str:
    """Return the time as the API writes it, in whole seconds."""
    return datetime.fromtimestamp(int(unix_time), UTC).isoformat()
