"""The exceptions of msgspec for bytes that are not JSON of the expected type."""

from typing import Final

import msgspec

# Besides its own exceptions, msgspec raises UnicodeDecodeError for a text that is not UTF-8, and
# RecursionError for deep nesting, which costs no memory: it stops at Python's limit.
JSON_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
