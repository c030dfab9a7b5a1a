"""Values in the texts of Go programs: durations and booleans."""

import re
from decimal import Decimal
from typing import Final

_UNITS: Final = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "h": "3600"}
_DURATION: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_MAX_LENGTH: Final = 100  # Python takes minutes to parse thousands of digits, or raises another error
_MAX_SECONDS: Final = 2**63 // 10**9  # Go counts nanoseconds in 64 bits
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def parse_duration(text: str) -> float:
    """Return the seconds of a Go duration ("1h5m0.5s", "300ms", "0"). Raises ValueError with the hint."""
    if text in ("0", "+0", "-0"):
        return 0.0
    body = text.lstrip("+-")
    parts = _DURATION.findall(body) if len(body) <= _MAX_LENGTH else []
    if not parts or "".join(number + unit for number, unit in parts) != body or len(text) - len(body) > 1:
        raise ValueError("a duration such as 5m0s, 10s or 500ms")
    seconds = float(sum(Decimal(number) * Decimal(_UNITS[unit]) for number, unit in parts))
    if seconds >= _MAX_SECONDS:
        raise ValueError(f"a duration of less than {_MAX_SECONDS // 3600}h")
    return -seconds if text.startswith("-") else seconds


def format_duration(seconds: float) -> str:
    """Return a Go duration, as Go prints it ("5m0s", "1.5s", "500ms")."""
    if 0 < abs(seconds) < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{head}{rest:g}s"


def parse_bool(text: str) -> bool:
    """Return a Go boolean. Raises ValueError with the hint."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("true or false")
