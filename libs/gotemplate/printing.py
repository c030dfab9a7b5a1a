"""Formats one value like Go's fmt, by verb and type, into a text of limited length."""

from collections.abc import Iterable, Sequence
from typing import Final

from libs.gotemplate.bounds import MAX_TEXT, BoundExceeded, fits
from libs.gotemplate.number_format import Flags, format_float, format_integer, format_unicode
from libs.gotemplate.quoting import as_character, can_backquote, quote, quote_character
from libs.gotemplate.runes import characters, raw
from libs.gotemplate.values import GoList, GoMap, Record, Uint8, Value, type_name

_BASES: Final = {"d": 10, "v": 10, "b": 2, "o": 8, "O": 8, "x": 16, "X": 16}
_FLOATS: Final[dict[str, tuple[str, int | None]]] = {
    "v": ("g", None), "g": ("g", None), "G": ("G", None), "x": ("x", None), "X": ("X", None),
    "b": ("b", None), "f": ("f", 6), "F": ("f", 6), "e": ("e", 6), "E": ("E", 6),
}  # fmt: skip


class Printer:
    """Builds one formatted text."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.flags = Flags()

    def write(self, piece: bytes) -> None:
        """Append a piece unchanged. Raises BoundExceeded."""
        if len(self.text) + len(piece) > MAX_TEXT:
            raise BoundExceeded(f"a text is longer than MAX_TEXT = {MAX_TEXT} bytes")
        self.text += piece

    def pad(self, piece: bytes, *, zeros: bool = True) -> None:
        """Append a piece, padded to the width of the flags."""
        width = self.flags.width or 0
        fits(width)
        missing = max(0, width - len(characters(piece))) if width else 0
        if self.flags.minus:
            self.write(piece + b" " * missing)
        else:
            self.write((b"0" if zeros and self.flags.zero else b" ") * missing + piece)

    def argument(self, value: Value, verb: str) -> None:
        """Append a value as an argument of print or printf."""
        if value is None:
            if verb in "Tv":
                self.pad(b"<nil>")
            else:
                self.bad_verb(value, verb)
        elif verb == "T":
            self._string(type_name(value).encode(), "s")
        else:
            self._value(value, verb)

    def bad_verb(self, value: Value, verb: str) -> None:
        """Append a value that the verb does not support, such as `%!d(string=text)`."""
        self.write(f"%!{verb}(".encode("utf-8", "replace"))
        if value is None:
            self.write(b"<nil>")
        else:
            self.write(type_name(value).encode() + b"=")
            self._value(value, "v")
        self.write(b")")

    def _value(self, value: Value, verb: str) -> None:
        match value:
            case None:
                self.write(b"<nil>")
            case bool():
                if verb in "tv":
                    self.pad(b"true" if value else b"false")
                else:
                    self.bad_verb(value, verb)
            case int() | Uint8():
                self._integer(value, verb)
            case float():
                self._float(value, verb)
            case bytes():
                self._string(value, verb)
            case GoMap():
                self._map(value, verb)
            case GoList():
                self._list(value, verb)
            case Record():
                self._record(value, verb)

    def _integer(self, value: int | Uint8, verb: str) -> None:
        number = value.value if isinstance(value, Uint8) else value
        flags = self.flags
        if verb == "v" and flags.sharp_v and isinstance(value, Uint8):
            self.pad(f"0x{number:x}".encode())
        elif verb in _BASES:
            text = format_integer(number, _BASES[verb], verb, flags)
            self.pad(text.encode(), zeros=False)
        elif verb == "c":
            self.pad(as_character(number).encode())
        elif verb == "q":
            self.pad(quote_character(number, ascii_only=flags.plus))
        elif verb == "U":
            self.pad(format_unicode(number, flags).encode(), zeros=False)
        else:
            self.bad_verb(value, verb)

    def _float(self, value: float, verb: str) -> None:
        if verb not in _FLOATS:
            self.bad_verb(value, verb)
            return
        text = format_float(value, *_FLOATS[verb], self.flags)
        flags = self.flags
        number = text.lstrip("+- ")
        if number[0] in "IN":
            self.pad(text.encode(), zeros=False)
        elif flags.zero and not flags.minus and len(number) < len(text):
            fits(flags.width or 0)
            self.write((text[0] + number.rjust((flags.width or 0) - 1, "0")).encode())
        else:
            self.pad(text.encode())

    def _string(self, value: bytes, verb: str) -> None:
        if verb == "v" and self.flags.sharp_v:
            verb = "q"
        match verb:
            case "v" | "s":
                self.pad(self._truncated(value))
            case "x" | "X":
                self._hex_string(value, verb)
            case "q":
                self._quoted(self._truncated(value))
            case _:
                self.bad_verb(value, verb)

    def _truncated(self, value: bytes) -> bytes:
        precision = self.flags.precision
        return value if precision is None else raw(characters(value)[:precision])

    def _quoted(self, value: bytes) -> None:
        if self.flags.sharp and can_backquote(value):
            self.pad(b"`" + value + b"`")
        else:
            self.pad(quote(value, ascii_only=self.flags.plus))

    def _hex_string(self, value: bytes, verb: str) -> None:
        flags = self.flags
        if flags.precision is not None:
            value = value[: flags.precision]
        prefix = "0x" if flags.sharp else ""
        if flags.space:
            text = " ".join(f"{prefix}{byte:02x}" for byte in value)
        else:
            text = prefix + value.hex() if value else ""
        self.pad((text.upper() if verb == "X" else text).encode())

    def _map(self, value: GoMap, verb: str) -> None:
        pairs = (
            (lambda key=key: self._string(key, verb), value.entries[key]) for key in sorted(value.entries)
        )
        if self.flags.sharp_v:
            self.write(type_name(value).encode())
            if value.nil:
                self.write(b"(nil)")
                return
        self._pieces(
            b"{" if self.flags.sharp_v else b"map[", b"}" if self.flags.sharp_v else b"]", pairs, verb
        )

    def _list(self, value: GoList, verb: str) -> None:
        pieces = ((None, item) for item in value.items)
        if self.flags.sharp_v:
            self.write(type_name(value).encode())
            if value.nil:
                self.write(b"(nil)")
                return
        self._pieces(b"{" if self.flags.sharp_v else b"[", b"}" if self.flags.sharp_v else b"]", pieces, verb)

    def _record(self, value: Record, verb: str) -> None:
        named = self.flags.plus_v or self.flags.sharp_v
        if self.flags.sharp_v:
            self.write(value.type_name.encode())
        pieces = (
            ((lambda name=name: self.write(name.encode())) if named else None, field)
            for name, field in value.fields.items()
        )
        self._pieces(b"{", b"}", pieces, verb)

    def _pieces(
        self, opening: bytes, closing: bytes, pieces: Iterable[tuple[object, Value]], verb: str
    ) -> None:
        """Append the elements; each comes with a function that writes its name or key first."""
        self.write(opening)
        for position, (write_name, element) in enumerate(pieces):
            if position:
                self.write(b", " if self.flags.sharp_v else b" ")
            if callable(write_name):
                write_name()
                self.write(b":")
            self._value(element, verb)
        self.write(closing)


def sprint(values: Sequence[Value]) -> bytes:
    """Implement fmt.Sprint: a space between two operands if neither is a string."""
    printer = Printer()
    previous = True
    for value in values:
        text = isinstance(value, bytes)
        if not (text or previous):
            printer.write(b" ")
        printer.argument(value, "v")
        previous = text
    return bytes(printer.text)


def sprintln(values: Sequence[Value]) -> bytes:
    """Implement fmt.Sprintln."""
    printer = Printer()
    for position, value in enumerate(values):
        if position:
            printer.write(b" ")
        printer.argument(value, "v")
    printer.write(b"\n")
    return bytes(printer.text)
