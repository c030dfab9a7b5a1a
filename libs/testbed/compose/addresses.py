"""Addresses and folders of the containers in deploy/compose."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from libs.common.client_tls import make_client_context
from libs.testbed.machine_facts import SimMachineFacts, make_mixed_fleet

MAX_NODES: Final = 5000
FOLDER: Final = Path("/cluster")  # contains one volume per container with credentials
API_SERVER: Final = "https://kube-apiserver:6443"
TALOS_PORT: Final = 50000
TALOS: Final = f"talos:{TALOS_PORT}"


class Admin:
    """An admin of the API server, with the files `ca.crt`, `admin.crt` and `admin.key` of a folder."""

    server = API_SERVER

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ssl_context(self, _user: str = "admin", _groups: Sequence[str] = ()) -> ssl.SSLContext:
        """Return an SSL context with the client certificate."""
        context = make_client_context()
        context.load_verify_locations(cafile=self._folder / "ca.crt")
        context.load_cert_chain(self._folder / "admin.crt", self._folder / "admin.key")
        return context


def read_fleet() -> list[SimMachineFacts]:
    """Make as many machines as the variable NODES says. Raises SystemExit with the reason."""
    text = os.environ.get("NODES", "50")
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NODES:
        raise SystemExit(f'NODES: "{text}" is not a number of nodes from 1 to {MAX_NODES}')
    return make_mixed_fleet(int(text), "compose", digits=4)
