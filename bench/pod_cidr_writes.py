"""What ipam wrote, by the audit log: claims in ConfigMaps, and pod CIDRs on Nodes by name."""

from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from msgspec import field

from libs.common.wiring import IPAM
from libs.testbed.service_rights import user_of


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """How many. A patch that is cut off may have been made or not: nobody waited for its answer."""

    claims: int = 0
    claims_refused: int = 0  # another replica was quicker
    patched: Counter[str] = field(default_factory=Counter)  # by node
    patches_refused: Counter[str] = field(default_factory=Counter)
    patches_cut_off: Counter[str] = field(default_factory=Counter)


class _User(msgspec.Struct):
    username: str = ""


class _Object(msgspec.Struct):
    resource: str = ""
    name: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 200


class _Entry(msgspec.Struct, rename="camel"):
    stage: str
    verb: str
    user: _User
    object_ref: _Object = field(default_factory=_Object)
    response_status: _Status = _Status()


_ENTRY: Final = msgspec.json.Decoder(_Entry)
_CLAIMS: Final = (("create", "configmaps"), ("update", "configmaps"))


def writes_of_ipam(log: Path, since: int) -> Writes:
    """From a mark in the audit log on. Only where ipam is a process of its own, it has a user of its own."""
    with log.open("rb") as lines:
        lines.seek(since)
        return counted(lines)


def counted(log: Iterable[bytes]) -> Writes:
    """The same of lines."""
    claims: Counter[bool] = Counter()
    patched: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    cut_off: Counter[str] = Counter()
    for line in log:
        if not line.endswith(b"\n"):
            break  # being written at this moment
        entry = _ENTRY.decode(line)
        if entry.stage != "ResponseComplete" or entry.user.username != user_of(IPAM):
            continue
        what, code = (entry.verb, entry.object_ref.resource), entry.response_status.code
        succeeded = code < HTTPStatus.BAD_REQUEST
        if what in _CLAIMS:
            claims[succeeded] += 1
        elif what == ("patch", "nodes"):
            into = patched if succeeded else cut_off if code == HTTPStatus.GATEWAY_TIMEOUT else refused
            into[entry.object_ref.name] += 1
    return Writes(
        claims=claims[True],
        claims_refused=claims[False],
        patched=patched,
        patches_refused=refused,
        patches_cut_off=cut_off,
    )
