"""Makes a server reload its configuration, by a request of its system account."""

from typing import Final

import msgspec

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.jetstream import ApiError
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import BusError
from libs.common.json_errors import JSON_ERRORS

_CONNECT_SECONDS: Final = 5.0
_RELOAD_SECONDS: Final = 10.0


class _Answer(msgspec.Struct, frozen=True):
    error: ApiError | None = None


async def reload_server(access: NatsAccess) -> None:
    """Reload the first server of `access`. Raises BusError with the reason of a failure."""
    connection = await Connection.open(
        access, access.servers[0], seconds=_CONNECT_SECONDS, on_violation=lambda text: None
    )
    try:
        subject = f"$SYS.REQ.SERVER.{connection.server_id}.RELOAD"
        answer = await connection.request(subject, seconds=_RELOAD_SECONDS)
    finally:
        await connection.abort("done")
    try:
        error = msgspec.json.decode(answer.data, type=_Answer).error
    except JSON_ERRORS as broken:
        raise BusError(f"{subject}: not an answer of a server: {broken}") from broken
    if error is not None:
        raise BusError(f"{access}: configuration not reloaded: {error.description}")
