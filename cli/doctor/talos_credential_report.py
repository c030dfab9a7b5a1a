"""What the Talos credential is worth where it is mounted, as it travels from the pod. Pure.

The two ends may be of different versions: fields are only added, each with a default.
"""

from typing import Final

import msgspec

from libs.common.contract.timestamp import Timestamp


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint, or a machine by the address of its Node; `fault` "" if it has answered."""

    address: str
    fault: str = ""
    name: str = ""  # of the machine's node


class TalosCredentialReport(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="TalosSeen.v1"
):
    """The credential, and who answers to it. `at` by the clock of the pod."""

    at: Timestamp
    problem: str = ""  # why there is none, or none that is valid
    source: str = ""  # the file
    roles: tuple[str, ...] = ()
    not_before: Timestamp | None = None
    not_after: Timestamp | None = None
    endpoints: tuple[ProbeResult, ...] = ()
    machines: tuple[ProbeResult, ...] = ()


_DECODER: Final[msgspec.json.Decoder[TalosCredentialReport]] = msgspec.json.Decoder(TalosCredentialReport)


def decode_report(data: bytes) -> TalosCredentialReport:
    """Raises ValueError on what is none."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not what `inside talos` says: {error}") from error
