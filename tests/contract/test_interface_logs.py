"""Keys of log fields and the format of log lines, which log pipelines read; messages are prose."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Final

from libs.common.observability import logs, telemetry
from tests.architecture.sources import sources
from tests.contract.interface_snapshot import assert_unchanged
from tests.contract.observed_run import messages_of_every_event, run_handlers
from tests.contract.static_values import ModuleText, called

_IN_CONTEXT: Final = {each.__name__ for each in (logs.log_fields, logs.note, telemetry.annotate)}
_LEVELS: Final = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def test_keys_of_log_fields_are_unchanged():
    found: set[str] = set()
    for source in sources("libs/common", "libs/talos", "libs/gotemplate", "services", "cli"):
        found.update(keys_in(ModuleText(source)))
    assert_unchanged("log_fields", sorted(found))


async def test_the_fields_and_levels_of_lines_about_handled_messages_are_unchanged():
    found = {
        f"{line['level']} {' '.join(sorted(line.keys() - {'level', 'message'}))}"
        for kind in ("node", "csr")
        for line in await lines_about(kind)
    }
    assert_unchanged("log_lines_of_messages", sorted(found))


def test_the_format_of_lines_is_unchanged():
    record = logging.makeLogRecord(
        {
            "name": "part",
            "msg": "message",
            "created": 1767323045.678,
            "msecs": 678.0,
            "node": "web-1",
            "count": 3,
            "seconds": 0.25,
            "text": 'a "b" = c',
            "nothing": None,
        }
    )
    written: dict[str, list[str]] = {"json": [], "text": []}
    with logs.log_fields(service="labeler", node="overridden"):
        for level in _LEVELS:
            record.levelno, record.levelname = level, logging.getLevelName(level)
            written["json"].append(logs.JsonFormatter().format(record))
            written["text"].append(logs.TextFormatter().format(record))
    record.exc_info = (KeyError, KeyError("zone"), None)
    written["json"].append(logs.JsonFormatter().format(record))
    written["text"].append(logs.TextFormatter().format(record))
    assert json.loads(written["json"][0])["time"] == "2026-01-02T03:04:05.678Z"
    assert_unchanged("log_format", written)


def keys_in(text: ModuleText) -> Iterator[str]:
    """The keys of what the calls in a module log, note or add to the context."""
    for call in text.calls:
        for keyword in call.keywords:
            if keyword.arg == "extra":
                yield from text.keys(keyword.value)
            elif called(call.func) in _IN_CONTEXT:
                yield from text.keys(keyword.value) if keyword.arg is None else [keyword.arg]


async def lines_about(kind: str) -> list[dict[str, Any]]:
    """The JSON lines that a service logs when it handles every event in every way."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    own = logging.StreamHandler(stream)
    own.setFormatter(logs.JsonFormatter())
    root.handlers[:] = [own]
    root.setLevel(logging.DEBUG)
    try:
        await run_handlers("labeler", kind, messages_of_every_event())
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return [json.loads(line) for line in stream.getvalue().splitlines()]
