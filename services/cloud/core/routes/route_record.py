"""The record of routes in a ConfigMap: clouds do not label routes, so nothing else shows which are ours."""

from datetime import datetime
from typing import Final

import msgspec

from libs.clouds.routes import Route
from libs.common.contract.timestamp import Timestamp
from libs.common.json_errors import JSON_ERRORS
from services.cloud.core.answer import MAX_LATENESS

_MAX_LENGTH: Final = 512 * 1024  # characters; an entry has about 150


class RecordedRoute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, order=True):
    """A route that is ours, or may become ours until `create_deadline`."""

    route: Route
    instance_id: str
    create_deadline: Timestamp | None = None  # end of the request that may create it; None: it was seen


class RouteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All recorded routes of one network."""

    entries: tuple[RecordedRoute, ...] = ()

    def find(self, route: Route) -> RecordedRoute | None:
        """Return the entry of exactly this route."""
        return next((each for each in self.entries if each.route == route), None)

    def update(self, *entries: RecordedRoute, without: frozenset[Route] = frozenset()) -> "RouteRecord":
        """Return the record with these entries, and without those of some routes."""
        by_route = {each.route: each for each in (*self.entries, *entries)}
        kept = (each for route, each in by_route.items() if route not in without)
        return RouteRecord(entries=tuple(sorted(kept, key=lambda each: each.route)))


class _StoredRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    config_map_uid: str
    entries: tuple[RecordedRoute, ...]


def encode_route_record(record: RouteRecord, config_map_uid: str) -> str:
    """Return the text of the network's key in the ConfigMap with this uid. Raises ValueError if too long."""
    stored = _StoredRecord(config_map_uid=config_map_uid, entries=record.entries)
    text = msgspec.json.encode(stored).decode()
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"the record of {len(record.entries)} routes is too long to be read again")
    return text


def read_route_record(text: str, config_map_uid: str) -> RouteRecord | None:
    """Return the record; empty for "". None if the text is unreadable: nothing may replace it then.

    A record from another ConfigMap is empty, too: a backup, perhaps of another cluster, proves nothing.
    """
    if not text:
        return RouteRecord()
    if len(text) > _MAX_LENGTH:
        return None
    try:
        stored = msgspec.json.decode(text, type=_StoredRecord)
    except JSON_ERRORS:
        return None
    return RouteRecord(entries=stored.entries if stored.config_map_uid == config_map_uid else ())


def is_settled(entry: RecordedRoute, seen_missing_at: datetime, led_since: datetime) -> bool:
    """Whether no create can still make this route, which an answer that began at that time did not contain.

    The deadline is by the clock of the process that recorded it, so 60 s of this leadership must have passed.
    """
    if entry.create_deadline is None:
        return True
    # The record may have any time, so nothing is added to it.
    return seen_missing_at - MAX_LATENESS > max(entry.create_deadline, led_since)
