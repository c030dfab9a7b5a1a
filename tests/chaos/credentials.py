"""Remembers the credentials of the processes, and searches logs and messages for them."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

_PEM_BODY: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----\s+(.+?)\s+-----END", re.DOTALL)
_TALOS_KEY: Final = re.compile(rb"^\s+key: ([A-Za-z0-9+/=]+)$", re.MULTILINE)
_NKEY_SEED: Final = re.compile(rb"^SU[A-Z2-7]{56}$", re.MULTILINE)
_TOKEN: Final = re.compile(rb"^[\w-]+\.[\w-]+\.([\w-]+)$")  # a JWT; only its signature is secret
_LEAST_BYTES: Final = 24  # a shorter text may occur by chance


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


def list_secret_texts(file: bytes) -> Iterator[bytes]:
    """The texts of a PEM file, talosconfig or nkey seed that must appear nowhere else, also decoded ones."""
    yield from _NKEY_SEED.findall(file)
    yield from _TOKEN.findall(file)
    for encoded in _TALOS_KEY.findall(file):
        yield encoded[_LEAST_BYTES:]  # the beginning is the same in every key
        yield from list_secret_texts(base64.b64decode(encoded))
    for body in _PEM_BODY.findall(file):
        yield from (line[-_LEAST_BYTES:] for line in body.split() if len(line) >= _LEAST_BYTES)


def find_leaks(secrets: Iterable[tuple[str, bytes]], texts: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Names of the texts that contain a secret, each with the name of the file of that secret.

    `secrets` has the contents of files with credentials, each with the name of the file.
    """
    found = {
        (where, name)
        for name, content in secrets
        for where, text in texts.items()
        if any(secret in text for secret in list_secret_texts(content))
    }
    return sorted(found)
