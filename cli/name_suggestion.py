"""What somebody may have meant who has mistyped a name. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest_name(name: str, names: Iterable[str]) -> str:
    """To be said behind a name that there is not: "; did you mean web-1?", or a full stop."""
    bare = name.rpartition("/")[2].lower()  # kubectl says node/web-1
    known = sorted(set(names))
    close = [bare] if bare in known else get_close_matches(bare, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else "."
