"""Requests to the API of Thalassa Cloud by the credential of one organisation, in the controller's file."""

import asyncio
import base64
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote_plus

import msgspec

from libs.clouds.account_session import AccountOptions, AccountSession
from libs.clouds.balancers import WriteRejection
from libs.clouds.http_reader import AnswerT, ReadResponse
from libs.clouds.instances import NotFound, Unanswered
from libs.clouds.request_budget import RequestBudget
from libs.clouds.thalassa.config_file import ThalassaConfig, read_config
from libs.clouds.thalassa.responses import (
    IDENTITY,
    AccessToken,
    ItemT,
    read_access_token,
    read_item,
    read_list,
)

ENDPOINT: Final = "https://api.thalassa.cloud"
ID: Final = re.compile(IDENTITY)

# A list has no pages, and each machine has its user data, which for Talos is its whole configuration.
_MAX_BODY_BYTES: Final = 64 << 20


class _Token(msgspec.Struct, frozen=True):
    generation: int  # of the credential that it was exchanged for
    text: str
    renew_at: float  # of the loop's clock


class ThalassaApi:
    """The objects of the organisation. An access token that is renewed is the same credential."""

    def __init__(
        self,
        options: AccountOptions,
        *,
        session: AccountSession | None = None,
        budget: RequestBudget | None = None,
        max_concurrent: int = 1,
    ) -> None:
        """Raise ValueError for an unusable endpoint. By default, session and budget are its own."""
        self._endpoint = (options.endpoint or ENDPOINT).rstrip("/")
        self.session = session or AccountSession(options)
        self._http = self.session.open_reader(
            self._endpoint,
            self._authorize,
            max_body_bytes=_MAX_BODY_BYTES,
            budget=budget,
            max_concurrent=max_concurrent,
        )
        self._token: _Token | None = None
        self._sends_secret_in_body = False
        self._organisation = ""  # that the last request named

    def open_beside(self, *, requests_per_minute: int, max_concurrent: int) -> "ThalassaApi":
        """Return the API with connections and an access token of its own.

        Both share the config file and the pauses of the rate limit, but no number of requests per minute.
        """
        budget = self.session.budget.share(requests_per_minute=requests_per_minute)
        return ThalassaApi(
            self.session.options, session=self.session, budget=budget, max_concurrent=max_concurrent
        )

    def find_vpc(self, config: ThalassaConfig) -> str:
        """Return the identity of the configured VPC, "" without one; that of the account wins."""
        anchor = self.session.options.anchor
        return config.vpc_identity if anchor is None else anchor.id.partition("@")[0]

    def read_config(self) -> ThalassaConfig | Unanswered:
        """Return the current content of the config file."""
        text = self.session.read_credential()
        if isinstance(text, Unanswered):
            return text
        config = read_config(text, endpoint=self._endpoint)
        return config if isinstance(config, ThalassaConfig) else Unanswered("unauthorized", config)

    async def get_item(self, path: str, identity: str, item: type[ItemT]) -> ItemT | NotFound | Unanswered:
        """Return the object with exactly this identity."""
        if not ID.fullmatch(identity):
            return Unanswered("malformed", f"{identity!r} is not an identity")
        return await self._get(
            f"{path}/{identity}",
            {},
            lambda response: read_item(response, identity, item, organisation=self._organisation),
        )

    async def list_items(
        self, path: str, query: Mapping[str, str], item: type[ItemT]
    ) -> tuple[ItemT, ...] | Unanswered:
        """Return all objects of a list."""
        return await self._get(
            path, query, lambda response: read_list(response, item, organisation=self._organisation)
        )

    async def write(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: ReadResponse[AnswerT],
        *,
        deadline: float,
        is_deletion: bool,
    ) -> AnswerT | WriteRejection | Unanswered:
        """Send a request once; see `HttpReader.write`."""
        answer = await self._http.write(method, path, body, read, deadline=deadline, is_deletion=is_deletion)
        if isinstance(answer, WriteRejection) and answer.kind == "unauthorized":
            self._token = None
        return answer

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def _get(
        self, path: str, query: Mapping[str, str], read: ReadResponse[AnswerT]
    ) -> AnswerT | Unanswered:
        answer = await self._http.get(path, query, read)
        if isinstance(answer, Unanswered) and answer.outcome == "unauthorized":
            self._token = None  # exchange the credential again before the next request
        return answer

    async def _authorize(self) -> Mapping[str, str] | Unanswered:
        config = self.read_config()
        if isinstance(config, Unanswered):
            return config
        if config.cloud_credentials.is_client:
            token = await self._get_access_token(config)
            if isinstance(token, Unanswered):
                return token
            authorization = f"Bearer {token}"
        else:
            authorization = f"Token {config.cloud_credentials.personal_access_token}"
        self._organisation = config.organisation
        headers = {"Authorization": authorization, "X-Organisation-Identity": config.organisation}
        return headers | ({"X-Project-Identity": config.project} if config.project else {})

    async def _get_access_token(self, config: ThalassaConfig) -> str | Unanswered:
        """Return an access token of the present credential that has not almost ended."""
        generation = self.session.credential.generation
        started = asyncio.get_running_loop().time()
        token = self._token
        if token is not None and token.generation == generation and started < token.renew_at:
            return token.text
        fetched = await self._fetch_access_token(config)
        if isinstance(fetched, Unanswered) and fetched.outcome == "unauthorized":
            # A server accepts the secret in one of two places (RFC 6749, section 2.3.1).
            self._sends_secret_in_body = not self._sends_secret_in_body
            fetched = await self._fetch_access_token(config)
        if isinstance(fetched, Unanswered):
            return fetched
        self._token = _Token(generation, fetched.access_token, started + fetched.renew_after_seconds)
        return fetched.access_token

    async def _fetch_access_token(self, config: ThalassaConfig) -> AccessToken | Unanswered:
        client_id = config.cloud_credentials.client_id
        secret = config.cloud_credentials.client_secret
        form, headers = {"grant_type": "client_credentials"}, {}
        if self._sends_secret_in_body:
            form |= {"client_id": client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
            headers = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return await self._http.post_form("/oidc/token", form, headers, read_access_token)
