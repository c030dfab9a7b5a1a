"""Real servers for the tests that request them. All of a session shares one event loop.

`make test` runs the files on several workers: each is a session, with servers of its own on free ports.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from xdist.remote import Producer

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_start import fork_services
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.distribution import ByServers, turn_of
from tests.flow_actors import FlowActor

# The time of one example on a slow machine says nothing about the code. Each run draws other examples.
_UNHURRIED: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("unhurried", **_UNHURRIED, max_examples=50)
hypothesis.settings.load_profile("unhurried")
hypothesis.settings.register_profile("fast", **_UNHURRIED, max_examples=20)  # make test-fast names it


# A shell that starts a suite in the background has it ignore Ctrl-C, and every process that tests start, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The servers in Go collect garbage less often: kube-apiserver takes a tenth less CPU, and 100 MB more.
os.environ.setdefault("GOGC", "400")

_MOST_WORKERS = 6  # each may have a control plane, of half a gigabyte


# A test that uses one of these fixtures needs a real server.
_REAL_SERVERS = frozenset({"control_plane", "machines", "nats_server", "real_api_server", "real_signer"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a real server, by their fixtures: `make test-fast` leaves them out."""
    for item in items:
        if isinstance(item, pytest.Function) and not _REAL_SERVERS.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.real_servers)


def pytest_collection() -> None:
    """Collect without the garbage collector: all that is made here stays."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt modules and test items from garbage collection, and collect less often: a tenth less CPU."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()
    items = (item for item in session.items if isinstance(item, pytest.Function))
    _users.update(item.path for item in items if not _CONTROL_PLANES.isdisjoint(item.fixturenames))


# ---- control planes live as long as the session, paused for each file that uses none


_CONTROL_PLANES = frozenset({"api_server", "control_plane", "node_lifecycle", "signing_api_server"})
_running: list[ControlPlane] = []
_users: set[Path] = set()  # the files of tests with one of these fixtures


@contextlib.asynccontextmanager
async def start_control_plane(run_dir: Path, **options: Any) -> AsyncIterator[ControlPlane]:
    """Start a control plane as `ControlPlane.start` does, and pause it while no file uses it."""
    async with ControlPlane.start(run_dir, **options) as control_plane:
        _running.append(control_plane)
        try:
            yield control_plane
        finally:
            _running.remove(control_plane)


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


class _Worker:
    """Hooks of a worker, which sorts the files after pytest has sorted them."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=turn_of)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Send one report of a test that passes: the usual five messages cost as much as a small test."""
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed or report.duration >= 1:
                item.ihook.pytest_runtest_logreport(report=report)
        return True


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Worker())


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Six for two cores: a worker waits for its servers more than half of the time.

    `--numprocesses=logical` is for tests without servers, which wait less: two per core, and one collection
    of all tests less.
    """
    cores = os.cpu_count() or 1
    wanted = cores * 2 if config.option.numprocesses == "logical" else cores * 3
    return min(wanted, _MOST_WORKERS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServers:
    """Ignore --dist: several workers must never share the servers of one module."""
    return ByServers(config, log)


@pytest.fixture(scope="session", autouse=True)
def what_only_the_collector_finds() -> Iterator[None]:
    """Report errors in garbage of the tests with the last test: the end of a worker hides them."""
    yield
    for _ in range(2):  # what the first frees may hold the last reference to more
        gc.collect()


@pytest.fixture(scope="session")
async def control_plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """One control plane for the session, which logs changed fields: use unique names, and clean up."""
    run_dir = tmp_path_factory.mktemp("control-plane")
    async with start_control_plane(run_dir, audit_fields=True) as running:
        yield running


@pytest.fixture(scope="session")
async def kubelets(control_plane: ControlPlane) -> AsyncIterator[KubeletFleet]:
    """Kubelets of that control plane."""
    async with KubeletFleet.start(control_plane) as running:
        yield running


@pytest.fixture(scope="session")
async def machines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MachineFleet]:
    """One process of Talos machines for the session: use unique ids and addresses."""
    async with MachineFleet.start(tmp_path_factory.mktemp("machines")) as running:
        yield running


@pytest.fixture(scope="session")
def forked_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """From here on, fork the processes of services."""
    with fork_services(tmp_path_factory.mktemp("fork-server")):
        yield


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A nats-server for one test; it starts in 20 ms."""
    async with NatsServer.start(tmp_path / "nats") as running:
        yield running


@pytest.fixture
async def simulated(tmp_path: Path) -> AsyncIterator[SimApiServer]:
    """A simulated API server for one test."""
    async with SimApiServer.start(tmp_path / "simulated") as running:
        yield running


@pytest.fixture
async def stream(nats_server: NatsServer) -> AsyncIterator[FlowActor]:
    """A provisioned stream on that server, without messages."""
    async with FlowActor.open(nats_server.url) as provisioned:
        yield provisioned
