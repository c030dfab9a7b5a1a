"""The servers of one OpenStack project in one region, and the project's networks, which outlive them."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

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
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.responses import (
    NETWORK,
    PER_PAGE,
    PROJECT,
    UUID,
    Action,
    Page,
    explain_contradiction,
    has_terminated,
    is_deletion,
    read_action,
    read_anchor,
    read_first_anchor,
    read_last_action,
    read_project,
    read_server,
    read_servers,
)

PROVIDER: Final = "openstack"

_UUID: Final = re.compile(UUID)
_ANCHOR_FORMS: Final = {NETWORK: _UUID, PROJECT: re.compile(r"[0-9a-f-]{32,36}@[A-Za-z0-9._-]{1,64}")}


class OpenStackInstances:
    """Implements Instances for the project and region of a credential."""

    def __init__(self, api: OpenStackApi) -> None:
        """Raise ValueError for an unusable anchor in the options."""
        self._api = api
        self._anchor = api.session.options.anchor
        if self._anchor is not None and (problem := explain_unusable_anchor(self._anchor, _ANCHOR_FORMS)):
            raise ValueError(problem)

    @property
    def credential(self) -> Credential:
        """The last reading of the credential file."""
        return self._api.session.credential

    @property
    def rate_limit(self) -> RateLimit | None:
        """The last count that the cloud reported."""
        return self._api.session.budget.rate_limit

    def parse_provider_id(self, provider_id: str) -> str | None:
        """Return the UUID of `openstack:///UUID`, or of `openstack://REGION/UUID` in any region."""
        # A credential file without that region must not make live Nodes those of another cloud.
        scheme, _, rest = provider_id.partition("://")
        _, _, server_id = rest.partition("/")
        return server_id if scheme == PROVIDER and _UUID.fullmatch(server_id) else None

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        """Return all servers of one listing."""
        return await self._list_servers({})

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        """Return the server with exactly this id, or whether Nova itself says that it has deleted it."""
        path = f"/servers/{instance_id}"
        if not _UUID.fullmatch(instance_id):
            return Unanswered("malformed", f"{instance_id!r} is not an id")
        found = await self._api.get("compute", path, {}, partial(read_server, server_id=instance_id))
        if not isinstance(found, NotFound):
            return found
        actions = f"{path}/os-instance-actions"
        last = await self._api.get("compute", actions, {}, partial(read_last_action, server_id=instance_id))
        if not isinstance(last, Action) or not is_deletion(last, instance_id):
            return found
        path, request_id = f"{actions}/{last.request_id}", last.request_id
        last = await self._api.get("compute", path, {}, partial(read_action, request_id=request_id))
        if not isinstance(last, Action) or not is_deletion(last, instance_id) or not has_terminated(last):
            return found
        return Deleted()

    async def find_by_name(self, name: str) -> tuple[Instance, ...] | Unanswered:
        """Return all servers with exactly this name; names are not unique."""
        # Nova takes a regular expression. A name has dots, which match more; none of its matches is left out.
        found = await self._list_servers({"name": f"^{name}$"})
        return found if isinstance(found, Unanswered) else tuple(each for each in found if each.name == name)

    async def find_anchor(self) -> Anchor | Unanswered | None:
        """Return the configured anchor, else the first network of the project, else the project."""
        if self._anchor is not None:
            found = await self.get_anchor(self._anchor)
            return None if isinstance(found, NotFound) else found
        return await self._api.get("network", "/networks", {}, read_first_anchor)

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        """Return the network if it belongs to the project, or the project and region of the credential."""
        if problem := explain_unusable_anchor(anchor, _ANCHOR_FORMS):
            return Unanswered("malformed", problem)
        if anchor.kind == PROJECT:
            query, read = {"limit": "1"}, partial(read_project, anchor=anchor)
            return await self._api.get("compute", "/servers/detail", query, read)
        path = f"/networks/{anchor.id}"
        return await self._api.get("network", path, {}, partial(read_anchor, network_id=anchor.id))

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def _list_servers(self, query: Mapping[str, str]) -> tuple[Instance, ...] | Unanswered:
        async def read_next(before: list[Page]) -> Page | Unanswered:
            marker = {"marker": before[-1].items[-1].id} if before else {}
            limits = {"limit": str(PER_PAGE), **marker}
            return await self._api.get("compute", "/servers/detail", {**query, **limits}, read_servers)

        pages = await self._api.session.read_pages("/servers", read_next, explain_contradiction)
        if isinstance(pages, Unanswered):
            return pages
        return tuple(each for page in pages for each in page.items)
