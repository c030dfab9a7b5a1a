"""The servers of one project of Hetzner Cloud, and the project's objects that outlive them."""

from collections.abc import Mapping
from typing import Final

from libs.clouds.error_responses import collect_all
from libs.clouds.hcloud.hcloud_api import ID, HcloudApi
from libs.clouds.hcloud.responses import Entity, Server, build_instance
from libs.clouds.instances import (
    CREDENTIAL_ANCHOR,
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    RateLimit,
    Unanswered,
    explain_unusable_anchor,
)

PROVIDER: Final = "hcloud"
# Of dedicated servers, which the API does not know. The second is that of syself's controller.
DEDICATED_PREFIXES: Final = ("hrobot://", "hcloud://bm-")

# Kind of anchor: path of the list, key of one object. Images without the type snapshot are the cloud's own,
# which every token finds, or backups, which go with their server.
_ANCHORS: Final = {
    "network": ("/networks", "network"),
    "ssh_key": ("/ssh_keys", "ssh_key"),
    "firewall": ("/firewalls", "firewall"),
    "volume": ("/volumes", "volume"),
    "snapshot": ("/images", "image"),
}
_ANCHOR_FORMS: Final = dict.fromkeys(_ANCHORS, ID)


class HcloudInstances:
    """Implements Instances for the project of a token."""

    def __init__(self, api: HcloudApi) -> None:
        """Raise ValueError for an unusable anchor in the options."""
        self._api = api
        self._anchor = api.session.options.anchor
        if self._anchor is not None and (problem := explain_unusable_anchor(self._anchor, _ANCHOR_FORMS)):
            raise ValueError(problem)

    @property
    def credential(self) -> Credential:
        """The last reading of the token."""
        return self._api.session.credential

    @property
    def rate_limit(self) -> RateLimit | None:
        """The last count that the cloud reported."""
        return self._api.session.budget.rate_limit

    def parse_provider_id(self, provider_id: str) -> str | None:
        """Return the digits of `hcloud://digits`; dedicated servers have no such providerID."""
        scheme, separator, server_id = provider_id.partition("://")
        is_canonical = scheme == PROVIDER and separator and ID.fullmatch(server_id)
        return server_id if is_canonical else None

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        """Return all servers of one listing."""
        return await self._list_servers({})

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        """Return the server with exactly this id; this cloud never says that one was deleted."""
        found = await self._api.get_item("/servers", "server", instance_id, Server)
        return build_instance(found) if isinstance(found, Server) else found

    async def find_by_name(self, name: str) -> tuple[Instance, ...] | Unanswered:
        """Return the server with exactly this name; names are unique in a project."""
        found = await self._list_servers({"name": name})
        return found if isinstance(found, Unanswered) else tuple(each for each in found if each.name == name)

    async def find_anchor(self) -> Anchor | Unanswered | None:
        """Return the configured anchor, else the oldest object of the first kind, else that of the token."""
        if self._anchor is not None:
            found = await self.get_anchor(self._anchor)
            return None if isinstance(found, NotFound) else found
        for kind, (path, _) in _ANCHORS.items():
            query = {"type": "snapshot"} if kind == "snapshot" else {}
            page = await self._api.get_page(path, query, Entity)
            if isinstance(page, Unanswered):
                return page
            ids = [each.id for each in page.items if kind != "snapshot" or each.type == "snapshot"]
            if ids:
                return Anchor(kind, str(min(ids)))
        return Anchor(CREDENTIAL_ANCHOR, self.credential.fingerprint)

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        """Return the anchor if the project has it."""
        if problem := explain_unusable_anchor(anchor, _ANCHOR_FORMS):
            return Unanswered("malformed", problem)
        path, key = _ANCHORS[anchor.kind]
        found = await self._api.get_item(path, key, anchor.id, Entity)
        if not isinstance(found, Entity):
            return found
        if anchor.kind == "snapshot" and found.type != "snapshot":
            return Unanswered("malformed", f"image {anchor.id} is no snapshot")
        return anchor

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def _list_servers(self, query: Mapping[str, str]) -> tuple[Instance, ...] | Unanswered:
        servers = await self._api.list_items("/servers", query, Server)
        return servers if isinstance(servers, Unanswered) else collect_all(map(build_instance, servers))
