"""deploy/compose and the Dockerfile: valid, nothing privileged, own credentials, locked packages."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from libs.common.contract.services import CONSOLE_PORT, NAMED_SERVICES
from libs.testbed.compose.console_port import LISTEN_PORT, listen
from libs.testbed.containers.__main__ import COMPOSE
from libs.testbed.containers.images import build_compose_environment
from libs.testbed.control_plane.build import find_go_toolchain
from libs.testbed.ports import allocate_port
from tests.architecture.sources import ROOT

FOLDER = ROOT / "deploy" / "compose"
FILE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
PARTS: dict[str, dict[str, Any]] = FILE["services"]
OURS = sorted({wiring.service for wiring in NAMED_SERVICES} & PARTS.keys())
WITH_AN_IMAGE_OF_ITS_OWN_WAYS = {"lgtm"}  # its image needs its own user and a writable root


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The schema in the module of the compose that is built here, at the version in go.sum."""
    go = str(find_go_toolchain(COMPOSE).path)
    command = [go, "mod", "download", "-json", "github.com/compose-spec/compose-go/v2"]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    module = subprocess.run(
        command, cwd=COMPOSE.module, env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(
        (Path(json.loads(module.stdout)["Dir"]) / "schema" / "compose-spec.json").read_text()
    )
    return found


def test_the_file_is_valid_by_the_compose_schema(schema: dict[str, Any]):
    jsonschema.Draft7Validator(schema).validate(FILE)


@pytest.mark.parametrize("name", sorted(PARTS.keys() - WITH_AN_IMAGE_OF_ITS_OWN_WAYS))
def test_nothing_is_privileged(name: str):
    part = PARTS[name]
    assert part["user"] == "10258:10258"
    assert part["read_only"] is True
    assert part["cap_drop"] == ["ALL"]
    assert part["security_opt"] == ["no-new-privileges:true"]
    assert part.keys().isdisjoint({"privileged", "cap_add", "pid", "ipc", "devices"})
    assert part.get("network_mode", "service:console-port") == "service:console-port"


def test_every_published_port_is_on_the_loopback():
    published = [port for part in PARTS.values() for port in part.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_console_keeps_its_loopback_and_only_the_container_of_its_port_publishes_it():
    assert PARTS["console"]["network_mode"] == "service:console-port"
    assert [flag for flag in PARTS["console"]["command"] if flag.startswith("--console-")] == []
    assert PARTS["console-port"]["ports"] == [f"127.0.0.1:{CONSOLE_PORT}:{LISTEN_PORT}"]
    assert "volumes" not in PARTS["console-port"]
    assert "console" in PARTS["console-port"]["networks"]["default"]["aliases"], "Prometheus scrapes it"


async def test_the_container_of_the_port_forwards_both_ways_also_after_the_console_was_away():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.readline())
        writer.close()

    async def ask(port: int, line: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line)
        got = await reader.read()
        writer.close()
        return got

    console_port = allocate_port()
    async with await listen("127.0.0.1", 0, console_port) as forwarder:
        port = forwarder.sockets[0].getsockname()[1]
        for line in (b"first\n", b"second\n"):
            assert await ask(port, b"") == b"", "no console, so the connection ends"
            async with await asyncio.start_server(answer, "127.0.0.1", console_port):
                assert await ask(port, line) == b"got " + line


def test_a_service_mounts_only_its_own_credentials():
    assert set(OURS) == {wiring.service for wiring in NAMED_SERVICES}
    for name in OURS:
        assert PARTS[name]["volumes"] == [f"{name}:/cluster/{name}:ro"]


def test_only_containers_that_create_credentials_can_write_them():
    writers = {
        name for name, part in PARTS.items() for volume in part.get("volumes", ()) if volume[-3:] != ":ro"
    }
    assert writers == {"nats-keys", "credentials"}


def test_exactly_the_running_services_get_credentials_and_all_but_the_console_permissions():
    assert sorted(PARTS["credentials"]["command"][3:]) == OURS
    assert sorted(PARTS["rights"]["command"][3:]) == sorted(set(OURS) - {"console"})
    assert not any("kubeconfig" in word for word in PARTS["console"]["command"])


def test_each_folder_of_credentials_belongs_to_our_user_in_the_image():
    """Otherwise its volume belongs to root, and our user cannot write into it."""
    makers = (PARTS["nats-keys"], PARTS["credentials"])
    mounted = {volume.split(":")[1] for part in makers for volume in part["volumes"]}
    made = re.search(
        r"install -d -o 10258 -g 10258 -m 0700 ([^\n]+\\\n[^\n]+)", (ROOT / "Dockerfile").read_text()
    )
    assert made is not None
    assert set(made[1].replace("\\\n", " ").split()) - {"/cluster"} == mounted


@pytest.mark.parametrize("name", OURS)
def test_each_service_gets_only_flags_that_it_has(name: str):
    python, module_flag, module, *flags = PARTS[name]["command"]
    assert (python, module_flag, module) == ("python", "-m", f"services.{name}")
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], check=True, capture_output=True, text=True
    )
    known = set(re.findall(r"--[a-z0-9-]+", done.stdout))
    assert {flag.partition("=")[0] for flag in flags} <= known


def test_prometheus_scrapes_the_port_of_each_service():
    configs = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"]
    assert sorted(configs[0]["targets"]) == [f"{name}:10458" for name in OURS]
    assert all("--secure-port=10458" in PARTS[name]["command"] for name in OURS)


def test_compose_local_replaces_every_image_of_a_registry():
    images = "\n".join(part["image"] for part in PARTS.values())
    replaced = {name for name in build_compose_environment() if name.endswith("_IMAGE")}
    ours_and_observability = {"TALOS_CCM_IMAGE", "TALOS_CCM_TESTBED_IMAGE", "LGTM_IMAGE"}
    assert set(re.findall(r"\$\{([A-Z_]+)", images)) == replaced | ours_and_observability


def test_every_image_of_a_registry_is_pinned():
    defaults = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", part["image"]) for part in PARTS.values()]
    assert all(re.search(r":v?\d+\.\d+\.\d+|:dev$", image) for image in defaults), defaults


def need(path: Path, *tools: str) -> subprocess.CompletedProcess[str]:
    """Run need.sh with only that folder on PATH."""
    for tool in ("echo", "tail"):
        (path / tool).symlink_to(f"/usr/bin/{tool}")
    return subprocess.run(
        ["/bin/sh", FOLDER / "need.sh", "compose-up", *tools],
        env={"PATH": str(path), "DOCKER_HOST": f"unix://{path}/missing.sock"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("docker", "code", "words"),
    [
        ("", 1, ("compose-up: there is no 'docker' on the PATH\n",)),
        (
            "echo 'Cannot connect to the Docker daemon at x' >&2; exit 1",
            1,
            ("no container engine answers: Cannot connect to the Docker daemon at x", "make compose-local"),
        ),
        ('[ "$1" = version ]', 1, ("docker has no compose plugin",)),
        ("exit 0", 0, ()),
    ],
    ids=["no docker", "no engine", "no compose", "all tools"],
)
def test_a_missing_tool_is_named(docker: str, code: int, words: tuple[str, ...], tmp_path: Path):
    if docker:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "docker").chmod(0o755)
    done = need(tmp_path, "docker", "compose")
    assert done.returncode == code
    assert all(text in done.stderr for text in words)
    assert bool(done.stderr) == bool(words)


DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
LOCKS = ("requirements-image.lock", "requirements-build.lock")
STEPS = [step for line in DOCKERFILE.splitlines() if line.startswith("RUN ") for step in line.split("&&")]


def pinned(lock: str) -> dict[str, str]:
    """The versions by name; each entry must have a hash."""
    text = (ROOT / lock).read_text()
    found = re.findall(r"^([\w.-]+)==([^\s;]+)[^\n]*\\\n +--hash=sha256:", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)), "an entry without a hash"
    return dict(found)


def test_build_requirements_are_locked_at_the_versions_of_the_main_lock():
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    built_with, main = pinned("requirements-build.lock"), pinned("requirements.lock")
    assert set(backend) <= built_with.keys()
    assert {name: main.get(name, version) for name, version in built_with.items()} == built_with


@pytest.mark.parametrize("step", [step for step in STEPS if " pip " in step])
def test_steps_that_download_require_hashes_and_steps_that_build_do_not_download(step: str):
    assert ("--require-hashes" in step) != ("--no-index" in step)
    if "--require-hashes" in step:
        assert any(f"-r {lock}" in step for lock in LOCKS)
    if " pip wheel " in step:
        assert "--no-build-isolation" in step


def test_each_image_gets_shared_objects_that_were_stripped_and_then_imported():
    (stage,) = [text for text in DOCKERFILE.split("\nFROM ") if "-exec strip " in text]
    assert stage.splitlines()[0].endswith(" AS dependencies")
    (line,) = [line for line in stage.splitlines() if line.startswith("RUN find ")]
    strip, check = re.split(r" +&& ", line)
    assert strip.startswith("RUN find /app -name '*.so*' -type f -exec strip ")
    assert check == "/app/bin/python extension_modules.py"
    for later in ("installed", "installed-testbed"):
        (start,) = re.findall(rf"^FROM (.+) AS {later}$", DOCKERFILE, re.MULTILINE)
        assert start in {"dependencies", "installed"}


def test_dockerignore_includes_every_copied_file():
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for line in DOCKERFILE.splitlines()
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    ]
    assert set(LOCKS) < set(copied)
    for source in copied:
        assert (ROOT / source).exists()
        assert any(source == path or source.startswith(f"{path}/") for path in sent), source


def test_the_image_has_every_library_and_only_the_testbed_has_the_simulations():
    stage, _, rest = DOCKERFILE.partition("AS installed\n")[2].partition("AS installed-testbed")
    copied = set(re.findall(r"^COPY (libs/\w+) libs/\w+$", stage, re.MULTILINE))
    libraries = {f"libs/{each.parent.name}" for each in (ROOT / "libs").glob("*/__init__.py")}
    assert copied == libraries - {"libs/testbed"}
    assert "COPY libs/testbed libs/testbed" in rest
