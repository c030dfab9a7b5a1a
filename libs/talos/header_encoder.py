"""Encodes the headers of calls, most of which are the same in each call."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Protocol

_CACHED_HEADERS: Final = 256  # the constant ones, and the names of machines that are queried now


class TableEncoder(Protocol):
    """An encoder of hpack, as in `H2Connection.encoder`."""

    header_table_size: int

    def encode(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the block of these headers, after the announcement of a changed table size."""

    def add(self, to_add: tuple[bytes, bytes], sensitive: bool, huffman: bool) -> bytes:
        """Return one header; with `sensitive`, the dynamic table stays as it is."""


class HeaderEncoder:
    """Replaces an encoder, whose dynamic table stays empty, so that a header always has the same bytes.

    hpack compares each header of each call with the whole table, to which each call adds its own timeout and
    machine. That takes 30 us and saves 150 bytes. This takes 4 us.
    """

    def __init__(self, encoder: TableEncoder) -> None:
        self._encoder = encoder
        self._encode_header = lru_cache(_CACHED_HEADERS)(
            lambda header: encoder.add(header, sensitive=True, huffman=False)
        )

    @property
    def header_table_size(self) -> int:
        """The size of the table that the server allows."""
        return self._encoder.header_table_size

    @header_table_size.setter
    def header_table_size(self, size: int) -> None:
        self._encoder.header_table_size = size

    def encode(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the block of these headers."""
        return self._encoder.encode(()) + b"".join(map(self._encode_header, headers))
