"""The log lines of the services that show the progress of a node. Pure."""

from datetime import datetime
from typing import Final

import msgspec


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a JSON log line that the demo uses; a line may lack some."""

    time: datetime  # UTC, in milliseconds: when the service wrote the line
    message: str
    node: str
    service: str
    event: str = ""
    outcome: str = ""
    step: str = ""
    reason: str = ""
    error: str = ""

    @property
    def milestone(self) -> str:
        """Return the milestone that the node reached with this line; "" for none."""
        match self:
            case LogLine(message="node observed", event="NodeObserved", outcome="published"):
                return "observed"
            case LogLine(message="machine verified"):
                return "answered"
        return ""

    @property
    def trouble(self) -> str | None:
        """Return why the node is stuck; "" if it continues, None if the line says neither."""
        match self:
            case LogLine(message="poll failed"):
                return f"{self.step}: {self.reason}"
            case LogLine(message="handling failed, will retry" | "published as dead letter"):
                return f"{self.service}: {self.error}"
            case LogLine(message="handled", service="labeler", outcome="blocked"):
                return self.reason
            case LogLine(message="machine verified"):
                return ""
        return None


_DECODER: Final = msgspec.json.Decoder(LogLine)


def parse_log_line(line: bytes) -> LogLine | None:
    """Parse a log line; None if it is not about a node or not JSON."""
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError:
        return None
