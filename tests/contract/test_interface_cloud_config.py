"""The interface of the --cloud-config file: keys, values, and the names that its templates may use."""

from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE
from libs.common.cloud_config.schema import build_schema
from libs.gotemplate.functions import FUNCTIONS
from tests.contract.interface_shapes import without
from tests.contract.interface_snapshot import assert_unchanged

PROSE = ("$comment", "description", "title")


def test_the_keys_of_the_file_are_unchanged():
    assert_unchanged("cloud-config", without(build_schema(), *PROSE))


def test_the_fields_of_machines_are_unchanged():
    """Templates call them by name, selectors by key, and platformMetadata overrides some of them."""
    fields = {
        field.name: {
            "selector key": f"{field.key}.<entry>" if field.is_map else field.key,
            "in the reference": field.in_reference,
            "overridable": field.key in OVERRIDABLE,
            "Talos resource": field.resource,
        }
        for field in FIELDS
    }
    assert_unchanged("template-fields", fields)


def test_the_functions_of_templates_are_unchanged():
    functions = {
        name: {"parameters": list(function.parameters), "more": function.rest}
        for name, function in FUNCTIONS.items()
    }
    assert_unchanged("template-functions", functions)
