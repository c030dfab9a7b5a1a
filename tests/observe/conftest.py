"""The cluster on which each file tests its alerts."""

from collections.abc import AsyncIterator

import pytest

from tests.observe.observed_cluster import ObservedCluster, a_watched_cluster


@pytest.fixture(scope="session", autouse=True)
def only_forked_services(forked_services: None) -> None:
    """The processes of services are forked."""


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ObservedCluster]:
    """A cluster of its own for each file: the faults of one file would fire alerts of another."""
    async with a_watched_cluster(tmp_path_factory.mktemp("watched")) as running:
        yield running
