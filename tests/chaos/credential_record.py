"""Remembers the credentials of the processes, also those that were replaced during a run."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


class CredentialRecord:
    """The contents that files with credentials have had."""

    def __init__(self) -> None:
        self._contents: dict[str, set[bytes]] = {}

    def add(self, files: Iterable[Path]) -> None:
        """Record the present contents of the files. Call it before a file is replaced."""
        for name, content in read_files(files).items():
            self._contents.setdefault(name, set()).add(content)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Each content with the name of its file."""
        for name, contents in self._contents.items():
            yield from ((name, content) for content in contents)


def read_files(files: Iterable[Path]) -> Mapping[str, bytes]:
    """The contents by file, without files that no longer exist: servers delete some of theirs meanwhile."""
    found = {}
    for path in files:
        try:
            found[str(path)] = path.read_bytes()
        except FileNotFoundError:
            continue
    return found
