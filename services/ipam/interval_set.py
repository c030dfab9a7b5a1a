"""A set of numbers, stored as runs of neighbours: its size in memory depends on the number of runs."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Disjoint, ordered runs [begin, end) with at least one number between two of them."""

    __slots__ = ("_begins", "_ends", "size")

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.size = 0  # count of numbers in the set

    def add(self, begin: int, end: int) -> None:
        """Add the numbers [begin, end); begin < end."""
        low = bisect_left(self._ends, begin)  # the first run that overlaps or touches the range
        high = bisect_right(self._begins, end)
        if low < high:
            begin = min(begin, self._begins[low])
            end = max(end, self._ends[high - 1])
            self.size -= self._length(low, high)
        self._begins[low:high] = [begin]
        self._ends[low:high] = [end]
        self.size += end - begin

    def remove(self, begin: int, end: int) -> None:
        """Remove the numbers [begin, end); begin < end."""
        low = bisect_right(self._ends, begin)
        high = bisect_left(self._begins, end)
        if low >= high:
            return
        left, right = self._begins[low], self._ends[high - 1]
        self.size -= self._length(low, high)
        begins, ends = [], []  # the parts that remain on both sides
        if left < begin:
            begins.append(left)
            ends.append(begin)
        if end < right:
            begins.append(end)
            ends.append(right)
        self._begins[low:high] = begins
        self._ends[low:high] = ends
        self.size += sum(ends) - sum(begins)

    def find_first_free(self, start: int) -> int:
        """Return the first number from `start` on that is not in the set."""
        index = bisect_right(self._begins, start) - 1
        return self._ends[index] if index >= 0 and self._ends[index] > start else start

    def iter_gaps(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs between two numbers that are not in the set."""
        gap = self.find_first_free(begin)
        while gap < end:
            index = bisect_right(self._begins, gap)
            until = min(end, self._begins[index]) if index < len(self._begins) else end
            yield gap, until
            gap = self.find_first_free(until)

    def _length(self, low: int, high: int) -> int:
        return sum(self._ends[low:high]) - sum(self._begins[low:high])
