"""Broken config files: `config check` reports the mistakes, `render` shows the valid rest."""

import os
from contextlib import suppress

from cli.config.check_files import format_report, report_to_json
from cli.config.config_check import check_config
from cli.render.compiled_config import compile_config
from cli.render.facts_file import load_samples
from cli.render.output import format_preview, previews_to_json
from cli.render.preview import preview_node
from libs.common.cloud_config.document import CloudConfigError
from services.labeler.core.rules import RulesError
from tests.builders import NOW
from tests.cloud_config_mutations import SEEDS, generate_mutations

MUTATIONS = int(os.environ.get("MUTATIONS", "300"))
SHOWN = [load_samples()[platform] for platform in ("aws", "container", "nocloud")]


def test_any_file_is_checked_in_whole_lines():
    for text in (*SEEDS, *generate_mutations(MUTATIONS)):
        found = check_config(text, "f")
        told = [line.text.plain for line in format_report(found, differences=True)]
        assert all(line.startswith("f:") and line.isprintable() for line in told), text
        assert report_to_json([found], [])["files"][0]["usable"] == (not found.mistakes)


def test_any_file_that_can_be_used_can_be_shown():
    shown = 0
    for text in (*SEEDS, *generate_mutations(MUTATIONS)):
        with suppress(CloudConfigError, RulesError):
            used = compile_config(text, "f")
            for node in SHOWN:
                seen = preview_node(node, used, now=NOW)
                assert all(line.text.plain.isprintable() for line in format_preview(seen, used)), text
                assert previews_to_json([seen], (), used)["nodes"][0]["name"] == node.name
                shown += 1
    assert shown > len(SEEDS)


def test_what_check_calls_good_the_labeler_takes():
    for text in (*SEEDS, *generate_mutations(MUTATIONS)):
        if not check_config(text, "f").mistakes:
            compile_config(text, "f")
