"""Shows on standard error that a command works, until its first output."""

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# A line stands there within a second of the start, which Python itself takes up to half of.
_DELAY_SECONDS: Final = 0.5
_FRAME_SECONDS: Final = 0.1
_FRAMES: Final = "|/-\\"  # ASCII: standard error may have any encoding


class Progress:
    """A spinner on a terminal, otherwise one line; nothing if the output comes sooner."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def show(self, text: str) -> Iterator[None]:
        """Show the text after a delay, in a thread: imports and waits for the network do not stop it."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(text, self._ended), daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Remove the spinner, if there is one. Every output calls this first."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread:
            thread.join()

    @staticmethod
    def _run(text: str, ended: threading.Event) -> None:
        if ended.wait(_DELAY_SECONDS) or sys.stderr is None:
            return
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            _write(f"{text} ...\n")
            return
        for frame in itertools.cycle(_FRAMES):
            _write(f"\r{frame} {text}")
            if ended.wait(_FRAME_SECONDS):
                break
        _write("\r\x1b[K")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


PROGRESS: Final = Progress()  # a process runs one command
