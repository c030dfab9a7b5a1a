"""Real servers for whoever asks for them. Fixtures and tests share one event loop for the whole session.

`make test` runs the files on several workers: each is a session, with servers of its own on free ports.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest

from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelets
from libs.testbed.machines import Machines
from libs.testbed.nats_server import NatsServer
from tests.flow_actors import Flow

# What a slow machine does to the time of one example says nothing about the code.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


# A shell that starts a suite in the background has it ignore Ctrl-C, and every process that tests start, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

_MOST_WORKERS = 6  # each may come to have two control planes, of half a gigabyte each


def pytest_xdist_auto_num_workers() -> int:
    """Three for two cores: a worker waits for its servers a third of the time, and more."""
    return min((os.cpu_count() or 1) * 3 // 2, _MOST_WORKERS)


@pytest.fixture(scope="session", autouse=True)
def what_only_the_collector_finds() -> Iterator[None]:
    """Errors of what the tests have left behind are the last test's: the end of a worker tells nobody."""
    yield
    for _ in range(2):  # what the first frees may hold the last reference to more
        gc.collect()


@pytest.fixture(scope="session")
async def control_plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """One control plane for the session: use names of your own, and clean up after you."""
    async with ControlPlane.start(tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture(scope="session")
async def kubelets(control_plane: ControlPlane) -> AsyncIterator[Kubelets]:
    """Kubelets of that control plane."""
    async with Kubelets.start(control_plane) as running:
        yield running


@pytest.fixture(scope="session")
async def machines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machines]:
    """One process of Talos machines for the session: use ids and addresses of your own."""
    async with Machines.start(tmp_path_factory.mktemp("machines")) as running:
        yield running


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A nats-server of one's own; it starts in 20 ms."""
    async with NatsServer.start(tmp_path / "nats") as running:
        yield running


@pytest.fixture
async def stream(nats_server: NatsServer) -> AsyncIterator[Flow]:
    """A provisioned stream on that server, in which nobody has said anything yet."""
    async with Flow.provisioned(nats_server.url) as provisioned:
        yield provisioned
