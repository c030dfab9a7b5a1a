"""The --cloud-config file: what acts, and mistakes with file and line."""

import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig
from libs.common.settings.flags import CLOUD_CONFIG, CLUSTER_NAME, PREFER_IPV6
from libs.common.settings.read_settings import ParsedSettings, SettingsError, read_settings


class NamedSettings(msgspec.Struct, frozen=True):
    cluster_name: Annotated[str, CLUSTER_NAME] = ""
    prefer_ipv6: Annotated[bool, PREFER_IPV6] = False


def read(file: Path, *arguments: str) -> ParsedSettings:
    from libs.common.settings.process_settings import ProcessSettings

    return read_settings([NamedSettings, ProcessSettings], [f"--cloud-config={file}", *arguments], {})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("global:\n", {}),
        ("global: {}\ntransformations:\n", {}),
        (
            "global:\n  clusterName: prod\n  preferIPv6: true\n",
            {"global.clusterName": "prod", "global.preferIPv6": True},
        ),
        (
            "global:\n  PreferIPv6: true\n",
            {"global.preferIPv6": True},
        ),  # as the reference's own docs write it
        ("Global:\n  CLUSTERNAME: 7\n", {"global.clusterName": "7"}),
        ("global: {clusterName: null, preferIPv6: no}", {"global.preferIPv6": False}),
    ],
)
def test_the_global_part_acts_in_any_letter_case(text: str, values: dict[str, object]):
    assert parse_cloud_config(text, "f").values == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("global:\n\tclusterName: x\n", "f, line 2: not valid YAML: "),
        ("a: [1\n", "f, line 2: not valid YAML: "),
        ("global: 5\n", 'f, line 1: global is "5", not a mapping of keys to values'),
        ("- a\n", "f, line 1: the file is a list, not a mapping of keys to values"),
        ("global:\n  ? [a]\n  : 1\n", "f, line 2: global has a key that is not a plain text"),
        ("a: 1\n---\nb: 2\n", "f, line 2: not valid YAML: "),
        ("x: \x00", "f: not valid YAML: "),
    ],
)
def test_a_broken_file_says_where(text: str, message: str):
    with pytest.raises(CloudConfigError, match=f"^{re.escape(message)}"):
        parse_cloud_config(text, "f")


def test_the_file_wins_over_the_command_line(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    file.write_text("global:\n  clusterName: prod\n  preferipv6: true\n")
    settings = read(file, "--cluster-name=kubernetes").get(NamedSettings)
    assert (settings.cluster_name, settings.prefer_ipv6) == ("prod", True)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for file, why in (
        (tmp_path / "absent", "No such file"),
        (tmp_path, "it is a directory"),
        (binary, "not UTF-8"),
    ):
        with pytest.raises(SettingsError, match=f"--cloud-config: {file}: .*{why}"):
            read(file)


def test_a_mistake_in_the_file_comes_with_all_others(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    file.write_text("globl: {}\n")
    with pytest.raises(SettingsError) as caught:
        read(file, "--bananas", "--v=x")
    assert len(str(caught.value).splitlines()) == 3


def test_a_service_may_take_the_whole_file(tmp_path: Path):
    class RuleSettings(msgspec.Struct, frozen=True):
        file: Annotated[Path | None, CLOUD_CONFIG] = None
        config: CloudConfig = CloudConfig()

    file = tmp_path / "ccm.yaml"
    file.write_text("transformations: [{name: web}, {name: db}]\n")
    settings = read_settings([RuleSettings], [f"--cloud-config={file}"], {}).get(RuleSettings)
    assert settings.file == file
    assert [rule.name for rule in settings.config.rules] == ["web", "db"]
    assert read_settings([RuleSettings], [], {}).get(RuleSettings) == RuleSettings()


def test_what_has_no_effect_in_the_file_is_warned_of(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    file.write_text("global:\n  endpoints: [10.0.0.1]\n")
    (warning,) = read(file).warnings
    assert warning.startswith(f"--cloud-config: {file}, line 2: global.endpoints has no effect: see")
