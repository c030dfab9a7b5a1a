"""Handles text like Go: bytes, usually UTF-8, read by rune, with U+FFFD for each invalid byte."""

from typing import Final

REPLACEMENT: Final = "\ufffd"
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def encoded(text: str) -> bytes:
    """Encode Python's text as Go's; lone surrogates become invalid bytes, as in Go."""
    return text.encode("utf-8", "surrogatepass")


def characters(text: bytes) -> str:
    """Return one character for each rune; an invalid byte becomes a lone surrogate, which `raw` reverts."""
    return text.decode("utf-8", "surrogateescape")


def raw(text: str) -> bytes:
    """Return the bytes from which `characters` made this text."""
    return text.encode("utf-8", "surrogateescape")


def is_invalid(character: str) -> bool:
    """Return whether this character of `characters` represents an invalid byte."""
    return "\udc80" <= character <= "\udcff"


def valid(text: bytes) -> str:
    """Return the text with U+FFFD for each invalid byte."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(REPLACEMENT if is_invalid(c) else c for c in characters(text))


def character_at(text: bytes, position: int) -> tuple[str, int]:
    """Return the rune that begins at a byte, and its width in bytes."""
    for width in range(1, 5):
        try:
            return text[position : position + width].decode("utf-8"), width
        except UnicodeDecodeError:
            continue
    return REPLACEMENT, 1


def is_word(character: str) -> bool:
    """Return whether Go accepts the character in a name: letter, decimal digit or underscore."""
    return character == "_" or character.isalpha() or character.isdecimal()


def upper(text: bytes) -> bytes:
    """Implement strings.ToUpper by rune, so that each rune stays one rune."""
    return "".join(_upper(c) for c in valid(text)).encode() if not text.isascii() else text.upper()


def lower(text: bytes) -> bytes:
    """Implement strings.ToLower by rune, without a final sigma."""
    return "".join(_lower(c) for c in valid(text)).encode() if not text.isascii() else text.lower()


def trim(text: bytes) -> bytes:
    """Implement strings.TrimSpace."""
    return raw(characters(text).strip(_SPACE))


def _upper(character: str) -> str:
    mapped = character.upper()
    if len(mapped) == 1:
        return mapped
    title = character.title()  # Unicode's full mapping is longer: the simple one is then the title case
    return title if len(title) == 1 else character


def _lower(character: str) -> str:
    return character.lower()[0]  # only U+0130 has two, of which the first is its simple mapping
