"""Config files that somebody broke: `config check` says what is wrong, `render` shows what is right."""

import os
from contextlib import suppress

from cli.config.checking import check
from cli.config.told import as_json, lines
from cli.render.as_json import previews_json
from cli.render.config_in_use import config_in_use
from cli.render.preview import preview
from cli.render.samples import samples
from cli.render.text import of_preview
from libs.common.cloud_config.document import CloudConfigError
from services.labeler.rules import RulesError
from tests.builders import NOW
from tests.cloud_config_mutations import SEEDS, mutations

MUTATIONS = int(os.environ.get("MUTATIONS", "300"))
SHOWN = [samples()[platform] for platform in ("aws", "container", "nocloud")]


def test_any_file_is_checked_in_whole_lines():
    for text in (*SEEDS, *mutations(MUTATIONS)):
        found = check(text, "f")
        told = [line.text.plain for line in lines(found, differences=True)]
        assert all(line.startswith("f:") and line.isprintable() for line in told), text
        assert as_json([found], [])["files"][0]["usable"] == (not found.mistakes)


def test_any_file_that_can_be_used_can_be_shown():
    shown = 0
    for text in (*SEEDS, *mutations(MUTATIONS)):
        with suppress(CloudConfigError, RulesError):
            used = config_in_use(text, "f")
            for node in SHOWN:
                seen = preview(node, used, now=NOW)
                assert all(line.text.plain.isprintable() for line in of_preview(seen, used)), text
                assert previews_json([seen], (), used)["nodes"][0]["name"] == node.name
                shown += 1
    assert shown > len(SEEDS)


def test_what_check_calls_good_the_labeler_takes():
    for text in (*SEEDS, *mutations(MUTATIONS)):
        if not check(text, "f").mistakes:
            config_in_use(text, "f")
