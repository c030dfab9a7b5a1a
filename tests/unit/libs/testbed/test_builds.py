"""Programs of the testbed are built once; what compose needs of the machine, credentials and Nodes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from libs.common.contract.services import SERVICES
from libs.testbed.cache import CommandFailed, get_cache_dir, get_or_make
from libs.testbed.compose.credentials import write_credentials
from libs.testbed.compose.nodes import list_missing
from libs.testbed.control_plane.build import (
    MACHINES,
    GoProgram,
    build_program,
    find_go_toolchain,
)
from libs.testbed.kubelet_node import UNINITIALIZED

GOOD = 'package main\n\nfunc main() { println("built") }\n'
_PRINTS_WORD = "func main() { println(words.Word) }\n"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Our programs are in no cache yet; Go keeps its own, else it would compile its runtime for each test."""
    of_go = subprocess.run(
        [find_go_toolchain(MACHINES).path, "env", "GOCACHE"], check=True, capture_output=True
    )
    monkeypatch.setenv("GOCACHE", of_go.stdout.decode().strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return get_cache_dir()


def a_program(folder: Path, source: str = GOOD) -> GoProgram:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module example\n\ngo 1.26.0\n")
    (folder / "main.go").write_text(source)
    return GoProgram("example", folder)


def kept(cache: Path) -> set[Path]:
    return {path for path in cache.iterdir() if path.suffix != ".lock"}


async def test_a_program_is_built_once_even_by_two_builders_at_once(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = a_program(tmp_path / "module")
    first, second = await asyncio.gather(build_program(program), build_program(program))
    again = await build_program(program)
    assert first == second == again
    assert os.access(first, os.X_OK)
    assert capfd.readouterr().err.count("building the testbed's example (once") == 1
    assert kept(cache) == {first}


async def test_a_changed_module_that_a_program_imports_makes_it_another_program(
    cache: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library" / "words"
    library.mkdir(parents=True)
    (library.parent / "go.mod").write_text("module library\n\ngo 1.26.0\n")
    program = a_program(tmp_path / "module", 'package main\n\nimport "library/words"\n\n' + _PRINTS_WORD)
    with (program.module / "go.mod").open("a") as requirements:
        requirements.write("\nrequire library v0.0.0\n\nreplace library => ../library\n")
    program = msgspec.structs.replace(program, imports=(library.parent,))
    built = set()
    for word in ("one", "two"):
        (library / "words.go").write_text(f'package words\n\nconst Word = "{word}"\n')
        built.add(await build_program(program))
    assert kept(cache) == built
    assert len(built) == 2


def test_an_incomplete_folder_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(path: Path, fails: bool) -> None:
        path.mkdir()
        (path / str(fails)).touch()
        if fails:
            raise CommandFailed("the network is gone")

    with pytest.raises(CommandFailed):
        get_or_make("wheels", "wheels", partial(make, fails=True))
    again = get_or_make("wheels", "wheels", partial(make, fails=False))
    assert [each.name for each in again.iterdir()] == ["False"]


# ---- compose


NAMES = tuple(spec.service for spec in SERVICES)
ISSUED = {"metadata": {"name": "csr-1"}, "status": {"certificate": "AAAA"}}


def node_of(**spec: Any) -> dict[str, Any]:
    usable = {"providerID": "aws:///a/i-1", "podCIDRs": ["10.244.0.0/24"]}
    return {"metadata": {"name": "web-1"}, "spec": usable | spec}


BARE = {"metadata": {"name": "web-1"}, "spec": {"taints": [UNINITIALIZED]}}
OTHER_TAINT = {"key": "example.com/other", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("nodes", "requests", "missing"),
    [
        ([node_of(taints=[OTHER_TAINT])], [ISSUED], ""),
        ([BARE], [{"metadata": {"name": "csr-1"}}], "initialization, providerID, podCIDRs, certificate"),
        ([], [ISSUED], "Node"),
        ([node_of()], [ISSUED | {"metadata": {"name": "csr-2"}}], "certificate"),
    ],
    ids=["usable", "nothing", "no Node", "certificate of another node"],
)
def test_the_missing_parts_of_a_node_are_listed(nodes: list[Any], requests: list[Any], missing: str):
    lacks = [f"web-1 lacks {missing}"] if missing else []
    assert list_missing(nodes, requests, {"csr-1": "web-1"}) == lacks


def test_each_service_gets_its_own_identity_and_no_other_and_only_the_owner_can_read_it(tmp_path: Path):
    for name in ("control-plane", "nodes", "talos", *NAMES):
        (tmp_path / name).mkdir()
    for name in NAMES:
        (tmp_path / "keys" / f"compose-nats-{name}").mkdir(parents=True)
        (tmp_path / "keys" / f"compose-nats-{name}" / "seed.nk").write_text(f"seed of {name}")
    (tmp_path / "keys" / "ca.crt").write_text("who vouches for NATS")
    write_credentials(tmp_path, NAMES)
    for name in NAMES:
        has = {path.name for path in (tmp_path / name).iterdir()}
        assert has == {"seed.nk", "ca.crt", "talosconfig" if name == "metadata" else "kubeconfig"}
        assert (tmp_path / name / "seed.nk").read_text() == f"seed of {name}"
        if name != "metadata":
            config = yaml.safe_load((tmp_path / name / "kubeconfig").read_text())
            assert config["users"][0]["name"] == f"talos-ccm-{name}"
    written = [path for name in ("nodes", *NAMES) for path in (tmp_path / name).iterdir()]
    assert {path.stat().st_mode & 0o077 for path in written} == {0}
