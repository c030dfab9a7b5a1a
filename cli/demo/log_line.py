"""The log lines of the services that show the progress of a node, or a reload of --cloud-config. Pure."""

from datetime import datetime
from typing import Final

import msgspec

from libs.common.contract.services import LABELER

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

    @property
    def is_excluded(self) -> bool | None:
        """Return whether the labeler leaves the Node to others; None if the line does not say."""
        if self.message != "handled" or self.service != LABELER.service:
            return None
        return self.outcome == "not-ours"

    @property
    def reload(self) -> str:
        """Return what the labeler did with a changed --cloud-config file; "" if the line does not say."""
        if self.message not in _RELOADS or self.service != LABELER.service:
            return ""
        if self.mistakes:
            return f"rejected, the previous one stays in use: {self.mistakes}"
        return f"applied: {self.rules or 'no'} rule{'' if self.rules == 1 else 's'}"


_DECODER: Final = msgspec.json.Decoder(LogLine)


def parse_log_line(line: bytes) -> LogLine | None:
    """Parse a log line; None if it is no JSON of a service."""
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError:
        return None
