"""The machines of one organisation of Thalassa Cloud, or of one VPC of it."""

import asyncio
import base64
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus

import msgspec

from libs.clouds.credential_file import CredentialFile
from libs.clouds.http_reader import DEADLINE_SECONDS, AnswerT, HttpReader, ReadResponse
from libs.clouds.instances import (
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    RateLimit,
    RequestObserver,
    Unanswered,
)
from libs.clouds.request_budget import REQUESTS_PER_MINUTE, RequestBudget
from libs.clouds.thalassa.config_file import ThalassaConfig, read_config
from libs.clouds.thalassa.responses import (
    IDENTITY,
    AccessToken,
    ItemT,
    Machine,
    Vpc,
    build_instance,
    read_access_token,
    read_item,
    read_list,
)
from libs.common.clocks import utc_now

PROVIDER: Final = "thalassacloud"
ENDPOINT: Final = "https://api.thalassa.cloud"
ANCHOR_KIND: Final = "vpc"

_MACHINES: Final = "/v1/machines"
_VPCS: Final = "/v1/vpcs"
_ID: Final = re.compile(IDENTITY)
# A list has no pages, and each machine has its user data, which for Talos is its whole configuration.
_MAX_BODY_BYTES: Final = 64 << 20


class _Token(msgspec.Struct, frozen=True):
    generation: int  # of the credential that it was exchanged for
    text: str
    renew_at: float  # of the loop's clock


class ThalassaInstances:
    """Implements Instances for the organisation, and the VPC, of the config file."""

    def __init__(
        self,
        config: Path | str,
        *,
        user_agent: str,
        endpoint: str = "",
        anchor: Anchor | None = None,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        deadline_seconds: float = DEADLINE_SECONDS,
        observe: RequestObserver = lambda outcome, seconds: None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`config` is a file or its content; `anchor` replaces its VPC; `endpoint` "" is the public one.

        Raises ValueError for an unusable endpoint or anchor.
        """
        if anchor is not None and (problem := _explain_no_anchor(anchor)):
            raise ValueError(problem)
        self._file = CredentialFile(config, now=now)
        self._endpoint = (endpoint or ENDPOINT).rstrip("/")
        self._anchor = anchor
        self._token: _Token | None = None
        self._sends_secret_in_body = False
        self._budget = RequestBudget(requests_per_minute=requests_per_minute)
        self._http = HttpReader(
            self._endpoint,
            authorize=self._authorize,
            user_agent=user_agent,
            budget=self._budget,
            observe=observe,
            deadline_seconds=deadline_seconds,
            max_body_bytes=_MAX_BODY_BYTES,
        )

    @property
    def provider(self) -> str:
        """The scheme of providerIDs."""
        return PROVIDER

    @property
    def credential(self) -> Credential:
        """The last reading of the file; an access token that is renewed is the same credential."""
        return self._file.credential

    @property
    def rate_limit(self) -> RateLimit | None:
        """None: this cloud reports no count of requests."""
        return None

    def parse_provider_id(self, provider_id: str) -> str | None:
        """Return the identity of `thalassacloud://identity`."""
        scheme, separator, identity = provider_id.partition("://")
        return identity if scheme == PROVIDER and separator and _ID.fullmatch(identity) else None

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        """Return the machines of the VPC, or of the organisation if none is configured."""
        return await self._list_instances(lambda machine: True)

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        """Return the machine with exactly this identity, in any VPC."""
        found = await self._get_item(_MACHINES, instance_id, Machine)
        return build_instance(found) if isinstance(found, Machine) else found

    async def find_by_name(self, name: str) -> tuple[Instance, ...] | Unanswered:
        """Return the machines of which this is the name, or the slug, which is the name of the Node.

        All are listed: nothing shows that the API compares names exactly, or at all.
        """
        found = await self._list_instances(lambda machine: name in {machine.name, machine.slug})
        if isinstance(found, Unanswered):
            return found
        return tuple(msgspec.structs.replace(each, name=name) for each in found)

    async def find_anchor(self) -> Anchor | Unanswered | None:
        """Return the configured VPC, else the first by identity, as `identity@organisation/project`.

        A VPC may be visible in other projects too, whose credentials find no machine of this one.
        """
        config = self._read_config()
        if isinstance(config, Unanswered):
            return config
        if vpc := self._get_vpc(config):
            found = await self.get_anchor(Anchor(ANCHOR_KIND, f"{vpc}@{config.scope}"))
            return None if isinstance(found, NotFound) else found
        vpcs = await self._get(_VPCS, {}, lambda response: read_list(response, Vpc))
        if isinstance(vpcs, Unanswered):
            return vpcs
        first = min((vpc.identity for vpc in vpcs), default="")
        return Anchor(ANCHOR_KIND, f"{first}@{config.scope}") if first else None

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        """Return the VPC if it is visible, and the file names the organisation and project of the anchor."""
        if problem := _explain_no_anchor(anchor):
            return Unanswered("malformed", problem)
        config = self._read_config()
        if isinstance(config, Unanswered):
            return config
        vpc, _, scope = anchor.id.partition("@")
        found = await self._get_item(_VPCS, vpc, Vpc)
        if not isinstance(found, Vpc):
            return found
        return anchor if scope == config.scope else NotFound()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def _list_instances(
        self, is_wanted: Callable[[Machine], bool]
    ) -> tuple[Instance, ...] | Unanswered:
        config = self._read_config()
        if isinstance(config, Unanswered):
            return config
        vpc = self._get_vpc(config)
        query = {"vpc": vpc} if vpc else {}
        machines = await self._get(_MACHINES, query, lambda response: read_list(response, Machine))
        if isinstance(machines, Unanswered):
            return machines
        instances: list[Instance] = []
        for machine in filter(is_wanted, machines):
            if vpc and machine.vpc is not None and machine.vpc.identity != vpc:
                continue  # the API may ignore the filter
            built = build_instance(machine)
            if isinstance(built, Unanswered):
                return built
            if isinstance(built, Instance):
                instances.append(built)
        return tuple(instances)

    async def _get_item(self, path: str, identity: str, item: type[ItemT]) -> ItemT | NotFound | Unanswered:
        if not _ID.fullmatch(identity):
            return Unanswered("malformed", f"{identity!r} is not an identity")
        return await self._get(f"{path}/{identity}", {}, lambda response: read_item(response, identity, item))

    async def _get(
        self, path: str, query: Mapping[str, str], read: ReadResponse[AnswerT]
    ) -> AnswerT | Unanswered:
        answer = await self._http.get(path, query, read)
        if isinstance(answer, Unanswered) and answer.outcome == "unauthorized":
            self._token = None  # exchange the credential again before the next request
        return answer

    def _get_vpc(self, config: ThalassaConfig) -> str:
        return config.vpc_identity if self._anchor is None else self._anchor.id.partition("@")[0]

    def _read_config(self) -> ThalassaConfig | Unanswered:
        generation = self.credential.generation
        text = self._file.read()
        if self.credential.generation != generation:
            self._budget.forget_rate_limit()
        if isinstance(text, Unanswered):
            return text
        config = read_config(text, endpoint=self._endpoint)
        return config if isinstance(config, ThalassaConfig) else Unanswered("unauthorized", config)

    # ---- credentials

    async def _authorize(self) -> Mapping[str, str] | Unanswered:
        config = self._read_config()
        if isinstance(config, Unanswered):
            return config
        if config.cloud_credentials.is_client:
            token = await self._get_access_token(config)
            if isinstance(token, Unanswered):
                return token
            authorization = f"Bearer {token}"
        else:
            authorization = f"Token {config.cloud_credentials.personal_access_token}"
        headers = {"Authorization": authorization, "X-Organisation-Identity": config.organisation}
        return headers | ({"X-Project-Identity": config.project} if config.project else {})

    async def _get_access_token(self, config: ThalassaConfig) -> str | Unanswered:
        """Return an access token of the present credential that has not almost ended."""
        generation = self.credential.generation
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


def _explain_no_anchor(anchor: Anchor) -> str:
    if anchor.kind != ANCHOR_KIND:
        return f"no kind of anchor: {anchor.kind!r}; known is {ANCHOR_KIND}"
    is_id = _ID.fullmatch(anchor.id.partition("@")[0])
    return "" if is_id else f"no identity of an anchor: {anchor.id!r}"
