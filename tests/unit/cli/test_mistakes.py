"""What `talos-ccm` says to who has mistyped a name, and where there is no room for what it has to say."""

import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.__main__ import main
from cli.cluster.kube_reader import suggest_name
from cli.config.command import check
from tests.cli_screen import TEXTS

NAMES = ["web-1", "worker-pool-a-7d9f", "cp-1"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("web1", "web-1"),
        ("WEB-1", "web-1"),
        ("node/cp-1", "cp-1"),
        ("worker-pool-a-7d9", "worker-pool-a-7d9f"),
    ],
)
def test_a_name_that_is_mistyped_is_told_as_it_is(said: str, meant: str):
    assert suggest_name(said, NAMES) == f"; did you mean {meant}?"


def test_nothing_is_guessed_of_a_name_that_is_like_no_other():
    assert suggest_name("db-master", NAMES) == suggest_name("", NAMES) == suggest_name("web-1", []) == "."


@pytest.mark.parametrize("arguments", ["config check PIPE", "render PIPE --all-samples"])
def test_a_pipe_in_place_of_a_config_file_gets_the_hint_for_standard_input(arguments: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(main, arguments.replace("PIPE", str(tmp_path / "pipe")).split())
    assert "give - to read standard input" in done.stderr


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("aws-001", "node aws-001"),
        ("node/aws-001", "node aws-001"),
        ("nodes", "node nodes"),
        ("csr-x7k2p", "csr csr-x7k2p"),
        ("certificatesigningrequest/x7k2p", "csr x7k2p"),
    ],
)
def test_explain_with_a_name_and_no_kind_suggests_the_whole_command(name: str, suggested: str):
    done = CliRunner().invoke(main, ["explain", name])
    assert done.exit_code == 2
    _, first, second = done.stderr.splitlines()[-3:]
    assert first == f"  talos-ccm explain {suggested}"
    assert second.endswith(suggested.rpartition(" ")[2])


@pytest.mark.parametrize(
    "arguments",
    [
        "config check PIPE",
        "render PIPE --all-samples",
        "render FILE --facts PIPE",
        "render FILE --all-samples --save-facts PIPE",
        "status --kubeconfig PIPE",
        "status --nats-nkey-file PIPE",
        "explain csr a --talosconfig PIPE",
        "status ipam --cloud-config PIPE",
        "demo --cloud-config PIPE",
    ],
)
def test_a_named_pipe_in_place_of_a_file_is_refused_at_once(arguments: str, tmp_path: Path):
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("transformations: []\n")
    words = arguments.replace("PIPE", str(pipe)).replace("FILE", str(file)).split()
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "not a regular file" in done.stderr


def test_the_output_of_a_command_in_place_of_a_file_is_read():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        file.write('{"facts": {}}')
    done = CliRunner().invoke(main, ["render", str(TEXTS / "rules.yaml"), "--facts", f"/dev/fd/{reader}"])
    os.close(reader)
    assert "facts" in done.stderr
    assert "regular file" not in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("explain csr", "Missing argument 'NAME'"),
        (
            "explain csr x --csr-allowed-networks=10.0.0.0/8,home",
            '"home" is not a network such as 10.0.0.0/8',
        ),
        ("explain csr x --service-networks=10.0.0.0/33", 'range: "10.0.0.0/33" is not a network'),
        ("explain csr x --csr-max-expiration=soon", '"soon" is not a duration such as'),
        ("explain csr x --csr-min-expiration=-5m", '"-5m" is not at least 10m0s'),
        (
            "explain csr x --csr-min-expiration=2h --csr-max-expiration=1h",
            "is longer than --csr-max-expiration",
        ),
        ("explain csr x -o yaml", "'yaml' is not one of 'text', 'json'"),
        ("explain node", "Missing argument 'NAME'"),
        ("explain node x --nats-url=http://nats:80", "not a NATS URL such as nats://host:4222"),
        ("explain node x --cloud-config=/none", "/none: cannot be read"),
        ("explain node x --lifecycle-start-grace=-5m", '"-5m" is not at least 1s'),
        ("explain node x --lifecycle-evidence-time=99999999h", "is not a duration of less than 2562047h"),
        ("status --interval 0s", "is not between 1s and 100000h"),
        ("status --interval soon", "'soon' is not a duration"),
        ("status -o yaml", "'yaml' is not one of 'text', 'json'"),
        ("status --context other ipam", "--context must follow the subcommand ipam"),
        ("status ipam --cluster-cidr=10.0.0.0/33", "'10.0.0.0/33' is not a network"),
        ("status ipam --cluster-cidr=10.0.0.0/16,10.1.0.0/16", "have several of one family"),
        (
            "status ipam --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=12",
            "a block of /12 is larger than all",
        ),
        ("status ipam --node-cidr-mask-size-ipv6=20", "is no prefix length of a Node's IPv6 block"),
        ("status ipam --pod-cidr-quarantine=soon", "'soon' is not a duration"),
        ("status ipam --pod-cidr-quarantine=0", "is not between 1s and 100000h"),
        ("status ipam --pod-cidr-quarantine=900000h", "is not between 1s and 100000h"),
        ("status ipam --cloud-config=none.yaml", "none.yaml: cannot be read: No such file or directory"),
        (
            "render FILE --from-cluster --all-nodes",
            "--from-cluster needs the name of a Node, not --all-nodes",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(command: str, words: str):
    refused = CliRunner().invoke(main, command.replace("FILE", str(TEXTS / "rules.yaml")).split())
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
