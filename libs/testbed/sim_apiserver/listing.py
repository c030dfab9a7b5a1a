"""Lists: consistent pages of the objects that the selectors match."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from libs.testbed.sim_apiserver.api_request import ApiRequest, parse_number
from libs.testbed.sim_apiserver.kubectl_tables import has_table, render_table
from libs.testbed.sim_apiserver.object_store import CompactedError, ListPage, ObjectStore
from libs.testbed.sim_apiserver.objects import ResourceKind
from libs.testbed.sim_apiserver.refusals import expired, too_large_version
from libs.testbed.sim_apiserver.request_bodies import ContinueToken, make_selector, parse_token


def list_objects(store: ObjectStore, asked: ApiRequest, kind: ResourceKind, now: datetime) -> bytes:
    """Return the body of the response. Raises Refusal."""
    page = _get_page(store, asked, kind)
    metadata: dict[str, Any] = {"resourceVersion": str(page.version)}
    if page.remaining:
        metadata["continue"] = ContinueToken.after(page.version, page.items[-1]).encode()
        if not asked.query.get("fieldSelector") and not asked.query.get(
            "labelSelector"
        ):  # with selectors the number of remaining matches is unknown
            metadata["remainingItemCount"] = page.remaining
    if asked.as_table and has_table(kind):
        return render_table(kind, (stored.item for stored in page.items), metadata, now)
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
    items = b",".join(stored.raw for stored in page.items)
    return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"


def _get_page(store: ObjectStore, asked: ApiRequest, kind: ResourceKind) -> ListPage:
    limit, version = parse_number(asked, "limit"), parse_number(asked, "resourceVersion")
    selected = make_selector(asked, kind)
    if version > store.version:
        raise too_large_version(version, store.version)
    if not (text := asked.query.get("continue", "")):
        cached = asked.query.get("resourceVersion") == "0"  # the watch cache ignores limits
        return store.page(kind.plural, asked.namespace, 0 if cached else limit, selected)
    token = parse_token(text)
    try:
        return store.next_page(
            kind.plural, asked.namespace, limit, selected, version=token.rv, after=token.key
        )
    except CompactedError as error:
        raise expired("The provided continue parameter is too old to display a consistent list") from error
