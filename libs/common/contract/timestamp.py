"""A time in a message: with its offset, or nobody could compare it with another one."""

from datetime import datetime
from typing import Annotated

import msgspec

Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]
