"""Listings are shared, and know when parts that can outlive their balancer were read."""

from typing import Any

import pytest

from libs.clouds.instances import Credential
from services.cloud.balancer_reader import BalancerReader, TermClock
from tests.clocks import ManualClock


class _Balancers:
    """A cloud without balancers, which notes whether a listing reads parts."""

    def __init__(self, *, has_outliving_parts: bool) -> None:
        self.has_outliving_parts = has_outliving_parts
        self.credential = Credential(1, ManualClock().now())
        self.read_parts: list[bool] = []

    async def list_balancers(self, cluster_uid: str, *, reads_parts: bool) -> tuple[()]:
        self.read_parts.append(reads_parts)
        return ()


@pytest.mark.parametrize(
    ("has_outliving_parts", "read_parts"),
    [(True, [True, False, True, True]), (False, [True, True, True, True])],
)
async def test_the_first_listing_of_a_term_reads_parts_and_others_if_asked(
    has_outliving_parts: bool, read_parts: list[bool]
):
    clock, cloud = ManualClock(), _Balancers(has_outliving_parts=has_outliving_parts)
    balancers: Any = cloud
    instances: Any = None
    now = TermClock(clock.now, clock)
    reader = BalancerReader(account="prod", balancers=balancers, cloud=instances, now=now)
    last_read = []

    async def list_again(*, reads_parts: bool) -> None:
        clock.advance(60)
        await reader.list_balancers("uid", reads_parts=reads_parts)
        assert reader.listing is not None
        last_read.append((now() - reader.listing.parts_began_at).total_seconds())

    await list_again(reads_parts=False)
    await list_again(reads_parts=False)
    await list_again(reads_parts=True)
    reader.clear()
    await list_again(reads_parts=False)
    assert cloud.read_parts == read_parts
    assert last_read == [0, 60 if has_outliving_parts else 0, 0, 0]
