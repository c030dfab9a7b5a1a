"""Options, credential, budget of requests and connections of one account; all clients of a cloud use them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from libs.clouds.http_reader import DEADLINE_SECONDS, MAX_BODY_BYTES, Authorize, HttpReader
from libs.clouds.instances import Anchor, Credential, RequestObserver, Unanswered
from libs.clouds.request_budget import REQUESTS_PER_MINUTE, RequestBudget
from libs.common.clocks import utc_now

MAX_CREDENTIAL_BYTES: Final = 1 << 16
_MAX_PAGES: Final = 200  # a cloud that always has a next page must not fill the memory


@dataclass(frozen=True, kw_only=True)
class AccountOptions:
    """How to use one account. The credential is in no text of it."""

    credential: Path | str = field(repr=False)  # a file, or a text that never changes
    user_agent: str
    endpoint: str = ""  # "": the public one
    anchor: Anchor | None = None  # the configured one
    requests_per_minute: int = REQUESTS_PER_MINUTE
    deadline_seconds: float = DEADLINE_SECONDS
    observe: RequestObserver = lambda outcome, seconds: None
    now: Callable[[], datetime] = utc_now


class Page(Protocol):
    """One page of a list."""

    @property
    def items(self) -> Sequence[Any]:
        """Objects with an `id`."""
        ...

    @property
    def has_next(self) -> bool: ...


PageT = TypeVar("PageT", bound=Page)


class AccountSession:
    """The credential and the budget of one account. All its clients share both.

    The credential is read before each query: a file of some bytes is cheap, and a query by a credential that
    was already replaced would be void. It is in no text of this class.
    """

    def __init__(
        self, options: AccountOptions, *, is_random: bool = False, requests_per_query: int = 1
    ) -> None:
        """`is_random`: whether the credential is a long random text, which then has a fingerprint."""
        self.options = options
        self.budget = RequestBudget(requests_per_minute=requests_per_query * options.requests_per_minute)
        self.credential = Credential(generation=0, loaded_at=options.now())  # the last one that was read
        self._is_random = is_random
        self._content = ""
        self.read_credential()

    def read_credential(self) -> str | Unanswered:
        """Return the current content of the credential, without surrounding whitespace.

        Another content is another generation, with a rate limit of its own. A file that is missing or empty
        answers nothing, although its former content may still be valid: an operator removes it to stop the
        queries.
        """
        source = self.options.credential
        name = "the text of the credential" if isinstance(source, str) else f"credential file {source}"
        try:
            content = (source.encode() if isinstance(source, str) else _read_file(source)).decode().strip()
        except (OSError, UnicodeError) as error:
            # The text of a decoding error has bytes of the file.
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            return Unanswered("unauthorized", f"{name}: {reason}")
        if not content or len(content) > MAX_CREDENTIAL_BYTES:
            return Unanswered("unauthorized", f"{name}: empty or too long")
        if content != self._content:
            self._content = content
            fingerprint = sha256(content.encode()).hexdigest()[:16] if self._is_random else ""
            self.credential = Credential(self.credential.generation + 1, self.options.now(), fingerprint)
            self.budget.forget_rate_limit()
        return content

    def open_reader(
        self,
        endpoint: str,
        authorize: Authorize,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        ca_file: str = "",
        budget: RequestBudget | None = None,
        max_concurrent: int = 1,
    ) -> HttpReader:
        """Return the connection to an endpoint. Raises ValueError for an unusable endpoint or file.

        `budget` is one that shares that of the session, None is the session's own.
        """
        return HttpReader(
            endpoint,
            authorize=authorize,
            user_agent=self.options.user_agent,
            budget=budget or self.budget,
            observe=self.options.observe,
            deadline_seconds=self.options.deadline_seconds,
            max_body_bytes=max_body_bytes,
            ca_file=ca_file,
            max_concurrent=max_concurrent,
        )

    async def read_pages(
        self,
        path: str,
        read_next: Callable[[list[PageT]], Awaitable[PageT | Unanswered]],
        explain_contradiction: Callable[[list[PageT]], str] = lambda pages: "",
    ) -> list[PageT] | Unanswered:
        """Return all pages of one listing by one credential.

        `read_next` gets the pages before. `explain_contradiction` returns why the pages so far are not those
        of one list of this cloud, "" if they may be.
        """
        pages: list[PageT] = []
        generations: set[int] = set()
        while not pages or pages[-1].has_next:
            page = await read_next(pages)
            generations.add(self.credential.generation)
            if len(generations) > 1:
                return Unanswered("unauthorized", f"the credential changed while {path} was listed")
            if isinstance(page, Unanswered):
                return page
            pages.append(page)
            if problem := _explain_any_list(pages) or explain_contradiction(pages):
                return Unanswered("malformed", f"{path}: {problem}")
        return pages


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CREDENTIAL_BYTES + 1)


def _explain_any_list(pages: Sequence[Page]) -> str:
    ids = [item.id for page in pages for item in page.items]
    if len(set(ids)) != len(ids):
        return "an object is listed twice"
    if pages[-1].has_next and not pages[-1].items:
        return "a page is empty, and not the last one"
    return f"more than {_MAX_PAGES} pages" if len(pages) > _MAX_PAGES else ""
