"""The config file of Thalassa's own cloud controller manager, as far as this client needs it."""

from typing import Annotated

import msgspec

from libs.common.safe_yaml import YamlError, read_yaml

# These become values of HTTP headers.
_HeaderText = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]*\Z")]


class CloudCredentials(msgspec.Struct, frozen=True, rename="camel"):
    """Either a personal access token, or the client credentials of a service account."""

    personal_access_token: _HeaderText = ""
    client_id: str = msgspec.field(name="clientID", default="")
    client_secret: str = ""

    @property
    def is_client(self) -> bool:
        """Whether client credentials are in use. As in Thalassa's controller, they go before a token."""
        return bool(self.client_id and self.client_secret)


class ThalassaConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The keys that this client reads; others are ignored, as in Thalassa's controller."""

    organisation: _HeaderText = ""
    project: _HeaderText = ""
    endpoint: str = ""
    insecure: bool = False
    vpc_identity: _HeaderText = ""
    # For load balancers. A form that is none of theirs must not stop the queries of instances.
    default_subnet: object = None  # an identity or a slug; None = the first of the VPC
    additional_labels: object = None  # of all that is created
    load_balancer: object = None  # times of a creation
    cloud_credentials: CloudCredentials = CloudCredentials()

    @property
    def scope(self) -> str:
        """The organisation and project that requests name."""
        return f"{self.organisation}/{self.project}" if self.project else self.organisation


def read_config(text: str, *, endpoint: str) -> ThalassaConfig | str:
    """Return the config, or why it is none for this endpoint. The reason contains no credential."""
    try:
        config = read_yaml(text.encode(), ThalassaConfig)
    except YamlError as error:
        # The text of an error of a value may have the value; the line is enough to find it.
        return f"not the config file of Thalassa's controller{f', line {error.line}' if error.line else ''}"
    if config.insecure:
        return "insecure: true is not supported: the credential would go to any server"
    if config.endpoint.rstrip("/") not in {"", endpoint}:
        return f"the endpoint in the file is not {endpoint}, to which requests go"
    if not config.organisation:
        return "it names no organisation"
    if not (config.cloud_credentials.is_client or config.cloud_credentials.personal_access_token):
        return "it has neither a personal access token nor client credentials"
    return config
