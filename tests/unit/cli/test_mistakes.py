"""Mistakes on the command line are named, and no text steers a terminal."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.text import Text

from cli.__main__ import main
from cli.cluster.kube_reader import suggest_name
from cli.config.check_files import format_report, report_to_json
from cli.config.command import check
from cli.config.config_check import check_config
from cli.lines import Line, format_table
from cli.render.compiled_config import compile_config
from cli.render.facts_file import load_samples
from cli.render.output import format_preview, previews_to_json
from cli.render.preview import preview_node
from libs.common.cloud_config.document import CloudConfigError
from services.labeler.core.rules.compilation import RulesError
from tests.builders import NOW
from tests.cli_snapshots import TEXTS, render_lines
from tests.cloud_config_mutations import SEEDS, generate_mutations


def test_a_name_that_is_mistyped_is_told_as_it_is_and_nothing_is_guessed_of_one_like_no_other():
    names = ["web-1", "worker-pool-a-7d9f", "cp-1"]
    assert suggest_name("WEB1", names) == "; did you mean web-1?"
    assert suggest_name("node/cp-1", names) == "; did you mean cp-1?"
    assert suggest_name("db-master", names) == suggest_name("", names) == suggest_name("web-1", []) == "."


@pytest.mark.parametrize(
    ("given", "meant"),
    [("check-config", "config check"), ("explain-node", "explain node"), ("stauts", "status")],
)
def test_a_command_that_does_not_exist_gets_the_one_that_does(given: str, meant: str):
    done = CliRunner().invoke(main, [given, "x"])
    assert (done.exit_code, f"Did you mean '{meant}'?" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("aws-001", "node aws-001"),
        ("node/aws-001", "node aws-001"),
        ("nodes", "node nodes"),
        ("csr-x7k2p", "csr csr-x7k2p"),
        ("certificatesigningrequest/x7k2p", "csr x7k2p"),
        ("certificate x7k2p", "csr x7k2p"),
        ("svc shop", "service shop"),
    ],
)
def test_explain_without_a_known_kind_suggests_the_whole_command(name: str, suggested: str):
    done = CliRunner().invoke(main, ["explain", *name.split()])
    assert done.exit_code == 2
    suggestions = done.stderr.splitlines()[-3:]
    assert suggestions[0] == f"  talos-ccm explain {suggested}"
    assert {each.split()[2] for each in suggestions} == {"node", "csr", "service"}


INSTEAD = "not a regular file: give - to read standard input"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("config check PIPE", INSTEAD),
        ("render PIPE --all-samples", INSTEAD),
        ("status ipam --cloud-config PIPE", INSTEAD),
        ("demo --cloud-config PIPE", INSTEAD),
    ],
)
def test_a_named_pipe_in_place_of_a_file_is_refused_at_once(arguments: str, words: str, tmp_path: Path):
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("transformations: []\n")
    given = arguments.replace("PIPE", str(pipe)).replace("FILE", str(file)).split()
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "explain csr x --csr-allowed-networks=10.0.0.0/8,home",
            '"home" is not a network such as 10.0.0.0/8',
        ),
        ("explain csr x --service-cluster-ip-range=10.0.0.0/33", 'range: "10.0.0.0/33" is not a network'),
        (
            "explain csr x --csr-min-expiration=2h --csr-max-expiration=1h",
            "is longer than --csr-max-expiration",
        ),
        ("explain node x --nats-url=http://nats:80", "not a NATS URL such as nats://host:4222"),
        ("explain node x --cloud-config=/none", "/none: cannot be read"),
        ("explain node x --lifecycle-start-grace=-5m", '"-5m" is not at least 1s'),
        ("status --interval 0s", "is not at least 1s"),
        ("status --interval soon", "'soon' is not a duration"),
        ("status --context other ipam", "--context must follow the subcommand ipam"),
        ("status ipam --cluster-cidr=10.0.0.0/33", "'10.0.0.0/33' is not a network"),
        ("status ipam --cluster-cidr=10.0.0.0/16,10.1.0.0/16", "have several of one family"),
        (
            "status ipam --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=12",
            "a block of /12 is larger than all",
        ),
        ("status ipam --node-cidr-mask-size-ipv6=20", "is no prefix length of a Node's IPv6 block"),
        ("status ipam --pod-cidr-quarantine=0", "is not at least 1s"),
        ("status ipam --cloud-config=none.yaml", "none.yaml: cannot be read: No such file or directory"),
        (
            "render FILE --from-cluster --all-nodes",
            "--from-cluster needs the name of a Node, not --all-nodes",
        ),
        ("demo --nodes=100000", "100000 is not in the range 1<=x<=5000"),
        ("demo --bus=memory --separate", "--bus memory conflicts with --separate"),
        ("demo --real-talos --nodes=51", "--real-talos conflicts with --nodes 51"),
        ("demo --keep-logs FOLDER", "not empty; use a new directory"),
        ("demo --cloud-config FOLDER/mistaken.yaml", 'line 11: transformations[1] has no key "nodeSelectr"'),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(command: str, words: str):
    command = command.replace("FILE", str(TEXTS / "rules.yaml")).replace("FOLDER", str(TEXTS))
    refused = CliRunner().invoke(main, command.split())
    assert refused.exit_code == 2
    assert words in " ".join(refused.stderr.split())


def fails_with(number: int, monkeypatch: pytest.MonkeyPatch) -> Result:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(check, "callback", full)
    return CliRunner().invoke(main, ["config", "check", "-"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_told_in_words(number: int, monkeypatch: pytest.MonkeyPatch):
    done = fails_with(number, monkeypatch)
    assert done.exit_code == 2
    assert done.output == f"Error: cannot write the output: {os.strerror(number)}\n"


def test_any_other_failure_of_the_system_is_not_passed_off_as_that(monkeypatch: pytest.MonkeyPatch):
    done = fails_with(errno.ENOENT, monkeypatch)
    assert isinstance(done.exception, FileNotFoundError)


# ---- lines


HOSTILE = "\x1b[2J\x9b31m\u202egnp\rall is well"


@pytest.mark.parametrize("width", [None, 40])
@pytest.mark.parametrize(
    "lines",
    [
        [Line(0, Text(HOSTILE))],
        [Line(0, Text("said"), Text(HOSTILE))],
        [Line(0, Text(HOSTILE), is_unbroken=True)],
        list(
            format_table(
                ("NAME", "SAID", "WHY"),
                [[HOSTILE, HOSTILE, HOSTILE]],
            )
        ),
    ],
    ids=["text", "label", "command", "table"],
)
def test_nothing_in_a_line_steers_a_terminal(lines: list[Line], width: int | None):
    text = render_lines(lines, width)
    assert "all is well" in " ".join(text.split())
    assert all(each.isprintable() for each in text.replace("\n", ""))


# ---- any file


MUTATIONS = 300
SHOWN = [load_samples()[platform] for platform in ("aws", "container", "nocloud")]


def test_any_file_is_checked_in_whole_lines_and_shown_if_it_can_be_used():
    shown = 0
    for text in (*SEEDS, *generate_mutations(MUTATIONS)):
        found = check_config(text, "f")
        told = [line.text.plain for line in format_report(found, differences=True)]
        assert all(line.startswith("f:") and line.isprintable() for line in told), text
        assert report_to_json([found], [])["files"][0]["usable"] == (not found.mistakes)
        used = None
        with suppress(CloudConfigError, RulesError):
            used = compile_config(text, "f")
        assert used or found.mistakes, "the labeler takes a file without mistakes"
        for node in SHOWN if used else ():
            assert used
            seen = preview_node(node, used, now=NOW)
            assert all(line.text.plain.isprintable() for line in format_preview(seen, used)), text
            assert previews_to_json([seen], (), used)["nodes"][0]["name"] == seen.name
            shown += 1
    assert shown > len(SEEDS)
