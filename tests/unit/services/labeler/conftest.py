"""The clock of the labeler's caches."""

import pytest

from tests.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
