"""Log lines: a constant message, the fields of the moment from context, as JSON or for human eyes."""

import logging
import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Generic, Literal, TextIO, TypeVar, cast

import msgspec

LogFormat = Literal["json", "text"]
T = TypeVar("T")

_fields: ContextVar[dict[str, object]] = ContextVar("log_fields", default={})  # noqa: B039 - never mutated
_notes: ContextVar[dict[str, object] | None] = ContextVar("log_notes", default=None)

# What a LogRecord carries anyway: everything else in it came in with `extra=`.
_OWN_KEYS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Libraries that repeat on every request what our own lines say once.
_TALKATIVE: Final = ("aiohttp.access", "asyncio", "grpclib", "hpack", "nats", "urllib3")


class _Inside(Generic[T]):
    """A context variable's value for a while; half the price of a generator, and every message pays it."""

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def log_fields(**fields: object) -> AbstractContextManager[object]:
    """Give every line that is logged inside these fields, across awaits and in tasks started inside."""
    return _Inside(_fields, {**_fields.get(), **fields})


def context_field(name: str) -> object | None:
    """A field of the present context, None if it has no such field."""
    return _fields.get().get(name)


def notes() -> AbstractContextManager[dict[str, object]]:
    """Collect what `note` says inside: the fields of the one line that will be logged at the end."""
    collected: dict[str, object] = {}
    return cast("AbstractContextManager[dict[str, object]]", _Inside(_notes, collected))


def note(**fields: object) -> None:
    """Add fields to the line that the surrounding `notes` will log; without one, to nothing."""
    collected = _notes.get()
    if collected is not None:  # logging refuses names that a LogRecord has itself
        collected.update({key + "_" * (key in _OWN_KEYS): value for key, value in fields.items()})


def setup_logging(*, log_format: LogFormat, level: int, stream: TextIO | None = None) -> None:
    """Send everything from `level` up to stderr (or `stream`), one line each."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)
    # What no line of ours shows is not looked up: a third of a line's price (logging's own advice).
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
    """`12:00:00.123 warning labeler  message  node=web-1 attempt=2`: for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        service = str(fields.pop("service", "-"))
        line = (
            f"{_time(record):%H:%M:%S}.{int(record.msecs):03d} {record.levelname.lower():7} {service:8} "
            f"{_printable(record.getMessage())}"
        )
        if fields:
            line += "  " + " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
        if record.exc_info:  # indented, so that no text inside looks like a line of ours
            trace = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n    {_printable(each)}" for each in trace)
        return line


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a line: those of the context, then those of the call, which win."""
    own = {key: value for key, value in vars(record).items() if key not in _OWN_KEYS}
    return {**_fields.get(), **own}


def level_of_verbosity(verbosity: int) -> int:
    """The level that klog's `--v` asks for: up to 2 is info, from 3 on debug."""
    return logging.INFO if verbosity <= 2 else logging.DEBUG


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _quoted(value: object) -> str:
    text = str(value)
    printable = text.isprintable() and not any(c in text for c in ' "=') and text
    return text if printable else _printable(msgspec.json.encode(text).decode())


def _printable(text: str) -> str:
    """What others wrote must not steer the terminal that shows it: JSON alone leaves C1 and bidi controls."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
