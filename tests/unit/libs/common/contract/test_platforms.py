"""One table of platforms: services, samples, the testbed, tests and docs know the same ones."""

import re

import pytest

from cli.render.facts_file import load_samples
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.ownership import parse_scheme
from libs.common.contract.platforms import (
    CONFIGURED_PROVIDER_ID,
    OUR_SCHEME,
    PLATFORMS,
    PLATFORMS_WITH_PROVIDER_ID,
    PLATFORMS_WITHOUT_PROVIDER_ID,
)
from libs.testbed.machine_facts import make_machine
from services.labeler.core.plan.node_ownership import FOREIGN_SCHEMES
from tests import platform_cases
from tools.platform_samples import PAGE, SAMPLES, render_platforms_page, render_samples


def pattern_of(form: str) -> str:
    """A form of the table as a pattern: each {name} is a value of the machine."""
    return re.sub(r"\\\{[\w\\-]+\\\}", "[^{}]+", re.escape(form))


def test_the_samples_the_testbed_and_the_cases_have_every_platform_of_the_table():
    assert set(load_samples()) == set(PLATFORMS)
    assert {case.platform for case in platform_cases.PLATFORMS} == set(PLATFORMS)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_samples_machines_and_cases_report_a_provider_id_of_the_table_s_form(platform: str):
    form = PLATFORMS[platform].provider_id
    (case,) = (each for each in platform_cases.PLATFORMS if each.platform == platform)
    machine = make_machine(platform=platform).platform
    assert machine is not None
    for reported in (
        load_samples()[platform].facts.platform.provider_id,
        machine.provider_id,
        case.metadata.provider_id,
    ):
        if form == CONFIGURED_PROVIDER_ID:
            assert "://" in reported
        else:
            assert re.fullmatch(pattern_of(form), reported), reported
            assert parse_scheme(reported or f"{OUR_SCHEME}://") == PLATFORMS[platform].scheme


def test_no_platform_is_both_native_and_without_a_provider_id():
    assert not PLATFORMS_WITH_PROVIDER_ID & PLATFORMS_WITHOUT_PROVIDER_ID
    assert set(PLATFORMS) - PLATFORMS_WITH_PROVIDER_ID - PLATFORMS_WITHOUT_PROVIDER_ID == {"nocloud"}


@pytest.mark.parametrize("platform", sorted(PLATFORMS_WITH_PROVIDER_ID))
def test_a_scheme_of_a_platform_belongs_to_its_own_controller_on_machines_of_others(platform: str):
    scheme = PLATFORMS[platform].scheme
    assert not scheme or scheme in FOREIGN_SCHEMES


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platform_in_place_of_a_scheme_is_warned_of_with_the_scheme_that_its_nodes_have(platform: str):
    config = parse_cloud_config(f"ownership: {{providerIDSchemes: [{platform}]}}", "f")
    problems = [finding.problem for finding in config.warnings]
    scheme = PLATFORMS[platform].scheme
    if scheme == platform:
        assert problems == []
    elif scheme:
        assert problems == [f"is {platform}, a platform: its providerIDs begin with {scheme}://"]
    else:
        form = PLATFORMS[platform].provider_id
        words = f'its providerIDs ({form}) have no scheme, which "none" selects'
        assert problems == [f"is {platform}, a platform: {words}"]


def test_the_samples_and_the_page_follow_the_table():
    advice = "run `make render-samples`, look at the difference, and commit it"
    assert SAMPLES.read_text() == render_samples(), advice
    assert PAGE.read_text() == render_platforms_page(PAGE.read_text()), advice
