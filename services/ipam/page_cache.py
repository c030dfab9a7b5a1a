"""The pages as last read or written. They may be outdated: a write by compare-and-swap detects that."""

from collections.abc import Mapping, Sequence

import msgspec

from services.ipam.pages import Page, StoredPage, UnreadablePage, decode_page, page_name


class PageCache:
    """The pages that one replica knows."""

    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}  # by range
        self._unreadable: dict[str, UnreadablePage] = {}  # by name
        self._own_versions: dict[str, str] = {}  # by range, the resourceVersion that this replica wrote last

    @property
    def by_range(self) -> Mapping[str, Page]:
        """The readable pages, by range."""
        return self._pages

    @property
    def unreadable(self) -> tuple[UnreadablePage, ...]:
        """The unreadable pages; ipam claims and releases nothing in them until an operator repairs them."""
        return tuple(self._unreadable.values())

    def resource_versions(self) -> dict[str, str]:
        """Return the last read or written resourceVersion of each readable page, by range."""
        return {page.range: page.resource_version for page in self._pages.values()}

    def is_own_write(self, page_range: str) -> bool:
        """Whether this replica wrote the cached version of that page."""
        known = self._pages.get(page_range)
        return known is not None and known.resource_version == self._own_versions.get(page_range)

    def closed_pages(self) -> dict[str, str]:
        """Return by page name why ipam claims nothing in that page."""
        return {name: f"{name} is unreadable: {page.reason}" for name, page in self._unreadable.items()}

    def is_current(self, page: Page) -> bool:
        """Whether that page has the cached version; "" is the version of a page that does not exist."""
        known = self._pages.get(page.range)
        return (known.resource_version if known else "") == page.resource_version

    def replace_all(self, stored: Sequence[StoredPage]) -> bool:
        """Replace the cache by a complete list; return whether no cached page is missing in it."""
        known = {*self._unreadable, *map(page_name, self._pages)}
        pages = [decode_page(page) for page in stored]
        self._pages = {page.range: page for page in pages if isinstance(page, Page)}
        self._unreadable = {page.name: page for page in pages if isinstance(page, UnreadablePage)}
        return known <= {page.name for page in stored}

    def replace(self, before: Page, stored: StoredPage | None) -> bool:
        """Replace one page, None if it does not exist; return False if the page existed and was deleted."""
        self._pages.pop(before.range, None)
        self._unreadable.pop(page_name(before.range), None)
        if stored is None:
            return not before.resource_version
        page = decode_page(stored)
        if isinstance(page, UnreadablePage):
            self._unreadable[page.name] = page
        else:
            self._pages[page.range] = page
        return True

    def record_write(self, page: Page, resource_version: str) -> None:
        """Record this replica's write of a page and its new resourceVersion."""
        self._own_versions[page.range] = resource_version
        self._pages[page.range] = msgspec.structs.replace(page, resource_version=resource_version)
