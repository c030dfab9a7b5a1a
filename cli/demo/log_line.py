"""The lines of the services' JSON logs that tell how far a node has come. Pure."""

from datetime import datetime
from typing import Final

import msgspec


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that matter here; a line has others, and not all of these."""

    time: datetime  # UTC, to the millisecond: when the service wrote it
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
        """The hop that the node has passed with this line, "" for none."""
        match self:
            case LogLine(message="node observed", event="NodeObserved", outcome="published"):
                return "observed"
            case LogLine(message="the machine says what it is"):
                return "answered"
        return ""

    @property
    def trouble(self) -> str | None:
        """Why the node does not move on; "" when it moves on again, None when the line is not about that."""
        match self:
            case LogLine(message="the machine gives no facts"):
                return f"{self.step}: {self.reason}"
            case LogLine(message="not handled, will be tried again" | "put aside as a dead letter"):
                return f"{self.service}: {self.error}"
            case LogLine(message="handled", service="labeler", outcome="blocked"):
                return self.reason
            case LogLine(message="the machine says what it is"):
                return ""
        return None


_DECODER: Final = msgspec.json.Decoder(LogLine)


def parse_log_line(line: bytes) -> LogLine | None:
    """None for a line about no node, and for what a process writes that is no line of its log."""
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError:
        return None
