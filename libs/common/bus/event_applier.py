"""Applies the events of the stream to the state of a service, which a wrong message must not stop."""

import logging
from collections.abc import Callable

from libs.common.bus.protocol import Message

log = logging.getLogger(__name__)


class EventApplier:
    """Remembers subjects whose last message could not be applied; the service then decides nothing."""

    def __init__(self, apply: Callable[[object], None], *, consequence: str) -> None:
        """`apply` receives each event; `consequence` completes "so ..." in the text of `explain_failure`."""
        self._apply = apply
        self._consequence = consequence
        self._failed_subjects: set[str] = set()

    def apply(self, message: Message) -> None:
        """Apply the event of a message. An exception is a defect: it is logged and remembered."""
        try:
            self._apply(message.event)
            self._failed_subjects.discard(message.subject)
        except Exception:
            # Any message may trigger a defect. It must neither end the process nor hide an object.
            self._failed_subjects.add(message.subject)
            log.exception("cannot apply message", extra={"subject": message.subject})

    def handle_expired(self, subject: str) -> None:
        """Forget the failure of a subject that the stream no longer contains."""
        self._failed_subjects.discard(subject)

    def clear(self) -> None:
        """Forget all failures, after the stream was replaced."""
        self._failed_subjects.clear()

    def explain_failure(self) -> str:
        """Return why the state may be incomplete; "" if every last message was applied."""
        if not self._failed_subjects:
            return ""
        return f"defect: cannot apply {min(self._failed_subjects)}, so {self._consequence}"
