"""Parses formats like Go's Sprintf; `printing` formats the values."""

from collections.abc import Sequence
from typing import Final

from libs.gotemplate.number_format import Flags
from libs.gotemplate.printing import Printer
from libs.gotemplate.runes import character_at
from libs.gotemplate.values import Uint8, Value, type_name

_LARGEST: Final = 1_000_000  # Go's limit of widths and precisions; MAX_TEXT is lower
_FLAGS: Final = {"#": "sharp", "0": "zero", "+": "plus", "-": "minus", " ": "space"}


def sprintf(template: bytes, arguments: Sequence[Value]) -> bytes:
    """Implement fmt.Sprintf, with Go's texts for errors, such as `%!d(string=x)` and `%!s(MISSING)`."""
    formatter = _Formatter(template, arguments)
    while formatter.literal():
        formatter.directive()
    formatter.extra()
    return bytes(formatter.printer.text)


class _Formatter:
    def __init__(self, template: bytes, arguments: Sequence[Value]) -> None:
        self.printer = Printer()
        self._template = template
        self._arguments = arguments
        self._position = 0
        self._argument = 0
        self._reordered = False  # an index was used, so unused arguments are no error
        self._good_index = True
        self._after_index = False

    def literal(self) -> bool:
        """Copy the text up to the next directive and skip its %; return whether there is a directive."""
        percent = self._template.find(b"%", self._position)
        end = len(self._template) if percent < 0 else percent
        self.printer.write(self._template[self._position : end])
        self._position = end + 1
        return percent >= 0

    def directive(self) -> None:
        """Format one verb with its flags."""
        flags = self.printer.flags = Flags()
        self._good_index, self._after_index = True, False
        while self._here() in _FLAGS:
            setattr(flags, _FLAGS[self._here()], True)
            self._position += 1
        self._index()
        self._width(flags)
        self._precision(flags)
        if not self._after_index:
            self._index()
        if self._position >= len(self._template):
            self.printer.write(b"%!(NOVERB)")
            return
        verb, width = character_at(self._template, self._position)
        self._position += width
        self._verb(verb, flags)

    def extra(self) -> None:
        """Append the error for arguments that no verb has used."""
        unused = self._arguments[self._argument :]
        if self._reordered or not unused:
            return
        printer = self.printer
        printer.flags = Flags()
        printer.write(b"%!(EXTRA ")
        for position, value in enumerate(unused):
            if position:
                printer.write(b", ")
            if value is not None:
                printer.write(type_name(value).encode() + b"=")
            printer.argument(value, "v")
        printer.write(b")")

    def _here(self) -> str:
        return chr(self._template[self._position]) if self._position < len(self._template) else ""

    def _verb(self, verb: str, flags: Flags) -> None:
        if verb == "%":
            self.printer.write(b"%")
        elif not self._good_index:
            self.printer.write(f"%!{verb}(BADINDEX)".encode())
        elif self._argument >= len(self._arguments):
            self.printer.write(f"%!{verb}(MISSING)".encode())
        else:
            if verb in "vw":
                flags.sharp_v, flags.sharp = flags.sharp, False
                flags.plus_v, flags.plus = flags.plus, False
            self.printer.argument(self._arguments[self._argument], verb)
            self._argument += 1

    def _index(self) -> None:
        """Parse `[n]`, which selects the next argument."""
        self._after_index = False
        if self._here() != "[":
            return
        self._reordered = True
        end = self._template.find(b"]", self._position)
        if end < 0 or len(self._template) - self._position < 3:
            self._good_index = False
            self._position += 1
            return
        digits = self._template[self._position + 1 : end]
        self._position = end + 1
        number = _number(digits) if digits.isdigit() else None
        self._after_index = number is not None
        if number is not None and 1 <= number <= len(self._arguments):
            self._argument = number - 1
        else:
            self._good_index = False

    def _digits(self) -> int | None:
        """Parse a number in the format; None if there is none or it is too large for Go."""
        start = self._position
        while self._here().isdecimal():
            self._position += 1
        if start == self._position:
            return None
        number = _number(self._template[start : self._position])
        if number is None:
            self._position = len(self._template)
        return number

    def _star(self) -> int | None:
        """Return a width or precision from the next argument; None if it is not an int or too large."""
        self._position += 1
        self._after_index = False
        if self._argument >= len(self._arguments):
            return None
        value = self._arguments[self._argument]
        self._argument += 1
        number = value.value if isinstance(value, Uint8) else value
        if isinstance(number, bool) or not isinstance(number, int) or abs(number) > _LARGEST:
            return None
        return number

    def _width(self, flags: Flags) -> None:
        if self._here() == "*":
            flags.width = self._star()
            if flags.width is None:
                self.printer.write(b"%!(BADWIDTH)")
            elif flags.width < 0:
                flags.width, flags.minus, flags.zero = -flags.width, True, False
            return
        flags.width = self._digits()
        if self._after_index and flags.width is not None:
            self._good_index = False

    def _precision(self, flags: Flags) -> None:
        if self._here() != "." or self._position + 1 >= len(self._template):
            return
        self._position += 1
        if self._after_index:
            self._good_index = False
        self._index()
        if self._here() == "*":
            given = self._star()
            flags.precision = given if given is not None and given >= 0 else None
            if flags.precision is None:
                self.printer.write(b"%!(BADPREC)")
            return
        flags.precision = self._digits() or 0


def _number(digits: bytes) -> int | None:
    """Parse digits like Go's parsenum, which fails when a digit follows a number over a million."""
    number = 0
    for digit in digits:
        if number > _LARGEST:
            return None
        number = number * 10 + digit - 48
    return number
