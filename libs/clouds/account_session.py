"""What every client of a cloud needs of its account: options, credential, budget of requests, connections."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from libs.clouds.credential_file import CredentialFile
from libs.clouds.http_reader import DEADLINE_SECONDS, MAX_BODY_BYTES, Authorize, HttpReader
from libs.clouds.instances import Anchor, Credential, RequestObserver, Unanswered
from libs.clouds.request_budget import REQUESTS_PER_MINUTE, RequestBudget
from libs.common.clocks import utc_now

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
    """The credential and the budget of one account. All its clients share both."""

    def __init__(
        self, options: AccountOptions, *, is_random: bool = False, requests_per_query: int = 1
    ) -> None:
        """`is_random`: whether the credential is a long random text."""
        self.options = options
        self.budget = RequestBudget(requests_per_minute=requests_per_query * options.requests_per_minute)
        self._file = CredentialFile(options.credential, is_random=is_random, now=options.now)

    @property
    def credential(self) -> Credential:
        """The last reading of the credential."""
        return self._file.credential

    def read_credential(self) -> str | Unanswered:
        """Return the current content of the credential. Another one has a rate limit of its own."""
        generation = self.credential.generation
        content = self._file.read()
        if self.credential.generation != generation:
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
        explain_contradiction: Callable[[list[PageT]], str],
    ) -> list[PageT] | Unanswered:
        """Return all pages of one listing by one credential.

        `read_next` gets the pages before. `explain_contradiction` returns why the pages so far are not those
        of one list, "" if they may be.
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


def _explain_any_list(pages: Sequence[Page]) -> str:
    ids = [item.id for page in pages for item in page.items]
    if len(set(ids)) != len(ids):
        return "an object is listed twice"
    return f"more than {_MAX_PAGES} pages" if len(pages) > _MAX_PAGES else ""
