"""Reads the --cloud-config file with a size limit, and detects its changes."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig, Finding
from libs.common.safe_yaml import MAX_BYTES
from libs.common.settings.flags import CLOUD_CONFIG, OBSERVE_ONLY

_POLL_SECONDS: Final = 1.0


class CloudConfigSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a service that follows the file."""

    observe_only: Annotated[bool, OBSERVE_ONLY] = False
    cloud_config: Annotated[Path | None, CLOUD_CONFIG] = None
    file: CloudConfig = CloudConfig()  # its content at startup
    cloud_config_poll_seconds: float = 1.0  # new content takes effect after two polls


class UnreadableFile(msgspec.Struct, frozen=True):
    """The file has no readable content, with the reason."""

    reason: str


def read_config_file(path: Path) -> bytes | UnreadableFile:
    """Return the content, cut at one byte above the size limit, so that a parser rejects it."""
    try:
        # O_NONBLOCK: a pipe or device in its place must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return UnreadableFile(error.strerror or str(error))
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
    """Return the parsed content, or an error with every mistake."""
    if isinstance(content, UnreadableFile):
        return CloudConfigError(str(path), (Finding(problem=f"cannot be read: {content.reason}"),))
    try:
        return parse_cloud_config(content, str(path))
    except CloudConfigError as error:
        return error


class CloudConfigReloader:
    """Watches one file by content, so that in-place edits and swapped symlinks (ConfigMaps) work alike.

    New content is used after two equal polls: half a file is often valid YAML, and an empty one would remove
    all rules. The same applies to a file that is missing for a moment.
    """

    def __init__(self, path: Path, initial_config: CloudConfig) -> None:
        self._path = path
        self._known: CloudConfig | None = initial_config  # None = the last result was a mistake
        self._last_read: bytes | UnreadableFile | None = None
        self._last_parsed: bytes | UnreadableFile | None = None

    def poll(self) -> CloudConfig | CloudConfigError | None:
        """Return a new config, or the mistakes of a file that has become invalid; None without a change.

        A file that is valid again is a change, even with the former contents.
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
        on_change: Callable[[CloudConfig | CloudConfigError], Awaitable[None]],
        *,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        """Poll until cancelled, and await `on_change` for each change. A new file needs two polls."""
        while True:
            found = await asyncio.to_thread(self.poll)  # a megabyte of YAML takes a second to read
            if found is not None:
                await on_change(found)
            await asyncio.sleep(poll_seconds)
