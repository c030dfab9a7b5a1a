"""The tokens by which the services authenticate at kube-apiserver are replaced, or revoked for a while."""

from collections.abc import Sequence
from typing import Final

from tests.chaos.fault import Fault, FaultSite
from tests.chaos.persist import persist

# The API server accepts a revoked token for up to 10 s if it has accepted it before.
_LONGER_THAN_ITS_CACHE: Final = (13.0, 17.0)


async def _rotate(site: FaultSite) -> None:
    await persist("rotate tokens", site.cluster.rotate_tokens)


async def _revoke(site: FaultSite) -> None:
    await persist("revoke tokens", site.cluster.tokens.revoke_all)


TOKEN_FAULTS: Final[Sequence[Fault]] = (
    Fault(
        name="kubernetes-credentials-rotated",
        target="tokens",
        inject=_rotate,
        heal=_rotate,
        hold_seconds=_LONGER_THAN_ITS_CACHE,
    ),
    Fault(
        name="kubernetes-credentials-revoked",
        target="tokens",
        inject=_revoke,
        heal=_rotate,
        hold_seconds=_LONGER_THAN_ITS_CACHE,
    ),
)
