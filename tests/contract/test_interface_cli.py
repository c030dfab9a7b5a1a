"""The interface of `talos-ccm`: commands, options, exit codes, and the files and JSON of its in-pod agent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.__main__ import main
from cli.doctor.check_names import CHECK_NAMES
from cli.doctor.talos_credential_report import TalosCredentialReport
from cli.inside.flow_snapshot import CertificateSnapshot, FlowResult, Kind
from cli.render.facts_file import encode_facts
from cli.render.samples import load_samples
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from tests.cli_screen import TEXTS
from tests.contract.interface_shapes import decoded_shape, domain, key_types, plain
from tests.contract.interface_snapshot import assert_unchanged

NOWHERE = """\
apiVersion: v1
kind: Config
current-context: none
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
"""


def contexts(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """Every command of the tree, with the words that call it."""
    context = click.Context(command, parent, path, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from contexts(inner, f"{path} {name}", context)


def parameters(context: click.Context) -> dict[str, Any]:
    """Each spelling is a key; "also" lists the other spellings of the same option."""
    found = {}
    for parameter in context.command.get_params(context):
        if isinstance(parameter, click.Argument):
            found[parameter.make_metavar(context)] = described(parameter)
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        for name in names:
            also = sorted(set(names) - {name})
            found[name] = described(parameter) | ({"also": also} if also else {})
            if name in parameter.secondary_opts:
                found[name]["negates"] = True
    return found


def described(parameter: click.Parameter) -> dict[str, Any]:
    info = parameter.to_info_dict()
    default = parameter.get_default(click.Context(main), call=False)
    kept: dict[str, Any] = {
        "type": info["type"].get("choices") or info["type"]["name"],
        "bounds": {key: info["type"].get(key) for key in ("min", "max") if info["type"].get(key) is not None},
        "required": parameter.required,
        "environment": parameter.envvar,
        "repeated": info["multiple"] or parameter.nargs != 1,
        "takes no value": info.get("is_flag") or info.get("count"),
        "hidden": info.get("hidden"),
    }
    absent = default is None or "UNSET" in repr(default)
    return {"default": None if absent else plain(default)} | {key: each for key, each in kept.items() if each}


def test_the_commands_and_their_options_are_unchanged():
    tree = {
        context.info_name: {"hidden": context.command.hidden, "parameters": parameters(context)}
        for context in contexts(main, "talos-ccm")
    }
    assert_unchanged("commands", tree)


def test_the_names_of_the_checks_and_samples_are_unchanged():
    names = {
        "doctor --only": list(CHECK_NAMES),
        "render --sample": sorted(load_samples()),
        "inside flow --object": domain(Kind),
    }
    assert_unchanged("commands-names", names)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home from which no cluster, no machine and no NATS answers."""
    for name in ("KUBECONFIG", "TALOSCONFIG", "TALOS_HOME", "TALOS_ENDPOINTS", "NATS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "nowhere").write_text(NOWHERE)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    return tmp_path


def test_the_exit_codes_without_a_cluster_are_unchanged(away: Path):
    mistaken, rules, changed = (
        str(TEXTS / name) for name in ("mistaken.yaml", "rules.yaml", "rules-changed.yaml")
    )
    (away / "good.yaml").write_text("global: {}\n")
    (away / "odd.yaml").write_text("transformations:\n  - labels: {a: '{{ .ProductName }}'}\n")
    good, odd, absent = (str(away / name) for name in ("good.yaml", "odd.yaml", "absent.yaml"))
    cases: dict[str, list[str]] = {
        "--help": ["--help"],
        "--version": ["--version"],
        "unknown command": ["no-such-command"],
        "unknown option": ["status", "--no-such-option"],
        "config check, good": ["config", "check", good],
        "config check, errors": ["config", "check", mistaken],
        "config check, warnings": ["config", "check", odd],
        "config check, warnings, --strict": ["config", "check", "--strict", odd],
        "config check, no such file": ["config", "check", absent],
        "render": ["render", rules, "--sample", "metal"],
        "render, changes, --exit-code": ["render", rules, "--sample", "metal", "--exit-code"],
        "render, no such sample": ["render", rules, "--sample", "none"],
        "render --against, changes": ["render", changed, "--against", rules, "--all-samples"],
        "render --against, changes, --exit-code": [
            *("render", changed, "--against", rules, "--all-samples", "--exit-code")
        ],
        "render --against, no changes, --exit-code": [
            *("render", rules, "--against", rules, "--all-samples", "--exit-code")
        ],
        "render, mistaken rules": ["render", mistaken, "--sample", "metal"],
        "explain csr, no server": ["explain", "csr", "csr-1"],
        "explain node, no server": ["explain", "node", "web-1"],
        "status, no server": ["status"],
        "status ipam, no server": ["status", "ipam"],
        "doctor, no server": ["doctor"],
        "inside flow, no NATS": ["inside", "flow"],
        "inside flow, no such kind": ["inside", "flow", "--object", "pod/web-1"],
        "inside certificates, no talosconfig": ["inside", "certificates"],
        "inside talos, no talosconfig": ["inside", "talos"],
    }
    codes = {case: CliRunner().invoke(main, arguments).exit_code for case, arguments in cases.items()}
    assert_unchanged("exit-codes-talos-ccm", codes)


def test_the_json_of_the_in_pod_agent_is_unchanged():
    """The laptop and the pod may run different versions: fields are only added, each with a default."""
    shapes = {
        "talos-ccm inside flow": decoded_shape(FlowResult),
        "talos-ccm inside certificates": decoded_shape(tuple[CertificateSnapshot, ...]),
        "talos-ccm inside talos": decoded_shape(TalosCredentialReport),
    }
    assert_unchanged("inside-json", shapes)


def test_the_in_pod_agent_prints_that_json(away: Path):
    printed = {}
    for command in ("flow", "certificates", "talos"):
        said = CliRunner().invoke(main, ["inside", command])
        printed[f"talos-ccm inside {command}"] = key_types([json.loads(said.stdout)])
    assert_unchanged("inside-json-printed", printed)


def test_the_facts_file_is_unchanged():
    """`render --save-facts` writes it, `render --facts` reads it; the sample nodes have the same form."""
    shapes = {
        "facts": decoded_shape(MachineFacts),
        "node": decoded_shape(Node),
        "written from the sample nodes": key_types([json.loads(encode_facts(list(load_samples().values())))]),
    }
    assert_unchanged("facts-file", shapes)
