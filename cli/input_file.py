"""Reads a --cloud-config or values file that a command gets as an argument."""

import sys
from pathlib import Path

from cli.progress import PROGRESS
from libs.common.safe_yaml import MAX_BYTES
from libs.common.settings.cloud_config_reloader import UnreadableFile, read_config_file


def read_input(path: Path) -> tuple[str, bytes | UnreadableFile]:
    """Return the name for messages and the content of the file; `-` is standard input."""
    if path.is_fifo():  # such as <(command) of a shell
        return str(path), UnreadableFile("it is not a regular file: give - to read standard input")
    if str(path) != "-":
        return str(path), read_config_file(path)
    if sys.stdin.isatty():
        PROGRESS.end()  # the user types
    return "standard input", sys.stdin.buffer.read(MAX_BYTES + 1)
