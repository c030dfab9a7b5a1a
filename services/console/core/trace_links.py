"""The template of links to the trace backend. Pure."""

from typing import Final
from urllib.parse import urlsplit

_PLACEHOLDER: Final = "{node}"


def find_template_problem(template: str) -> str:
    """Return why the template is invalid, "" if it is valid or empty."""
    if not template:
        return ""
    if urlsplit(template).scheme not in ("http", "https"):
        return f"is {template!r}, which is no http or https URL"
    return "" if _PLACEHOLDER in template else f"is {template!r}, which lacks {_PLACEHOLDER}"
