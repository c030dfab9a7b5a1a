"""The labeler's settings from flags and file, and the mistakes that it reports."""

from pathlib import Path

import msgspec
import pytest

from libs.common.settings.cloud_config_reloader import parse_config_file
from libs.common.settings.read_settings import ParsedSettings, SettingsError, read_settings
from services.labeler.settings import InvalidConfigError, LabelerSettings

RULES = """\
transformations:
- name: first
  labels:
    zone: "{{ .Zone "
- name: second
  annotations:
    id: "{{ shout .InstanceID }}"
"""


def read(file: Path, text: str, *arguments: str) -> ParsedSettings:
    file.write_text(text)
    return read_settings([LabelerSettings], [f"--cloud-config={file}", *arguments], {})


def test_every_mistake_in_a_template_is_told_at_the_start_with_its_line_and_place(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    with pytest.raises(SettingsError) as caught:
        read(file, RULES, "--cluster-name=not a name", "--cluster-name-fallbacks", "--bananas")
    flag, name, first, second = str(caught.value).splitlines()
    assert flag.startswith("unknown flag --bananas")
    assert name.startswith("--cluster-name: 'not a name' is not a valid label value")
    assert first.startswith(
        f'--cloud-config: {file}, line 4: transformations[0].labels["zone"] is not a valid template'
    )
    assert second.startswith(
        f'--cloud-config: {file}, line 7: transformations[1].annotations["id"] is not a valid templ'
    )


@pytest.mark.parametrize("when", ["at the start", "when the file changes"])
def test_what_the_reader_finds_and_what_is_wrong_with_templates_is_told_at_once(tmp_path: Path, when: str):
    file = tmp_path / "ccm.yaml"
    text = "global: {clusterName: not a label}\n" + RULES + "- labls: {}\n"
    if when == "at the start":
        with pytest.raises(SettingsError) as caught:
            read(file, text)
        mistakes = str(caught.value).splitlines()
    else:
        found = parse_config_file(text.encode(), file)
        with pytest.raises(InvalidConfigError) as refused:
            LabelerSettings(cloud_config=file).evaluate(found)
        mistakes = list(refused.value.mistakes)
        assert mistakes == sorted(mistakes), "in the order of the lines"
    told = {mistake.partition("ccm.yaml, ")[2][:40] for mistake in mistakes}
    assert told == {
        'line 1: global.clusterName is "not a lab',
        'line 5: transformations[0].labels["zone"',
        'line 8: transformations[1].annotations["',
        'line 9: transformations[2] has no key "l',
    }


def test_the_rules_of_the_file_hold_from_the_start(tmp_path: Path):
    settings = read(tmp_path / "ccm.yaml", "transformations: [{name: web, labels: {a: b}}]\n").get(
        LabelerSettings
    )
    assert [rule.title for rule in settings.config.rules.rules] == ["web"]


def test_a_template_that_can_only_fail_is_warned_of(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    (warning,) = read(file, 'transformations: [{labels: {a: "{{ .Zones }}"}}]\n').warnings
    assert warning.startswith(
        f'--cloud-config: {file}, line 1: transformations[0].labels["a"] reads .Zones, '
    )


def test_the_file_wins_over_the_flag_and_is_not_remembered_when_it_says_nothing_any_more(tmp_path: Path):
    reading = read(
        tmp_path / "ccm.yaml",
        "global: {clusterName: by-file, preferIPv6: true}\n",
        "--cluster-name=by-flag",
        "--cluster-name-fallbacks",
    )
    settings = reading.get(LabelerSettings)
    assert (settings.config.cluster_name, settings.config.prefer_ipv6) == ("by-file", True)
    silent = settings.build_config(read(tmp_path / "empty.yaml", "").get(LabelerSettings).file)
    assert (silent.cluster_name, silent.prefer_ipv6) == ("by-flag", False)


def test_the_flag_names_the_cluster_only_with_the_fallbacks_as_in_the_reference(tmp_path: Path):
    reading = read(tmp_path / "ccm.yaml", "", "--cluster-name=-no label-")
    settings = reading.get(LabelerSettings)
    assert settings.config.cluster_name == ""
    assert settings.problems() == ()
    (warning,) = settings.warnings()
    assert warning.startswith("--cluster-name has no effect without --cluster-name-fallbacks")
    asked = msgspec.structs.replace(settings, cluster_name="kubernetes", cluster_name_fallbacks=True)
    assert (asked.config.cluster_name, asked.warnings()) == ("kubernetes", ())
    (problem,) = msgspec.structs.replace(settings, cluster_name_fallbacks=True).problems()
    assert problem.startswith("--cluster-name: '-no label-' is not a valid label value")
