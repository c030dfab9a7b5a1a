"""The machines of one organisation of Thalassa Cloud, or of one VPC of it."""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from libs.clouds.error_responses import collect_all
from libs.clouds.instances import (
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    RateLimit,
    Unanswered,
    explain_unusable_anchor,
)
from libs.clouds.thalassa.responses import IDENTITY, Machine, Vpc, build_instance
from libs.clouds.thalassa.thalassa_api import ID, ThalassaApi

PROVIDER: Final = "thalassacloud"
ANCHOR_KIND: Final = "vpc"

_MACHINES: Final = "/v1/machines"
_VPCS: Final = "/v1/vpcs"
_ANCHOR_FORMS: Final = {ANCHOR_KIND: re.compile(f"{IDENTITY}(@.*)?")}


class ThalassaInstances:
    """Implements Instances for the organisation, and the VPC, of the config file."""

    def __init__(self, api: ThalassaApi) -> None:
        """Raise ValueError for an unusable anchor in the options, which replaces the VPC of the file."""
        self._api = api
        self._anchor = api.session.options.anchor
        if self._anchor is not None and (problem := explain_unusable_anchor(self._anchor, _ANCHOR_FORMS)):
            raise ValueError(problem)

    @property
    def credential(self) -> Credential:
        """The last reading of the file; an access token that is renewed is the same credential."""
        return self._api.session.credential

    @property
    def rate_limit(self) -> RateLimit | None:
        """The last count that the cloud reported."""
        return self._api.session.budget.rate_limit

    def parse_provider_id(self, provider_id: str) -> str | None:
        """Return the identity of `thalassacloud://identity`."""
        scheme, separator, identity = provider_id.partition("://")
        return identity if scheme == PROVIDER and separator and ID.fullmatch(identity) else None

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        """Return the machines of the VPC, or of the organisation if none is configured."""
        return await self._list_instances(lambda machine: True)

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        """Return the machine with exactly this identity, in any VPC."""
        found = await self._api.get_item(_MACHINES, instance_id, Machine)
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
        config = self._api.read_config()
        if isinstance(config, Unanswered):
            return config
        if vpc := self._api.find_vpc(config):
            found = await self.get_anchor(Anchor(ANCHOR_KIND, f"{vpc}@{config.scope}"))
            return None if isinstance(found, NotFound) else found
        vpcs = await self._api.list_items(_VPCS, {}, Vpc)
        if isinstance(vpcs, Unanswered):
            return vpcs
        first = min((vpc.identity for vpc in vpcs), default="")
        return Anchor(ANCHOR_KIND, f"{first}@{config.scope}") if first else None

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        """Return the VPC if it is visible, and the file names the organisation and project of the anchor."""
        if problem := explain_unusable_anchor(anchor, _ANCHOR_FORMS):
            return Unanswered("malformed", problem)
        config = self._api.read_config()
        if isinstance(config, Unanswered):
            return config
        vpc, _, scope = anchor.id.partition("@")
        found = await self._api.get_item(_VPCS, vpc, Vpc)
        if not isinstance(found, Vpc):
            return found
        return anchor if scope == config.scope else NotFound()

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def _list_instances(
        self, is_wanted: Callable[[Machine], bool]
    ) -> tuple[Instance, ...] | Unanswered:
        config = self._api.read_config()
        if isinstance(config, Unanswered):
            return config
        vpc = self._api.find_vpc(config)
        machines = await self._api.list_items(_MACHINES, {"vpc": vpc} if vpc else {}, Machine)
        if isinstance(machines, Unanswered):
            return machines
        of_vpc = (
            machine
            for machine in filter(is_wanted, machines)
            # the API may ignore the filter
            if not vpc or machine.vpc is None or machine.vpc.identity == vpc
        )
        found = collect_all(map(build_instance, of_vpc))
        if isinstance(found, Unanswered):
            return found
        return tuple(each for each in found if isinstance(each, Instance))
