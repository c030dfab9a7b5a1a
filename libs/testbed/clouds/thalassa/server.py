"""The simulated cloud: all organisations, and the credentials that lead to them."""

from __future__ import annotations

import base64
import itertools
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote_plus

from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.http_faults import (
    Answer,
    MakeResponse,
    change_document,
    pad_answer,
    replace_answer,
)
from libs.testbed.clouds.thalassa.balancers import BALANCERS
from libs.testbed.clouds.thalassa.bodies import Refusal
from libs.testbed.clouds.thalassa.organisation import SimOrganisation


def make_error(status: int, message: str = "no", **headers: str) -> Answer:
    """Return an error in the form of the API."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, document={"message": message}, headers=names)


def _change_list(change: Callable[[list[Any]], list[Any]]) -> MakeResponse:
    return change_document(lambda document: change(document) if isinstance(document, list) else document)


FAULTS: Final[Mapping[str, MakeResponse]] = {
    "unauthorized": replace_answer(make_error(401, "unauthorized")),
    "forbidden": replace_answer(make_error(403, "forbidden")),
    "quota": replace_answer(make_error(403, "quota exceeded")),
    "conflict": replace_answer(make_error(409, "another change is running")),
    "rate_limited": replace_answer(make_error(429, "rate limit exceeded", Retry_After="90")),
    "service_error": replace_answer(make_error(503, "unavailable")),
    "lying_not_found": replace_answer(make_error(404, "not found")),
    "huge": pad_answer(65 << 20),  # its client accepts lists without pages
    "duplicate": _change_list(lambda items: items[:-1] + items[:1]),
    "empty_list": _change_list(lambda items: []),
    "null_list": change_document(lambda document: None),
    "wrong_id": change_document(lambda document: document | {"identity": document["identity"] + "0"}),
}


_LABEL: Final = re.compile(r"matchLabels\[(.+)\]")


def _matches(found: dict[str, Any], query: Mapping[str, str]) -> bool:
    """Whether an object of a list matches the filters that this API has; others are ignored."""
    if query.get("vpc") and found["vpc"]["identity"] != query["vpc"]:
        return False
    labels = {match[1]: text for name, text in query.items() if (match := _LABEL.fullmatch(name))}
    return all(found.get("labels", {}).get(name) == text for name, text in labels.items())


class SimThalassa:
    """Implements SimCloud."""

    root = ""
    faults: Mapping[str, MakeResponse] = FAULTS

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is monotonic, in seconds."""
        self.tokens: dict[str, SimOrganisation] = {}  # personal access tokens
        self.clients: dict[tuple[str, str], SimOrganisation] = {}  # by id and secret
        self.access_tokens: dict[str, SimOrganisation] = {}  # until they are removed
        self.token_seconds = 3600  # the lifetime of a token that the server reports
        self.takes_secret_in_body = False  # instead of in the header
        self.ignores_filters = False
        self.read_only: set[str] = set()  # tokens that may only read
        self._now = now
        self._ids = itertools.count(100_000)

    def add_organisation(self, slug: str, *tokens: str) -> SimOrganisation:
        """Create an organisation with these personal access tokens."""
        organisation = SimOrganisation(self._ids, slug, now=self._now)
        self.tokens |= dict.fromkeys(tokens, organisation)
        return organisation

    def answer(self, request: SimRequest) -> Answer:
        """Return the answer without a fault."""
        if request.path == "/oidc/token":
            return self._issue_token(request)
        organisation = self._authenticate(request)
        if organisation is None:
            return make_error(401, "unauthorized")
        if request.headers.get("X-Organisation-Identity") not in organisation.names:
            return make_error(403, "not a member of the organisation")
        organisation.balancers.advance()
        project = request.headers.get("X-Project-Identity", "")
        root, *path = request.path.strip("/").split("/")
        if root != "v1":
            return make_error(404, "not found")
        if request.method == "GET":
            return self._answer_read(organisation, path, request.query, project)
        if request.token in self.read_only:
            return make_error(403, "only GET is allowed")
        try:
            return organisation.balancers.answer_write(request.method, path, request.body, project)
        except Refusal as refusal:
            return make_error(refusal.status, refusal.message)

    def _answer_read(
        self, organisation: SimOrganisation, path: list[str], query: Mapping[str, str], project: str
    ) -> Answer:
        render = organisation.balancers.render
        match path:
            case [kind] if kind in organisation.tables:
                found = organisation.find(kind, project)
                if not self.ignores_filters:
                    found = [each for each in found if _matches(each, query)]
                return Answer(status=200, document=[render(kind, each, is_list=True) for each in found])
            case [kind, name, *rest] if kind in organisation.tables:
                named = [
                    each
                    for each in organisation.find(kind, project)
                    if name in (each["identity"], each["slug"])
                ]
                if named and not rest:
                    return Answer(status=200, document=render(kind, named[0]))
                if named and [kind, *rest] == [BALANCERS, "listeners"]:
                    return Answer(status=200, document=organisation.balancers.list_listeners(named[0]))
        return make_error(404, "not found")

    def _authenticate(self, request: SimRequest) -> SimOrganisation | None:
        scheme = request.headers.get("Authorization", "").partition(" ")[0]
        if scheme == "Token":
            return self.tokens.get(request.token)
        return self.access_tokens.get(request.token) if scheme == "Bearer" else None

    def _issue_token(self, request: SimRequest) -> Answer:
        form = {name: values[-1] for name, values in parse_qs(request.body.decode()).items()}
        if self.takes_secret_in_body:
            client = form.get("client_id", ""), form.get("client_secret", "")
        else:
            client_id, _, secret = base64.b64decode(request.token).decode().partition(":")
            client = unquote_plus(client_id), unquote_plus(secret)
        organisation = self.clients.get(client)
        if request.method != "POST" or form.get("grant_type") != "client_credentials" or not organisation:
            return Answer(status=401, document={"error": "invalid_client"})
        token = f"access-{next(self._ids)}"
        self.access_tokens[token] = organisation
        issued = {"access_token": token, "token_type": "Bearer", "expires_in": self.token_seconds}
        return Answer(status=200, document=issued)


SimThalassaServer = SimApiServer[SimThalassa]
