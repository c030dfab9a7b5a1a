"""What a service last decided about an object: for the operator's eyes, never input to another service."""

import msgspec

from libs.common.contract.timestamp import Timestamp


class Decided(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="Decided.v1"
):
    """Published after the decision was carried out."""

    service: str
    kind: str  # "node", "csr"
    name: str
    uid: str = ""
    outcome: str  # a word per service: "initialized", "updated", "unchanged", "blocked", "not-ours"
    reason: str  # in words an operator can act on
    decided_at: Timestamp
    next_check_at: Timestamp | None = msgspec.field(default=None, name="next_look_at")
    changes: tuple[str, ...] = ()  # what was written (observe-only: would have been), one line each


class DeadLetter(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="DeadLetter.v1"
):
    """A message that nobody could read or handle, with the reason; the payload is cut at 4 kB."""

    service: str
    kind: str
    name: str
    subject: str
    sequence: int
    reason: str
    payload: str
    at: Timestamp
