"""Specs that betterproto2 alone would accept are refused before their values are used."""

import pytest

from libs.talos.proto.generated import NodenameSpec
from libs.talos.proto.strict import InvalidResponse, parse
from libs.testbed.sim_machines.protobuf_wire import encode

NAME = encode({1: "web-1"})
FURTHER = encode({200: "unknown"})


def test_a_spec_with_fields_of_a_newer_talos_is_decoded():
    assert parse(NodenameSpec, NAME + FURTHER).nodename == "web-1"


@pytest.mark.parametrize("end", range(1, len(NAME)))
def test_a_known_field_that_is_cut_off_is_refused(end: int):
    with pytest.raises(InvalidResponse):
        parse(NodenameSpec, NAME[:end])


@pytest.mark.parametrize("end", range(1, len(FURTHER)))
def test_an_unknown_field_that_is_cut_off_is_refused(end: int):
    with pytest.raises(InvalidResponse):
        parse(NodenameSpec, NAME + FURTHER[:end])


@pytest.mark.parametrize("tag", [0x00, 0x0B, 0x0C, 0x0E, 0x0F, 0x7B], ids=hex)
def test_field_number_0_and_groups_are_refused(tag: int):
    with pytest.raises(InvalidResponse):
        parse(NodenameSpec, NAME + bytes([tag, 0]))
