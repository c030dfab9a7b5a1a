"""Responses that answer nothing: their outcome, and the reason for an operator."""

import re
from collections.abc import Iterable
from typing import Final, TypeVar

from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Outcome, Unanswered

_OUTCOMES: Final[dict[int, Outcome]] = {401: "unauthorized", 403: "forbidden", 429: "rate_limited"}
_MAX_SHOWN: Final = 200  # characters of a message
_NUMBER: Final = re.compile(r"[0-9]{1,12}")

AnswerT = TypeVar("AnswerT")


def read_number(response: HttpResponse, header: str) -> int | None:
    """Return the number in a header, None without one."""
    text = response.headers.get(header, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def shorten_message(message: str) -> str:
    """Return the message of a server as one printable line of at most 200 characters, plus an ellipsis."""
    text = " ".join("".join(each if each.isprintable() else " " for each in message).split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def explain_error(response: HttpResponse, detail: str) -> Unanswered:
    """Return the answer to a response with an error status; `detail` contains nothing that was sent."""
    fallback: Outcome = "server_error" if response.status >= 500 else "malformed"
    return Unanswered(
        _OUTCOMES.get(response.status, fallback),
        f"HTTP {response.status} {detail}",
        read_number(response, "Retry-After"),
    )


def explain_malformed(what: str, error: Exception) -> Unanswered:
    """Return the answer to a document that could not be decoded."""
    return Unanswered("malformed", f"{what}: {type(error).__name__}: {error}")


def collect_all(answers: Iterable[AnswerT | Unanswered]) -> tuple[AnswerT, ...] | Unanswered:
    """Return all answers, or the first one that answers nothing."""
    found: list[AnswerT] = []
    for answer in answers:
        if isinstance(answer, Unanswered):
            return answer
        found.append(answer)
    return tuple(found)
