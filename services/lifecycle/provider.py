"""Room for clouds: who could say that an instance is gone. Nothing implements it yet."""

from datetime import datetime
from typing import Protocol

import msgspec


class InstanceGone(msgspec.Struct, frozen=True, kw_only=True):
    """A cloud's own, positive word that there is no such instance; never an error, nor an empty list."""

    provider_id: str  # as it stands on the Node
    reported_by: str  # which API, for the reason of the deletion
    reported_at: datetime  # when it was asked


class Provider(Protocol):
    """A cloud, by its own API. Each look of its own counts as one, under the same terms as all evidence."""

    @property
    def scheme(self) -> str:
        """Of its providerIDs, such as "hcloud"."""

    async def instance_gone(self, provider_id: str) -> InstanceGone | None:
        """None: it exists, as it does in every state but gone, or nobody knows. Raises TemporaryError."""
