"""The file of --cloud-config on disk: read within bounds, and looked at again for what has changed in it."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig, Finding
from libs.common.safe_yaml import MAX_BYTES

_LOOK_SECONDS: Final = 1.0


class UnreadableFile(msgspec.Struct, frozen=True):
    """There is no content; why, in words."""

    reason: str


def read_config_file(path: Path) -> bytes | UnreadableFile:
    """The content, of a longer file than is accepted only as much as shows that it is too long."""
    try:
        # A pipe or device in its place must neither block nor never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return UnreadableFile(error.strerror or str(error))
    except ValueError as error:  # a NUL in the name
        return UnreadableFile(str(error))
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return UnreadableFile("it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        return UnreadableFile(error.strerror or str(error))
    finally:
        os.close(descriptor)


def parse_config_file(content: bytes | UnreadableFile, path: Path) -> CloudConfig | CloudConfigError:
    """What that content says, or every mistake in it."""
    if isinstance(content, UnreadableFile):
        return CloudConfigError(str(path), (Finding(problem=f"cannot be read: {content.reason}"),))
    try:
        return parse_cloud_config(content, str(path))
    except CloudConfigError as error:
        return error


class CloudConfigReloader:
    """Watches one file by its content, so that in-place edits and swapped symlinks (ConfigMaps) are the same.

    A content counts once it was seen twice in a row: half a file is often valid YAML, and an emptied one
    would take every rule away. The same holds for a file that is missing for a moment.
    """

    def __init__(self, path: Path, initial_config: CloudConfig) -> None:
        self._path = path
        self._known: CloudConfig | None = initial_config  # None = mistakes were told last
        self._last_read: bytes | UnreadableFile | None = None
        self._last_parsed: bytes | UnreadableFile | None = None

    def poll(self) -> CloudConfig | CloudConfigError | None:
        """What is new: another config, or the mistakes of a file that has become bad; None if nothing is.

        A file that is good again is new, even if it says what it said before.
        """
        content = read_config_file(self._path)
        settled, self._last_read = content == self._last_read, content
        if not settled or content == self._last_parsed:
            return None
        self._last_parsed = content
        found = parse_config_file(content, self._path)
        if isinstance(found, CloudConfigError):
            self._known = None
            return found
        is_new = found != self._known
        self._known = found
        return found if is_new else None

    async def watch(
        self,
        on_change: Callable[[CloudConfig | CloudConfigError], None],
        *,
        poll_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """Look until cancelled; each time something is new, say it. A new file counts after two looks."""
        while True:
            found = await asyncio.to_thread(self.poll)  # a megabyte of YAML takes a second to read
            if found is not None:
                on_change(found)
            await asyncio.sleep(poll_seconds)
