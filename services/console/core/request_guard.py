"""Which requests of browsers are refused, and the headers of every response. Pure."""

from collections.abc import Mapping
from typing import Final

# No inline script or style, nothing from other servers, and no page may embed this one.
_CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
RESPONSE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def explain_refusal(host: str, fetch_site: str, *, is_data: bool) -> str:
    """Return why a request is refused, "" if it is not.

    `host` and `fetch_site` are its headers Host and Sec-Fetch-Site. A page of another site whose name
    resolves to a loopback address (DNS rebinding) sends that name as Host. Another site may link to the
    console, but its pages may not request data.
    """
    name, separator, port = host.rpartition(":")
    if not separator or host.endswith("]"):
        name, port = host, "0"
    if name.lower() not in _HOSTS or not (port.isascii() and port.isdigit()):
        return "Open the console as http://localhost or http://127.0.0.1."
    if is_data and fetch_site not in ("", "same-origin", "none"):
        return "Data is for pages of the console only."
    return ""
