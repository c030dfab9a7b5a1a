"""Profiles of a run under cProfile; profiling takes time, so the results exclude its figures."""

import io
import pstats
from pathlib import Path
from typing import Final

_LINES: Final = 20


def format_top_functions(profile: Path, lines: int = _LINES) -> str:
    """The functions with the highest own time."""
    text = io.StringIO()
    stats = pstats.Stats(str(profile), stream=text)
    stats.strip_dirs().sort_stats(pstats.SortKey.TIME).print_stats(lines)
    kept = [line for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join(kept)
