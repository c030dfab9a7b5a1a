"""A time in a message, with its UTC offset, so that times are comparable."""

from datetime import datetime
from typing import Annotated

import msgspec

Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]
