"""`python -m libs.testbed.compose.kind_secrets`: print the Secrets of simulated machines, for kubectl apply.

One is the Secret that Talos would write for the chart's ServiceAccount, one has the serving certificate.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.testbed.pki import TalosPki

ENDPOINT: Final = "talos.default"  # Talos creates the same Service
_LIFETIME: Final = timedelta(days=1)  # as long as the serving certificate; apply again for another day


def make_secrets(namespace: str, name: str) -> Mapping[str, Any]:
    """Return a List of both Secrets; `name` is the one that metadata mounts."""
    with tempfile.TemporaryDirectory() as folder:
        pki = TalosPki(Path(folder), [ENDPOINT])
        served = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    text = pki.talosconfig([ENDPOINT], lifetime=_LIFETIME)
    items = [
        _make_secret(namespace, name, {"config": text.encode()}),
        _make_secret("default", "talos-machines", served),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _make_secret(namespace: str, name: str, data: Mapping[str, bytes]) -> Mapping[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


if __name__ == "__main__":
    print(msgspec.json.encode(make_secrets(*sys.argv[1:])).decode())
