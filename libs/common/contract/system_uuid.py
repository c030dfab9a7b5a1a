"""Normalizes SMBIOS UUIDs from kubelets (`systemUUID`) and Talos, some of which are placeholders."""

import re
from typing import Final

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_LEAST_DISTINCT_DIGITS: Final = 6  # of 32: random UUIDs have more; boards without a serial number have fewer
_JUNK: Final = frozenset(  # placeholders in SMBIOS, equal on many boards
    {
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "78563412-3412-7856-90ab-cddeefaabbcc",
        "12345678-1234-1234-1234-123456789abc",
        "00112233-4455-6677-8899-aabbccddeeff",
        "33221100-5544-7766-8899-aabbccddeeff",
    }
)


def normalize_uuid(text: str) -> str:
    """Return one spelling per machine (lower case, the smaller of two byte orders), "" for placeholders."""
    uuid = text.strip().lower()
    if not _UUID.match(uuid) or uuid in _JUNK or len(set(uuid) - {"-"}) < _LEAST_DISTINCT_DIGITS:
        return ""
    time_low, time_mid, time_high, *rest = uuid.split("-")
    swapped = "-".join([_swap(time_low), _swap(time_mid), _swap(time_high), *rest])
    return min(uuid, swapped)


def is_placeholder_uuid(text: str) -> bool:
    """Return whether the text is a UUID that identifies no machine."""
    return bool(_UUID.match(text.strip().lower())) and not normalize_uuid(text)


def _swap(digits: str) -> str:
    return bytes.fromhex(digits)[::-1].hex()
