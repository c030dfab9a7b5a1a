"""The interface of every cloud adapter to instances, in the shape of InstancesV2 of k8s.io/cloud-provider."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Literal, Protocol

import msgspec

# The result of one request, also the label of its metric.
Outcome = Literal[
    "found",
    "not_found",
    "unauthorized",  # the cloud rejects the credential, or there is none to read
    "forbidden",
    "rejected",  # a write that the cloud refuses in the form of its own errors
    "rate_limited",  # the cloud requests a pause
    "held_back",  # not sent: too little of the rate limit remains for the credential's other clients
    "server_error",
    "unreachable",  # no complete answer: connection, TLS, timeout
    "malformed",  # an answer that is not one of this cloud's, as of a proxy; or one that contradicts itself
]
CREDENTIAL_ANCHOR: Final = "credential"
# The outcome of one request and its seconds: 0 if none was sent for lack of a credential.
RequestObserver = Callable[[Outcome, float], None]


class InstanceAddress(msgspec.Struct, frozen=True):
    """One IP address; `network` is the private network as the cloud names it, "" for a public address."""

    address: str
    network: str = ""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that exists. Fields that the cloud does not name are empty."""

    id: str
    name: str
    is_shut_down: bool
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    addresses: tuple[InstanceAddress, ...] = ()


class Deleted(msgspec.Struct, frozen=True):
    """The cloud itself reports that the instance with this exact id was deleted for good."""


class NotFound(msgspec.Struct, frozen=True):
    """The cloud reports, in the form of its own errors, that there is no object with this exact id.

    The credential of another project gets the same answer, so it proves nothing without a witness.
    """


class Unanswered(msgspec.Struct, frozen=True):
    """Any other result: an error, silence, a part of an answer, a proxy's page. It proves nothing.

    `reason` is for an operator and never contains the credential. `retry_after_seconds` is None if any time
    is as good as another.
    """

    outcome: Outcome
    reason: str
    retry_after_seconds: float | None = None


class Anchor(msgspec.Struct, frozen=True):
    """An object of the project's own that outlives its instances, such as a network. Ids are per kind.

    A project without such an object is known by its credential alone: kind CREDENTIAL_ANCHOR, with the
    fingerprint as the id. It is nothing that could be asked for.
    """

    kind: str
    id: str


class Credential(msgspec.Struct, frozen=True):
    """Which reading of the credential file is in use; answers to an earlier generation are void.

    `generation` starts at 1 and only grows, whenever the content of the file changes; 0 is none so far.
    `fingerprint` is the same for equal contents, "" where the content could be guessed from it.
    """

    generation: int
    loaded_at: datetime
    fingerprint: str = ""


class RateLimit(msgspec.Struct, frozen=True):
    """The cloud's own count of requests: `remaining` of `limit`, shared by all clients of the project."""

    limit: int
    remaining: int


class Instances(Protocol):
    """The instances of one project, by one credential from a file that may change at any time.

    Only reads are sent, and what exchanges a credential for a token. No call raises. A request waits while it
    would exceed the requests per minute, and has a deadline after that. Each uses the current content of the
    credential file. A round of queries belongs to one credential if `credential` is the same before and after
    it.
    """

    @property
    def credential(self) -> Credential: ...

    @property
    def rate_limit(self) -> RateLimit | None:
        """The last count that the cloud reported for this credential; None if it reported none."""
        ...

    def parse_provider_id(self, provider_id: str) -> str | None:
        """Return the instance's id if this is the canonical form for such an instance, else None."""
        ...

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        """Return all instances of one listing, never a part. An instance may be missing for a moment."""
        ...

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        """Return the instance with exactly this id."""
        ...

    async def find_by_name(self, name: str) -> tuple[Instance, ...] | Unanswered:
        """Return all instances with exactly this name."""
        ...

    async def find_anchor(self) -> Anchor | Unanswered | None:
        """Return the configured anchor, or one that the cloud has, or the credential's; None without any."""
        ...

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        """Return the anchor if it exists and is still one."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def explain_unusable_anchor(anchor: Anchor, forms: Mapping[str, re.Pattern[str]]) -> str:
    """Return why a cloud with these forms of ids, by kind, has no such anchor; "" if it may have it."""
    if anchor.kind not in forms:
        return f"no kind of anchor: {anchor.kind!r}; known are {', '.join(forms)}"
    return "" if forms[anchor.kind].fullmatch(anchor.id) else f"no id of an anchor: {anchor.id!r}"
