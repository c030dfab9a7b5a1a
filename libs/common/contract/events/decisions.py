"""Decisions and dead letters, published for operators. No service consumes them."""

import msgspec

from libs.common.contract.timestamp import Timestamp


class Decided(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="Decided.v1"
):
    """The last decision of a service about an object, published after the service has applied it."""

    service: str
    kind: str  # "node", "csr"
    name: str
    uid: str = ""
    outcome: str  # defined by each service: "initialized", "updated", "unchanged", "blocked", "not-ours"
    reason: str  # in words on which an operator can act
    decided_at: Timestamp
    next_check_at: Timestamp | None = None
    changes: tuple[str, ...] = ()  # one line per written change; with observe-only, per planned change


class DeadLetter(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="DeadLetter.v1"
):
    """A message that no handler could parse or process, with the reason; the payload is cut at 4 kB."""

    service: str
    kind: str
    name: str
    subject: str
    sequence: int
    reason: str
    payload: str
    at: Timestamp
