"""Snapshots of the interface: every byte that a user or another program relies on.

A snapshot is a JSON file in `tests/contract/interface`. It contains no Python name, so a rename does not
change it. A changed snapshot is a changed interface: it needs an entry in CHANGELOG.md, and old and new
processes must still work side by side. `make interface-snapshots` writes the files again.
"""

import difflib
import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).with_name("interface")
WRITE = "WRITE_INTERFACE_SNAPSHOTS"


def assert_unchanged(name: str, value: Any) -> None:
    """Fail with a diff when the value (JSON types only) differs from the snapshot `<name>.json`."""
    path = FOLDER / f"{name}.json"
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get(WRITE):
        path.write_text(text, encoding="utf-8")
        return
    recorded = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != recorded:
        before, now = recorded.splitlines(), text.splitlines()
        changes = difflib.unified_diff(before, now, "snapshot", "now", n=2, lineterm="")
        pytest.fail(f"the interface changed: {path.name}\n" + "\n".join(changes), pytrace=False)
