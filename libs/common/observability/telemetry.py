"""Log lines with a constant message and fields from the context; spans of traces."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TextIO, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    from libs.common.observability.tracing import Tracing

LogFormat = Literal["json", "text"]
T = TypeVar("T")

_fields: ContextVar[dict[str, object]] = ContextVar("log_fields", default={})  # noqa: B039 - never mutated
_notes: ContextVar[dict[str, object] | None] = ContextVar("log_notes", default=None)

# The fields of every LogRecord; all others came with `extra=`.
_OWN_KEYS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUOTED_CHARACTERS: Final = frozenset(' "=')
# Libraries that log every request.
_TALKATIVE: Final = ("aiohttp.access", "asyncio", "grpclib", "hpack", "nats", "urllib3")


class _Inside(Generic[T]):
    """Sets a context variable for a while; half the cost of a generator, for each message."""

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def log_fields(**fields: object) -> AbstractContextManager[object]:
    """Return a context that adds these fields to all log lines, across awaits and in new tasks."""
    return _Inside(_fields, {**_fields.get(), **fields})


def context_field(name: str) -> object | None:
    """Return a field of the current context, None if it is absent."""
    return _fields.get().get(name)


def notes() -> AbstractContextManager[dict[str, object]]:
    """Return a context that collects the fields of `annotate` for one log line at its end."""
    collected: dict[str, object] = {}
    return cast("AbstractContextManager[dict[str, object]]", _Inside(_notes, collected))


def setup_logging(*, log_format: LogFormat, level: int, stream: TextIO | None = None) -> None:
    """Log everything from `level` up to stderr (or `stream`), one line per entry."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)
    # Skip unused fields: a third of the cost of a line (as the docs of logging advise).
    logging._srcfile = None  # noqa: SLF001 - documented for this purpose
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then the fields."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._encoder.encode(line).decode()


class TextFormatter(logging.Formatter):
    """A line for terminals: `12:00:00.123 warning labeler  message  node=web-1 attempt=2`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        service = str(fields.pop("service", "-"))
        line = (
            f"{_time(record):%H:%M:%S}.{int(record.msecs):03d} {record.levelname.lower():7} {service:8} "
            f"{_printable(record.getMessage())}"
        )
        if fields:
            line += "  " + " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
        if record.exc_info:  # indented, so that its text cannot look like a log line
            trace = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n    {_printable(each)}" for each in trace)
        return line


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a line: those of the context, overridden by those of the call."""
    own = {key: value for key, value in vars(record).items() if key not in _OWN_KEYS}
    return {**_fields.get(), **own}


def level_of_verbosity(verbosity: int) -> int:
    """Return the log level for klog's `--v`: up to 2 is info, from 3 is debug."""
    return logging.INFO if verbosity <= 2 else logging.DEBUG


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _quoted(value: object) -> str:
    text = str(value)
    printable = text.isprintable() and _QUOTED_CHARACTERS.isdisjoint(text) and text
    return text if printable else _printable(msgspec.json.encode(text).decode())


def _printable(text: str) -> str:
    """Escape text that could control a terminal: JSON leaves C1 and bidirectional controls unescaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# ---- spans: while tracing is off, they cost almost nothing

SpanKind = Literal["internal", "producer", "consumer", "client"]
Attribute = str | int | float | bool


class Span(Protocol):
    """The part of a span that callers use, as in opentelemetry."""

    def set_attributes(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""


class _NoSpan:
    """The span while tracing is off."""

    def set_attributes(self, attributes: Mapping[str, Attribute]) -> None:
        """Ignore the attributes."""


_NO_SPAN: Final = nullcontext(_NoSpan())
_tracing: "Tracing | None" = None


def setup_tracing(service: str, endpoint: str | None) -> None:
    """Export spans to that OTLP/HTTP endpoint (`http://host:4318`) from now on; None or "" = off."""
    global _tracing  # noqa: PLW0603 - one exporter per process, set once at its start
    if _tracing is not None:
        _tracing.close()
        _tracing = None
    if endpoint:
        from libs.common.observability.tracing import Tracing  # noqa: PLC0415 - 12 MB and 200 ms, which most need not pay

        _tracing = Tracing(service, endpoint)


def tracing_is_on() -> bool:
    """Whether spans are recorded."""
    return _tracing is not None


def span(
    name: str,
    *,
    kind: SpanKind = "internal",
    parent_headers: Mapping[str, str] | None = None,
    links: Sequence[Mapping[str, str]] = (),
    attributes: Mapping[str, Attribute] | None = None,
) -> AbstractContextManager[Span]:
    """Return a context that records a span; an exception marks the span and propagates.

    `parent_headers` are the headers of the causing message (W3C traceparent), `links` those of other causing
    messages. Without parent headers the current span is the parent.
    """
    if _tracing is None:
        return _NO_SPAN
    return _tracing.span(name, kind, parent_headers, links, attributes or {})


def outgoing_headers() -> dict[str, str]:
    """Return the W3C trace context of the current span for message headers; empty while tracing is off."""
    return {} if _tracing is None else _tracing.outgoing_headers()


def exemplar() -> dict[str, str] | None:
    """Return the current trace ID for a metric; None while tracing is off or outside of a trace."""
    return None if _tracing is None else _tracing.exemplar()


def annotate(**fields: Attribute) -> None:
    """Add fields, with other names than those of a LogRecord, to the surrounding `notes` and current span."""
    collected = _notes.get()
    if collected is not None:
        collected.update(fields)
    if _tracing is not None:
        _tracing.annotate(fields)


def record(name: str, *, seconds: float, attributes: Mapping[str, Attribute]) -> None:
    """Record a call that has just ended as a child of the current span; ignore it without one."""
    if _tracing is not None:
        _tracing.record(name, seconds, attributes)


async def flush(deadline_seconds: float) -> None:
    """Export queued spans within the deadline; it never blocks the event loop and never raises."""
    if _tracing is not None:
        await _tracing.flush(deadline_seconds)
