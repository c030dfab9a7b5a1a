"""An API server that records each request as it arrives, for tests of the bytes that are sent."""

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from tests.kube_loopback import respond_error

TEXT = "<text>"
Document = dict[str, Any]


class RecordedRequests:
    """Answers from a few objects; a write is answered with what was sent, and changes nothing."""

    def __init__(self, objects: Mapping[str, Document] | None = None) -> None:
        """`objects`: the answer to a GET of that path, and to each PATCH of it."""
        self.objects = dict(objects or {})
        self.requests: list[Document] = []
        self.user_agents: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.user_agents.append(request.headers["User-Agent"])
        recorded: Document = {"request": f"{request.method} {request.path_qs}"}
        if body:
            recorded |= {"content_type": request.content_type, "body": msgspec.json.decode(body)}
        self.requests.append(recorded)
        found = self.objects.get(request.path.removesuffix("/status"))
        if request.method in ("GET", "PATCH") and found is None:
            return respond_error(404, "NotFound")
        return web.json_response(found if found is not None else _stored(recorded.get("body")))


def without_texts(value: Any) -> Any:
    """The value with a placeholder for each message: sentences are for readers."""
    match value:
        case dict():
            return {
                key: TEXT if key == "message" and isinstance(each, str) else without_texts(each)
                for key, each in value.items()
            }
        case list():
            return [without_texts(each) for each in value]
        case _:
            return value


def _stored(body: Document | None) -> Document:
    """The object as the API server returns it after the write."""
    if body is None:
        return {}
    return body | {"metadata": body.get("metadata", {}) | {"resourceVersion": "101"}}
