"""A changed file is found and read once, and no bytes of YAML break its reader."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig
from libs.common.safe_yaml import MAX_BYTES, YamlError, read_yaml
from libs.common.settings.cloud_config_reloader import CloudConfigReloader, UnreadableFile, read_config_file
from libs.talos.talosconfig import CredentialsError, parse_talosconfig
from libs.testbed.child_process import HANG_SECONDS
from tests.service_flow import MountedConfigMap

ONE = "transformations: [{name: one}]\n"
TWO = "transformations: [{name: two}]\n"
BAD = "transformations: [{nam: one}]\n"


def names(found: CloudConfig | CloudConfigError | None) -> list[str]:
    assert isinstance(found, CloudConfig)
    return [rule.name for rule in found.rules]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ccm.yaml"
    path.write_text(ONE)
    return path


def watched(path: Path) -> CloudConfigReloader:
    """The file is watched, with what it says known, and was looked at twice."""
    watch = CloudConfigReloader(path, parse_cloud_config(path.read_text(), str(path)))
    assert watch.poll() is None
    assert watch.poll() is None
    return watch


def second_look(watch: CloudConfigReloader) -> CloudConfig | CloudConfigError | None:
    """What a change comes to: it counts when two looks in a row find the same."""
    assert watch.poll() is None
    return watch.poll()


def test_what_changed_between_reading_and_watching_is_found(file: Path):
    watch = CloudConfigReloader(file, parse_cloud_config(ONE, str(file)))
    file.write_text(TWO)
    assert names(second_look(watch)) == ["two"]
    assert watch.poll() is None


def test_a_config_map_s_swap_of_symlinks_is_a_change(tmp_path: Path):
    mounted = MountedConfigMap(tmp_path, ONE)
    watch = watched(mounted.path)
    mounted.replace_text(TWO)
    assert names(second_look(watch)) == ["two"]
    mounted.replace_text(TWO)
    assert [watch.poll(), watch.poll()] == [None, None]  # another directory with the same content
    mounted.replace_text(ONE)
    assert names(second_look(watch)) == ["one"]


def test_an_edit_within_the_same_size_and_time_is_a_change(file: Path):
    watch = watched(file)
    before = file.stat()
    with file.open("r+") as opened:
        opened.write(TWO)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert names(second_look(watch)) == ["two"]


def test_a_file_that_is_being_written_counts_when_it_is_written(file: Path):
    watch = watched(file)
    for piece in ("", "transformations:\n", "transformations:\n- name: two\n", TWO):
        file.write_text(piece)
        assert watch.poll() is None
    assert names(watch.poll()) == ["two"]


def test_a_file_that_is_missing_for_a_moment_is_not_reported(file: Path):
    watch = watched(file)
    aside = file.rename(file.with_suffix(".aside"))
    assert watch.poll() is None
    aside.rename(file)
    assert [watch.poll(), watch.poll()] == [None, None]


def test_a_bad_file_is_reported_once_and_a_good_one_after_it_even_if_it_is_the_old_one(file: Path):
    watch = watched(file)
    file.write_text(BAD)
    found = second_look(watch)
    assert isinstance(found, CloudConfigError)
    assert found.mistakes[0].startswith(f'{file}, line 1: transformations[0] has no key "nam"')
    assert [watch.poll(), watch.poll()] == [None, None]
    file.write_text(ONE)
    assert names(second_look(watch)) == ["one"]
    assert watch.poll() is None


def test_an_emptied_file_that_stays_empty_says_that_there_are_no_rules(file: Path):
    watch = watched(file)
    file.write_text("")
    assert second_look(watch) == CloudConfig()


def test_a_file_that_is_gone_is_reported_with_its_reason(file: Path):
    watch = watched(file)
    file.unlink()
    found = second_look(watch)
    assert isinstance(found, CloudConfigError)
    assert found.mistakes == [f"{file}: cannot be read: No such file or directory"]


def test_no_more_of_a_huge_file_is_read_than_shows_that_it_is_too_long(file: Path):
    watch = watched(file)
    os.truncate(file, 8 << 30)  # a sparse file
    content = read_config_file(file)
    assert isinstance(content, bytes)
    assert len(content) == MAX_BYTES + 1
    found = second_look(watch)
    assert isinstance(found, CloudConfigError)
    assert found.mistakes == [f"{file}: it is longer than {MAX_BYTES} bytes"]


def test_what_is_no_file_neither_blocks_nor_leaks(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path, reason in (
        (pipe, "it is not a regular file"),
        (Path("/dev/zero"), "it is not a regular file"),
        (tmp_path, "it is a directory"),
        (loop, "Too many levels of symbolic links"),
    ):
        assert read_config_file(path) == UnreadableFile(reason)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_changes_are_called_back_while_the_file_is_watched(tmp_path: Path):
    mounted = MountedConfigMap(tmp_path, ONE)
    heard: asyncio.Queue[CloudConfig | CloudConfigError] = asyncio.Queue()
    watch = CloudConfigReloader(mounted.path, parse_cloud_config(ONE, str(mounted.path)))
    watching = asyncio.create_task(watch.watch(heard.put, poll_seconds=0.01))
    try:
        mounted.replace_text(TWO)
        assert names(await asyncio.wait_for(heard.get(), HANG_SECONDS)) == ["two"]
        mounted.replace_text(BAD)
        assert isinstance(await asyncio.wait_for(heard.get(), HANG_SECONDS), CloudConfigError)
        mounted.replace_text(TWO)
        assert names(await asyncio.wait_for(heard.get(), HANG_SECONDS)) == ["two"]
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    assert heard.empty()


# ---- YAML


class Document(msgspec.Struct):
    context: str = ""
    contexts: dict[str, object] = {}


LAUGHS = "a0: &a0 {x: y}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 9)
)
BOMBS = {
    "deep-lists": "[" * 200_000,  # ends the process in the C composer
    "deep-mappings": "a: " + "{a: " * 100_000,
    "deep-blocks": "\n".join(" " * level + "a:" for level in range(1000)),
    "merged-aliases": LAUGHS,
    "many-aliases": "a: &a [x]\nb: [" + "*a, " * 1000 + "]",
    "huge": "a: " + "x" * (1 << 20),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_would_break_the_parser_is_refused_before_it_is_built(bomb: str):
    with pytest.raises(YamlError):
        read_yaml(BOMBS[bomb].encode(), Document)
    with pytest.raises(CredentialsError, match=r"^f: not a talosconfig: "):
        parse_talosconfig(BOMBS[bomb].encode(), source="f")
    with pytest.raises(CloudConfigError, match=r"^f"):
        parse_cloud_config(BOMBS[bomb], "f")


@pytest.mark.parametrize("value", ["2024-13-45", "0x_", "!!bool x", "!!timestamp x", "!!int x", "!!float x"])
def test_a_value_that_the_library_stumbles_over_is_a_mistake_in_the_file(value: str):
    with pytest.raises(YamlError) as caught:
        read_yaml(f"context: {value}".encode(), Document)
    assert "\n" not in str(caught.value)
    with pytest.raises(CredentialsError, match=r"^f: not a talosconfig: "):
        parse_talosconfig(f"context: {value}".encode(), source="f")
    with pytest.raises(CloudConfigError, match=r"preferIPv6 is .*, not true or false"):
        parse_cloud_config(f"global: {{preferIPv6: {value}}}", "f")


def test_anchors_that_people_write_are_read():
    text = b"base: &base {a: 1}\ncontexts: {one: *base, two: {<<: *base, b: 2}}\n"
    assert read_yaml(text, Document).contexts == {"one": {"a": 1}, "two": {"a": 1, "b": 2}}
