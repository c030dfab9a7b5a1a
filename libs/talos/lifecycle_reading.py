"""Reads the stage of a machine and the members of its cluster, without generated decoders."""

from collections.abc import Sequence
from typing import Final

from libs.talos.cosi_messages import Resource
from libs.talos.proto.strict import Malformed, fields
from libs.talos.resources import MACHINE_STATUS, MEMBERS
from libs.talos.validation import InvalidResponse, parse_resource, require_id, require_number

MAX_MEMBERS: Final = 2048  # the discovery service accepts 1024 per cluster
_STAGE: Final = 1  # field number in MachineStatusSpec
_LARGEST: Final = 2**32 - 1
_STAGES: Final = {
    1: "booting",
    2: "installing",
    3: "maintenance",
    4: "running",
    5: "rebooting",
    6: "shutting down",
    7: "resetting",
    8: "upgrading",
}


def read_stage(answer: bytes) -> str:
    """Return the stage of a GetResponse, "" if unknown. As all functions here, raises InvalidResponse."""
    return read_stage_resource(parse_resource(answer))


def read_stage_resource(resource: Resource) -> str:
    """Return the stage of a resource."""
    require_id(resource, MACHINE_STATUS)
    return decode_stage(resource.spec)


def decode_stage(spec: bytes) -> str:
    """Return the stage of an encoded MachineStatusSpec, without the readiness."""
    try:
        stage = dict(fields(spec)).get(_STAGE, 0)
    except Malformed as error:
        raise InvalidResponse(str(error)) from error
    return _STAGES.get(require_number(stage, "stage", 0, _LARGEST), "")


def read_member_names(answers: Sequence[bytes]) -> frozenset[str]:
    """Return the node names of all members from ListResponses: the id of a member is its node name."""
    if len(answers) > MAX_MEMBERS:
        raise InvalidResponse(f"more than {MAX_MEMBERS} members")
    return frozenset(require_id(parse_resource(answer), MEMBERS) for answer in answers)
