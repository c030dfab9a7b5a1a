"""Values of flags, settings from the --cloud-config file, and flags of several services that conflict."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.go_values import format_duration, parse_duration
from libs.common.service.run_process import select_definitions
from libs.common.settings.command_line import parse_command_line, parse_list
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError, read_settings
from services.csr.service import CSR_DEFINITION
from services.csr.settings import CsrSettings
from services.definitions import find_conflicts
from services.metadata.service import METADATA_DEFINITION
from services.metadata.settings import MetadataSettings
from tests.unit.libs.common.settings.test_settings import GardenerSettings, read


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("5m0s", 300.0),
        ("10s", 10.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("300ms", 0.3),
        ("2us", 2e-6),
        ("2µs", 2e-6),
        ("1h15m30.918s", 4530.918),
        ("-10s", -10.0),
        ("+10s", 10.0),
        (".5s", 0.5),
        ("1.s", 1.0),
    ],
)
def test_go_durations(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "m", "5x", "1m 30s", "--5s", "+-5s", "5s ", "٥s", "1e3s", "s5", "9" * 9999]
)
def test_what_go_refuses_we_refuse(text: str):
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["2562048h", "-9999999999h", "9999999999999999999s"])
def test_a_duration_that_go_cannot_count_is_refused(text: str):
    with pytest.raises(ValueError, match="a duration of less than 2562047h"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**7))
def test_a_duration_survives_the_way_there_and_back(milliseconds: int):
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, rel=1e-5
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(300.0, "5m0s"), (0.0, "0s"), (0.5, "500ms"), (3723.5, "1h2m3.5s"), (15.0, "15s")]
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str):
    assert format_duration(seconds) == text


def test_lists_are_comma_separated_and_forgive_spaces():
    assert parse_list(" a, b,,c ,") == ("a", "b", "c")
    assert parse_list("") == ()


@given(st.lists(st.text(max_size=8), max_size=8))
def test_no_command_line_breaks_the_reader(arguments: list[str]):
    words = parse_command_line(arguments, {"v": True, "leader-elect": False})
    total = len(words.flags) + len(words.unknown) + len(words.mistakes)
    assert words.wants_help or words.wants_version or (total > 0) is bool(arguments)


# ---- the file


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
    settings = read(f"--cloud-config={file}", "--cluster-name=kubernetes").get(GardenerSettings)
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
            read(f"--cloud-config={file}")


def test_what_has_no_effect_in_the_file_is_warned_of(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    file.write_text("global:\n  endpoints: [10.0.0.1]\n")
    (warning,) = read(f"--cloud-config={file}").warnings
    assert warning.startswith(f"--cloud-config: {file}, line 2: global.endpoints has no effect: see")


# ---- conflicts


RANGE = "--service-cluster-ip-range=10.96.0.0/12,fd00:96::/108"


def found(*arguments: str) -> tuple[str, ...]:
    reading = read_settings([MetadataSettings, CsrSettings, ProcessSettings], arguments, {})
    return find_conflicts(select_definitions((METADATA_DEFINITION, CSR_DEFINITION), reading), reading)


def test_without_talos_csr_in_the_same_process_needs_the_service_networks():
    (sentence,) = found("--without-talos")
    assert sentence.startswith("--without-talos needs --service-cluster-ip-range")


@pytest.mark.parametrize(
    "arguments",
    [(), (RANGE,), ("--without-talos", RANGE), ("--without-talos", "--controllers=cloud-node")],
    ids=["with-talos", "with-both", "with-the-range", "without-csr"],
)
def test_these_go_together(arguments: tuple[str, ...]):
    assert found(*arguments) == ()


def test_a_csr_alone_starts_without_the_range_and_takes_it():
    assert read_settings([CsrSettings], [], {}).get(CsrSettings).service_cluster_ip_range == ()
    taken = read_settings([CsrSettings], [RANGE], {}).get(CsrSettings).service_cluster_ip_range
    assert taken == ("10.96.0.0/12", "fd00:96::/108")
    # host bits are cleared, as ipam does with the same flag
    read_settings([CsrSettings], ["--service-cluster-ip-range=10.96.0.1/12"], {})
    with pytest.raises(SettingsError, match='--service-cluster-ip-range: "home" is not a network'):
        read_settings([CsrSettings], ["--service-cluster-ip-range=home"], {})
