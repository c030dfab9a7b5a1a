"""The sample nodes of `talos-ccm render`: one for each platform, as the testbed has them."""

from cli.render.facts_file import encode_facts, parse_facts
from cli.render.samples import load_samples
from tests.architecture.sources import ROOT
from tools.platform_samples import render_samples


def test_the_samples_are_those_of_the_testbed():
    stale = "stale: make render-samples"
    assert (ROOT / "cli" / "render" / "samples.json").read_text() == render_samples(), stale


def test_a_sample_can_be_written_to_a_facts_file_and_read_again():
    nodes = tuple(load_samples().values())
    assert parse_facts(encode_facts(nodes)) == nodes
