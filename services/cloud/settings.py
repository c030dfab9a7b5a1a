"""Settings of cloud."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from libs.clouds.http_reader import DEADLINE_SECONDS
from libs.clouds.instances import Anchor
from libs.clouds.request_budget import REQUESTS_PER_MINUTE
from libs.common.contract.instance_metadata import MetadataAccount, parse_metadata_accounts
from libs.common.contract.instances import CLOUD_PROVIDERS
from libs.common.contract.services import (
    ACCOUNT_FORM,
    LOAD_BALANCERS,
    ROUTES,
    Controller,
    get_cloud_lease_name,
    is_account_name,
)
from libs.common.settings import flags
from services.cloud.balancer_settings import AccountBalancers
from services.cloud.core.instance_schedule import QueryIntervals
from services.cloud.route_settings import AccountRoutes, RouteSettings

_PLACEHOLDER: Final = "{account}"


class CloudAccountSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One account. The credential is the path of a file, or a text that never changes."""

    provider: str
    name: str
    credential: Path | str
    endpoint: str = ""  # "" = the public one
    anchor: Anchor | None = None


class CloudSettings(RouteSettings, frozen=True, kw_only=True):
    """Settings of cloud: all accounts, of which each gets a service of its own."""

    accounts: Annotated[
        tuple[str, ...],
        flags.Flag(
            "cloud-account",
            "Cloud accounts, each as provider/account, such as hcloud/prod. Providers: "
            f"{', '.join(CLOUD_PROVIDERS)}. The account is a name of your choice: {ACCOUNT_FORM}. Messages "
            "and records on Nodes contain it, so it must stay the same. hcloud/prod/network/4711 also names "
            "the anchor: an object of the cloud project that outlives its servers, by kind and id. It proves "
            "the credential when the last server is gone. Without it, the account selects one.",
            flags.CLOUD,
        ),
    ] = ()
    credential_file: Annotated[
        Path | None,
        flags.Flag(
            "cloud-credential-file",
            "File with the credential of the account; {account} stands for the account's name. For hcloud it "
            "is a token, for openstack a cloud.conf or clouds.yaml, for thalassa the config file of that "
            "cloud's own controller. Without load balancers and routes, a credential that may "
            "only read is enough. The file is read again before each request.",
            flags.CLOUD,
            env="HCLOUD_TOKEN_FILE",
        ),
    ] = None
    token: Annotated[
        str,
        flags.Flag(
            "",
            "Token of the only account. A file is better: a new token in it takes effect without a restart. "
            "An environment is visible in `kubectl describe pod` and in every child process.",
            flags.CLOUD,
            env="HCLOUD_TOKEN",
        ),
    ] = ""
    endpoint: Annotated[
        str,
        flags.Flag(
            "cloud-endpoint",
            'URL of the cloud\'s API. "" is the public one.',
            flags.CLOUD,
            env="HCLOUD_ENDPOINT",
        ),
    ] = ""
    metadata_accounts: Annotated[tuple[str, ...], flags.CLOUD_METADATA_ACCOUNTS] = ()

    step_seconds: float = 5.0  # a new providerID is asked for within ten seconds
    intervals: QueryIntervals = QueryIntervals()
    requests_per_minute: int = REQUESTS_PER_MINUTE
    deadline_seconds: float = DEADLINE_SECONDS

    @property
    def account(self) -> CloudAccountSettings:
        """The account of settings with exactly one, and without problems."""
        [text] = self.accounts
        provider, account, *anchor = text.split("/")
        return CloudAccountSettings(
            provider=provider,
            name=account,
            credential=self._locate_credential(account),
            endpoint=self.endpoint,
            anchor=Anchor(*anchor) if anchor else None,
        )

    @property
    def balancers(self) -> AccountBalancers | None:
        """Which load balancers the account has; None if it has none."""
        return self.find_balancers(self.account.provider, self.account.name)

    @property
    def routes(self) -> AccountRoutes | None:
        """Which network's routes the account has; None if it has none."""
        return self.find_routes(self.account.provider, self.account.name)

    @property
    def account_controllers(self) -> tuple[Controller, ...]:
        """The controllers of the account's process that write for it."""
        has_routes = (ROUTES,) if self.routes is not None else ()
        return (*((LOAD_BALANCERS,) if self.balancers is not None else ()), *has_routes)

    @property
    def uses_account_lease(self) -> bool:
        """Whether a Lease decides who writes."""
        balances = self.balancers is not None and not self.is_balancer_dry_run
        return self.leader_elect and (balances or (self.routes is not None and not self.routes.is_dry_run))

    @property
    def lease_name(self) -> str:
        """The Lease of the account's process, which only one with such controllers acquires."""
        return get_cloud_lease_name(self.account.name)

    @property
    def metadata_account(self) -> MetadataAccount | None:
        """The entry of this account in --cloud-metadata-accounts; None if it supplies no metadata."""
        found = parse_metadata_accounts(self.metadata_accounts).get(self.account.name)
        return found if found is not None and found.provider == self.account.provider else None

    def problems(self) -> tuple[str, ...]:
        """Return the invalid settings; those of accounts only if there is one."""
        found = flags.find_metadata_account_problems(self.metadata_accounts)
        return (*found, *(self._find_problems() if self.accounts else ()))

    def warnings(self) -> tuple[str, ...]:
        """Return settings without effect."""
        return (*self.find_balancer_warnings(), *self.find_route_warnings())

    def _find_problems(self) -> Iterator[str]:
        for text in self.accounts:
            yield from (f"--cloud-account={text}: {problem}" for problem in _find_account_problems(text))
        named = (text.split("/") for text in self.accounts)
        providers = {parts[1]: parts[0] for parts in named if len(parts) > 1}
        yield from (*self.find_balancer_problems(providers), *self.find_route_problems(providers))
        names = Counter(text.partition("/")[2].partition("/")[0] for text in self.accounts)
        yield from (f"--cloud-account: {name} is there twice" for name, count in names.items() if count > 1)
        if self.endpoint and len({text.partition("/")[0] for text in self.accounts}) > 1:
            yield "--cloud-endpoint belongs to one provider, and the accounts are of several"
        if self.credential_file is None and not self.token:
            yield "--cloud-credential-file is not set, and HCLOUD_TOKEN neither"
        elif self.credential_file is not None and self.token:
            yield "--cloud-credential-file and HCLOUD_TOKEN are both set"
        elif len(self.accounts) > 1 and self.token:
            yield f"HCLOUD_TOKEN belongs to one account: use --cloud-credential-file with {_PLACEHOLDER}"
        elif len(self.accounts) > 1 and _PLACEHOLDER not in str(self.credential_file):
            yield f"--cloud-credential-file needs {_PLACEHOLDER} for several accounts"

    def _locate_credential(self, account: str) -> Path | str:
        if self.credential_file is None:
            return self.token
        return Path(str(self.credential_file).replace(_PLACEHOLDER, account))


def _find_account_problems(text: str) -> Iterator[str]:
    parts = text.split("/")
    if len(parts) not in (2, 4) or not all(parts):
        yield "the form is provider/account or provider/account/kind/id"
        return
    if parts[0] not in CLOUD_PROVIDERS:
        yield f"unknown provider {parts[0]}; known are {', '.join(CLOUD_PROVIDERS)}"
    if not is_account_name(parts[1]):
        yield f"the name of an account has {ACCOUNT_FORM}"
