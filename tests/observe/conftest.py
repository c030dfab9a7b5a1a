"""The cluster on which each file tests its alerts."""

from collections.abc import AsyncIterator, Iterator

import pytest

from libs.testbed.service_start import fork_services
from tests.observe.observed_cluster import ObservedCluster, a_watched_cluster


@pytest.fixture(scope="session", autouse=True)
def forked_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with fork_services(tmp_path_factory.mktemp("fork-server")):
        yield


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ObservedCluster]:
    """A cluster of its own for each file: the faults of one file would fire alerts of another."""
    async with a_watched_cluster(tmp_path_factory.mktemp("watched")) as running:
        yield running
