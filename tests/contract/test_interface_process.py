"""The interface of a process: environment variables, default paths, ports, and the health endpoints."""

import ast
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import click
import pytest

from cli.__main__ import main
from libs.common.contract.services import SERVICES, WATCHER
from libs.common.kube.load_kube_config import SERVICE_ACCOUNT
from libs.common.service.health import HealthServer
from libs.common.service.readiness import Readiness
from libs.common.settings.open_paths import OPEN_PATHS
from libs.common.settings.read_settings import list_options
from libs.talos.talosconfig import APID_PORT, SERVICE_ACCOUNT_FILE, list_candidate_files
from tests.architecture.sources import sources
from tests.contract.interface_snapshot import assert_unchanged
from tests.contract.test_interface_cli import contexts
from tests.contract.test_interface_flags import SETTINGS

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")
_PATH = re.compile(r"/(data|dev|etc|opt|proc|run|srv|sys|tmp|usr|var)(/[A-Za-z0-9._-]+)*/?")


def looked_up(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of variables that code reads from a mapping whose name contains `environ`."""
    for node in nodes:
        key: ast.expr | None = None
        match node:
            case ast.Call(func=ast.Attribute(attr="get" | "pop", value=mapping), args=[key, *_]):
                pass
            case ast.Call(func=ast.Attribute(attr="getenv", value=mapping), args=[key, *_]):
                mapping = ast.Name("environ")
            case ast.Subscript(value=mapping, slice=key):
                pass
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[mapping]):
                pass
            case _:
                continue
        if isinstance(key, ast.Constant) and "environ" in ast.unparse(mapping):
            yield str(key.value)


def handed_on(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of variables that code sets for a program that it starts."""
    for node in nodes:
        if isinstance(node, ast.Dict) and any(
            key is None and "env" in ast.unparse(value)
            for key, value in zip(node.keys, node.values, strict=True)
        ):
            yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def absolute_paths(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PATH.fullmatch(node.value):
            yield node.value


def shipped() -> list[tuple[ast.AST, ...]]:
    """The nodes of each module that a user installs and runs."""
    return [
        source.nodes for source in sources("cli", "services", "libs/common", "libs/talos", "libs/gotemplate")
    ]


def test_the_environment_variables_are_unchanged():
    """A flag's variable is in the snapshot of the flags as well; these are all that anything reads."""
    modules = shipped()
    of_flags = {
        each.flag.env for kinds in SETTINGS.values() for each in list_options(*kinds) if each.flag.env
    }
    of_options = {
        str(parameter.envvar)
        for context in contexts(main, "talos-ccm")
        for parameter in context.command.get_params(context)
        if isinstance(parameter, click.Option) and parameter.envvar
    }
    found = {
        "flags of services": sorted(of_flags),
        "options of talos-ccm": sorted(of_options),
        "read by name": sorted({name for nodes in modules for name in looked_up(nodes)}),
        "set for credential plugins": sorted({name for nodes in modules for name in handed_on(nodes)}),
    }
    assert all(_VARIABLE.fullmatch(name) for names in found.values() for name in names)
    assert_unchanged("environment", found)


def test_the_default_paths_are_unchanged():
    home = Path("/home/operator")
    paths = {
        "talosconfig": list(map(str, list_candidate_files({}, home))),
        "talosconfig, TALOSCONFIG": list(map(str, list_candidate_files({"TALOSCONFIG": "/named"}, home))),
        "talosconfig, TALOS_HOME": list(map(str, list_candidate_files({"TALOS_HOME": "/talos"}, home))),
        "talosconfig in a pod": str(SERVICE_ACCOUNT_FILE),
        "service account in a pod": str(SERVICE_ACCOUNT),
        "in the code": sorted({path for nodes in shipped() for path in absolute_paths(nodes)}),
    }
    assert_unchanged("paths", paths)


def test_the_default_ports_are_unchanged():
    """Ports with a flag of their own are in the snapshot of the flags."""
    health = {each.service: each.port for each in SERVICES}
    ports = {"health": health | {"all-in-one": WATCHER.port}, "Talos API": APID_PORT}
    assert_unchanged("ports", ports)


async def test_the_health_endpoints_are_unchanged():
    problems: list[str] = []
    readiness = Readiness(time.monotonic)
    readiness.add_check("labeler", lambda: tuple(problems))
    readiness.mark_started()
    server = HealthServer(readiness, None)
    port = await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            well = {path: await answered(session, path) for path in (*OPEN_PATHS, "/", "/no-such-path")}
            verbose = {path: await answered(session, f"{path}?verbose") for path in ("/livez", "/readyz")}
            problems.append("<reason>")
            ill = {path: await answered(session, path) for path in OPEN_PATHS}
    finally:
        await server.stop()
    assert_unchanged("health", {"ready": well, "ready, ?verbose": verbose, "not ready": ill})


async def answered(session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    async with session.get(path) as answer:
        text = await answer.text()
        found: dict[str, Any] = {"status": answer.status, "type": answer.headers["Content-Type"]}
        return found if path == "/metrics" or answer.status == 404 else found | {"body": text}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("os.environ.get('A_B', '')", ["A_B"]),
        ("environment['A_B']", ["A_B"]),
        ("'A_B' in os.environ", ["A_B"]),
        ("os.getenv('A_B')", ["A_B"]),
        ("labels.get('A_B')", []),
    ],
)
def test_variables_are_found_in_code(code: str, names: list[str]):
    assert list(looked_up(ast.walk(ast.parse(code)))) == names
