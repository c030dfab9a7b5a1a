"""Settings of cloud."""

import re
from pathlib import Path
from typing import Annotated, Final

import msgspec

from libs.clouds.instances import Anchor
from libs.clouds.request_budget import REQUESTS_PER_MINUTE
from libs.common.settings import flags

_ACCOUNT: Final = re.compile(r"[a-z0-9-]{1,32}")
PROVIDERS: Final = ("hcloud",)


class CloudSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of cloud: one account."""

    account: Annotated[
        str,
        flags.Flag(
            "cloud-account",
            "Name of the cloud account: at most 32 lower-case letters, digits and hyphens. Messages and "
            "records on Nodes contain it, so it must stay the same.",
            flags.CLOUD,
        ),
    ] = ""
    provider: Annotated[
        str,
        flags.Flag("cloud-account-provider", f"Cloud of the account: {', '.join(PROVIDERS)}.", flags.CLOUD),
    ] = "hcloud"
    credential_file: Annotated[
        Path | None,
        flags.Flag(
            "cloud-credential-file",
            "File with the credential of the account. A token that may only read is enough. It is read again "
            "before each request.",
            flags.CLOUD,
            env="HCLOUD_TOKEN_FILE",
        ),
    ] = None
    endpoint: Annotated[
        str,
        flags.Flag(
            "cloud-endpoint",
            'URL of the cloud\'s API. "" is the public one.',
            flags.CLOUD,
            env="HCLOUD_ENDPOINT",
        ),
    ] = ""
    anchor: Annotated[
        str,
        flags.Flag(
            "cloud-anchor",
            'Object of the cloud project that outlives its servers, as kind/id, such as "network/4711". It '
            'proves the credential when the last server is gone. "" selects one.',
            flags.CLOUD,
        ),
    ] = ""
    metadata_accounts: Annotated[tuple[str, ...], flags.CLOUD_METADATA_ACCOUNTS] = ()
    private_network: Annotated[
        str,
        flags.Flag(
            "cloud-private-network",
            "Id of the private network in which machines are reached. Without it, only the public addresses "
            "of a server confirm that a machine is that server (--cloud-metadata-accounts).",
            flags.CLOUD,
            env="HCLOUD_NETWORK",
        ),
    ] = ""

    step_seconds: float = 5.0  # a new providerID is asked for within ten seconds
    requests_per_minute: int = REQUESTS_PER_MINUTE

    @property
    def configured_anchor(self) -> Anchor | None:
        """The anchor of the setting."""
        kind, _, anchor_id = self.anchor.partition("/")
        return Anchor(kind, anchor_id) if self.anchor else None

    @property
    def supplies_metadata(self) -> bool:
        """Whether this account supplies the metadata of machines."""
        return f"{self.provider}/{self.account}" in self.metadata_accounts

    def problems(self) -> tuple[str, ...]:
        """Return the invalid settings."""
        found = [*flags.find_metadata_account_problems(self.metadata_accounts)]
        if not _ACCOUNT.fullmatch(self.account):
            found.append(
                f"--cloud-account is {self.account!r}; it needs 1 to 32 lower-case letters, digits, hyphens"
            )
        if self.provider not in PROVIDERS:
            found.append(f"--cloud-account-provider is {self.provider!r}; known are {', '.join(PROVIDERS)}")
        if self.credential_file is None:
            found.append("--cloud-credential-file is not set")
        if self.anchor and not all(self.anchor.partition("/")):
            found.append(f"--cloud-anchor is {self.anchor!r}, which is not kind/id")
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """Return nothing: no setting weakens the evidence."""
        return ()
