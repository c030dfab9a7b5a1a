"""Writes files atomically, and stores Secrets as folders for compose."""

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.bootstrap.resource_names import CA

_ALREADY_EXISTS: Final = (errno.ENOTEMPTY, errno.EEXIST)


class DirectoryKeyStore:
    """Implements `server_files.KeyStore` with a directory that has one folder per Secret."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def get_secret(self, name: str) -> Mapping[str, bytes] | None:
        """Return the data of a Secret; None if it does not exist."""
        return _read_directory(self._directory / name)

    async def create_secret(self, name: str, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Create a Secret atomically; return its data, or those of another process that was first."""
        return _create_directory(self._directory / name, data)

    async def publish_authority(self, name: str, certificate: str) -> None:
        """Write the CA certificate as `ca.crt` beside the folders."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_file(self._directory / CA, certificate.encode(), mode=0o644)

    async def close(self) -> None:
        """Do nothing: nothing is open."""


def read_file(path: Path) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_file(path: Path, content: bytes, *, mode: int = 0o600) -> bool:
    """Replace a file atomically; return False if it had this content already."""
    if read_file(path) == content:
        return False
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def _read_directory(folder: Path) -> dict[str, bytes] | None:
    try:
        return {file.name: file.read_bytes() for file in folder.iterdir()}
    except FileNotFoundError:
        return None


def _create_directory(folder: Path, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as made:
        whole = Path(made) / folder.name
        whole.mkdir(mode=0o700)
        for key, value in data.items():
            write_file(whole / key, value)
        try:
            whole.rename(folder)
        except OSError as error:
            if error.errno not in _ALREADY_EXISTS:
                raise
    return _read_directory(folder) or data
