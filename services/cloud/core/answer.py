"""When the cloud was asked, and how long a write with an unknown result may take effect."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

# A request whose result is unknown may take effect this long after its deadline, and not later.
MAX_LATENESS: Final = timedelta(minutes=1)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """When the cloud was asked, and with which credential: the one after the answer."""

    began_at: datetime
    ended_at: datetime
    generation: int
