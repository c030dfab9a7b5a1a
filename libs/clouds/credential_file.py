"""The credential of one cloud account, from a file that another program may replace at any time."""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from libs.clouds.instances import Credential, Unanswered

MAX_FILE_BYTES: Final = 1 << 16


class CredentialFile:
    """The content of the file, and the generation that changes with it; or a text that never changes.

    It is read before each query: a file of some bytes is cheap, and a query by a credential that was already
    replaced would be void. The content is in no text of this class.
    """

    def __init__(self, source: Path | str, *, is_random: bool = False, now: Callable[[], datetime]) -> None:
        """`is_random`: whether the content is a long random text; `now` is the time of day in UTC."""
        self._source = source
        self._is_random = is_random
        self._now = now
        self._content = ""
        self.credential = Credential(generation=0, loaded_at=now())
        self.read()

    def read(self) -> str | Unanswered:
        """Return the content without surrounding whitespace.

        A file that is missing or empty answers nothing, although its former content may still be valid: an
        operator removes it to stop the queries.
        """
        source = self._source
        name = "the text of the credential" if isinstance(source, str) else f"credential file {source}"
        try:
            content = (source.encode() if isinstance(source, str) else _read_file(source)).decode().strip()
        except (OSError, UnicodeError) as error:
            # The text of a decoding error has bytes of the file.
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            return Unanswered("unauthorized", f"{name}: {reason}")
        if not content or len(content) > MAX_FILE_BYTES:
            return Unanswered("unauthorized", f"{name}: empty or too long")
        if content != self._content:
            self._content = content
            fingerprint = sha256(content.encode()).hexdigest()[:16] if self._is_random else ""
            self.credential = Credential(self.credential.generation + 1, self._now(), fingerprint)
        return content


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)
