"""What a login to OpenStack needs, and what it returns."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_VERSION: Final = re.compile(r"(/v2(\.[0-9]+)?)?/*\Z")


@dataclass(frozen=True, kw_only=True)
class LoginOptions:
    """How to log in to Keystone. Secrets are in no text of it."""

    auth: Mapping[str, str] = field(repr=False)  # options of the authentication, as openstacksdk names them
    auth_type: str = "password"
    region: str = ""  # "": the only one of the catalogue
    interface: str = "public"
    ca_file: str = ""  # authorities beside those of the system
    profile: str = ""  # of a public cloud that openstacksdk knows


@dataclass(frozen=True, kw_only=True)
class Login:
    """What a login has found: the project that its token is for, and where its services are."""

    token: str = field(repr=False)
    lifetime_seconds: float
    project: str
    region: str
    compute: str  # URL with the version
    network: str
    load_balancer: str  # with the version; "": the catalogue has no Octavia
    microversion: str  # of Nova, such as "2.69"
    ca_file: str = ""


def add_balancer_version(url: str) -> str:
    """Return the URL of Octavia with its version, which catalogues name or leave out."""
    return f"{_VERSION.sub('', url, count=1)}/v2.0"
