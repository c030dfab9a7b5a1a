"""Where the parts of the compose project find each other and their files."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from libs.testbed.compose.fleet import MAX_NODES

FOLDER: Final = Path("/cluster")  # a volume below it for each holder of credentials
API_SERVER: Final = "https://kube-apiserver:6443"
TALOS_PORT: Final = 50000
TALOS: Final = f"talos:{TALOS_PORT}"


class Admin:
    """An identity that may do everything, also impersonate nodes, from `ca.crt`, `admin.crt`, `admin.key`."""

    def __init__(self, folder: Path, server: str = API_SERVER) -> None:
        self.server = server
        self._folder = folder

    def ssl_context(self, _user: str = "admin", _groups: Sequence[str] = ()) -> ssl.SSLContext:
        """For a client that takes an SSL context."""
        context = ssl.create_default_context(cafile=self._folder / "ca.crt")
        context.load_cert_chain(self._folder / "admin.crt", self._folder / "admin.key")
        return context


def read_node_count() -> int:
    """How many nodes are simulated: NODES in the environment. Raises SystemExit with the mistake in words."""
    text = os.environ.get("NODES", "50")
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NODES:
        raise SystemExit(f'NODES: "{text}" is not a number of nodes from 1 to {MAX_NODES}')
    return int(text)
