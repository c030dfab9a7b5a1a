"""Control planes that live as long as a session of pytest, paused for each file that uses none."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane

_FIXTURES: Final = frozenset({"api_server", "control_plane", "node_lifecycle", "signing_api_server"})
_running: Final[list[ControlPlane]] = []
_users: Final[set[Path]] = set()  # the files of tests with one of these fixtures


@contextlib.asynccontextmanager
async def start(run_dir: Path, **options: Any) -> AsyncIterator[ControlPlane]:
    """Start a control plane as `ControlPlane.start` does, and pause it while no file uses it."""
    async with ControlPlane.start(run_dir, **options) as control_plane:
        _running.append(control_plane)
        try:
            yield control_plane
        finally:
            _running.remove(control_plane)


def pytest_collection_finish(session: pytest.Session) -> None:
    items = (item for item in session.items if isinstance(item, pytest.Function))
    _users.update(item.path for item in items if not _FIXTURES.isdisjoint(item.fixturenames))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for control_plane in _running:
        (control_plane.resume if item.path in _users else control_plane.pause)()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Fixtures of the session delete their objects after its last test."""
    if nextitem is None:
        pytest_sessionfinish()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """The same after a failure that ends the session."""
    for control_plane in _running:
        control_plane.resume()
