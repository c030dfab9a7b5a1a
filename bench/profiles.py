"""A run of its own under cProfile, which costs time: its figures are not among the results."""

import io
import pstats
from pathlib import Path
from typing import Final

_LINES: Final = 20


def format_top_functions(profile: Path, lines: int = _LINES) -> str:
    """The functions in which a process spent the most time of its own."""
    text = io.StringIO()
    stats = pstats.Stats(str(profile), stream=text)
    stats.strip_dirs().sort_stats(pstats.SortKey.TIME).print_stats(lines)
    kept = [line for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join(kept)
