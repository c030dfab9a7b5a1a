"""Which requests of browsers a server of pages refuses, and the headers of its responses. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

# No inline script or style, nothing from other servers, and no page may embed this one.
_CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
RESPONSE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser hides the Origin of a form
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the guard reads of a request: its headers, "" without one, and its purpose."""

    host: str
    fetch_site: str = ""  # Sec-Fetch-Site
    origin: str = ""
    is_data: bool = False
    is_write: bool = False


def explain_refusal(head: RequestHead, hosts: Sequence[str] = ()) -> str:
    """Return why a request is refused, "" if it is not.

    `hosts` are the names of a server that others reach. A page of another site whose name resolves to the
    address of the server (DNS rebinding) sends that name as Host. Another site may link to it, but the pages
    of that site may request no data, and send nothing.
    """
    name, separator, port = head.host.rpartition(":")
    if not separator or head.host.endswith("]"):
        name, port = head.host, "0"
    if name.lower() not in (*_HOSTS, *hosts) or not (port.isascii() and port.isdigit()):
        urls = [f"https://{each}" for each in hosts] or ["http://localhost", "http://127.0.0.1"]
        return f"Open this page as {' or '.join(urls)}."
    if head.is_data and head.fetch_site not in ("", "same-origin", "none"):
        return "Data is for pages of this server only."
    if head.is_write and not _comes_from_own_page(head):
        return "Only a page of this server may send this."
    return ""


def _comes_from_own_page(head: RequestHead) -> bool:
    """Whether one of the two headers proves it, and neither denies it: a browser sends at least one."""
    own = f"https://{head.host.lower()}"
    if head.origin not in ("", own) or head.fetch_site not in ("", "same-origin"):
        return False
    return bool(head.origin or head.fetch_site)
