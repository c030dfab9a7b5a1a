"""Implements html, js and urlquery; nothing is escaped unless a template calls them."""

from typing import Final
from urllib.parse import quote_plus

from libs.gotemplate.runes import characters, is_invalid, raw

_HTML: Final = {
    0: "\ufffd".encode(), 34: b"&#34;", 39: b"&#39;", 38: b"&amp;", 60: b"&lt;", 62: b"&gt;",
}  # fmt: skip
_JS: Final = {
    "\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D",
}  # fmt: skip


def html(text: bytes) -> bytes:
    """Escape like Go's HTMLEscaper."""
    return b"".join(_HTML.get(byte, bytes((byte,))) for byte in text)


def js(text: bytes) -> bytes:
    """Escape like Go's JSEscaper."""
    return raw("".join(map(_js, characters(text))))


def _js(character: str) -> str:
    if character in _JS:
        return _JS[character]
    if character < " ":
        return f"\\u00{ord(character):02X}"
    if character.isprintable() or character == "\x7f" or is_invalid(character):
        return character
    return f"\\u{ord(character):04X}"


def urlquery(text: bytes) -> bytes:
    """Escape like Go's URLQueryEscaper."""
    return quote_plus(text).encode()
