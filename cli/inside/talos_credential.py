"""The permissions of the mounted Talos credential, as JSON from the pod. Pure.

Pod and caller may have different versions: fields are only added, each with a default.
"""

from typing import Final

import msgspec

from libs.common.contract.timestamp import Timestamp


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of an endpoint, or of a machine by a Node's address; `fault` is "" if it answered."""

    address: str
    fault: str = ""
    name: str = ""  # the node name of the machine


class TalosCredentialReport(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="TalosSeen.v1"
):
    """The credential and the answers to it; `at` is by the pod's clock."""

    at: Timestamp
    problem: str = ""  # why there is no valid credential
    source: str = ""  # the file
    roles: tuple[str, ...] = ()
    not_before: Timestamp | None = None
    not_after: Timestamp | None = None
    endpoints: tuple[ProbeResult, ...] = ()
    machines: tuple[ProbeResult, ...] = ()


REPORT_DECODER: Final = msgspec.json.Decoder(TalosCredentialReport)
