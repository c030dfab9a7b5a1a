"""The file of --cloud-config on disk: read within bounds, and looked at again for what has changed in it."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.rule import CloudConfig, Finding
from libs.common.yaml_reading import MOST_BYTES

_LOOK_SECONDS: Final = 1.0


class Unreadable(msgspec.Struct, frozen=True):
    """There is no content; why, in words."""

    reason: str


def read_config_file(path: Path) -> bytes | Unreadable:
    """The content, of a longer file than is accepted only as much as shows that it is too long."""
    try:
        # A pipe or device in its place must neither block nor never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Unreadable(error.strerror or str(error))
    except ValueError as error:  # a NUL in the name
        return Unreadable(str(error))
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return Unreadable("it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        return Unreadable(error.strerror or str(error))
    finally:
        os.close(descriptor)


def config_of(content: bytes | Unreadable, path: Path) -> CloudConfig | CloudConfigError:
    """What that content says, or every mistake in it."""
    if isinstance(content, Unreadable):
        return CloudConfigError(str(path), (Finding(problem=f"cannot be read: {content.reason}"),))
    try:
        return parse_cloud_config(content, str(path))
    except CloudConfigError as error:
        return error


class CloudConfigFile:
    """Watches one file by its content, so that in-place edits and swapped symlinks (ConfigMaps) are the same.

    A content counts once it was seen twice in a row: half a file is often valid YAML, and an emptied one
    would take every rule away. The same holds for a file that is missing for a moment.
    """

    def __init__(self, path: Path, known: CloudConfig) -> None:
        self._path = path
        self._known: CloudConfig | None = known  # None = mistakes were told last
        self._seen: bytes | Unreadable | None = None
        self._judged: bytes | Unreadable | None = None

    def look(self) -> CloudConfig | CloudConfigError | None:
        """What is new: another config, or the mistakes of a file that has become bad; None if nothing is.

        A file that is good again is new, even if it says what it said before.
        """
        content = read_config_file(self._path)
        settled, self._seen = content == self._seen, content
        if not settled or content == self._judged:
            return None
        self._judged = content
        found = config_of(content, self._path)
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
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """Look until cancelled; each time something is new, say it. A new file counts after two looks."""
        while True:
            found = await asyncio.to_thread(self.look)  # a megabyte of YAML takes a second to read
            if found is not None:
                on_change(found)
            await asyncio.sleep(look_seconds)
