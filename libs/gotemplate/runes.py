"""Go's view of text: bytes that are usually UTF-8, read rune by rune, each invalid byte as U+FFFD."""

from typing import Final

REPLACEMENT: Final = "\ufffd"
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def encoded(text: str) -> bytes:
    """Python's text as Go's; lone surrogates become invalid bytes, as they would in Go."""
    return text.encode("utf-8", "surrogatepass")


def characters(text: bytes) -> str:
    """One character for each rune; an invalid byte is a lone surrogate, which `raw` turns back."""
    return text.decode("utf-8", "surrogateescape")


def raw(text: str) -> bytes:
    """The inverse of `characters`."""
    return text.encode("utf-8", "surrogateescape")


def is_invalid(character: str) -> bool:
    """Whether this character of `characters` stands for an invalid byte."""
    return "\udc80" <= character <= "\udcff"


def valid(text: bytes) -> str:
    """The text with U+FFFD for each invalid byte."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(REPLACEMENT if is_invalid(c) else c for c in characters(text))


def character_at(text: bytes, position: int) -> tuple[str, int]:
    """The rune that begins at a byte, and its width in bytes."""
    for width in range(1, 5):
        try:
            return text[position : position + width].decode("utf-8"), width
        except UnicodeDecodeError:
            continue
    return REPLACEMENT, 1


def is_word(character: str) -> bool:
    """Go's letter, decimal digit or underscore: what names are made of."""
    return character == "_" or character.isalpha() or character.isdecimal()


def upper(text: bytes) -> bytes:
    """strings.ToUpper: rune by rune, so that no text becomes longer than its runes do."""
    return "".join(_upper(c) for c in valid(text)).encode() if not text.isascii() else text.upper()


def lower(text: bytes) -> bytes:
    """strings.ToLower, rune by rune: no final sigma."""
    return "".join(_lower(c) for c in valid(text)).encode() if not text.isascii() else text.lower()


def trim(text: bytes) -> bytes:
    """strings.TrimSpace."""
    return raw(characters(text).strip(_SPACE))


def _upper(character: str) -> str:
    mapped = character.upper()
    if len(mapped) == 1:
        return mapped
    title = character.title()  # Unicode's full mapping is longer: the simple one is then the title case
    return title if len(title) == 1 else character


def _lower(character: str) -> str:
    return character.lower()[0]  # only U+0130 has two, of which the first is its simple mapping
