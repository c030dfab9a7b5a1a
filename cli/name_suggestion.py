"""Suggests an existing name for a mistyped one. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: "; did you mean web-1?", or a full stop."""
    bare = name.rpartition("/")[2].lower()  # kubectl writes node/web-1
    known = sorted(set(names))
    close = [bare] if bare in known else get_close_matches(bare, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else "."
