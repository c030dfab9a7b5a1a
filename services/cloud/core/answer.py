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

    def find_end(self, age: timedelta) -> datetime:
        """Return until when the answer counts: for `age` after its begin, and longer if it took long.

        Otherwise, a slow cloud would be queried again at once. A plan may need two more answers that take
        as long.
        """
        return self.began_at + age + 3 * (self.ended_at - self.began_at)
