"""A real Prometheus with given targets, and promtool: from PATH, or else from Debian."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import yaml

from libs.testbed.cache import CommandFailed, get_or_make, run_command
from libs.testbed.child_process import HANG_SECONDS, ChildProcess, is_serving, wait_until
from libs.testbed.pki import write_private
from libs.testbed.ports import allocate_port

_ANSWER: Final = aiohttp.ClientTimeout(total=HANG_SECONDS)
_TOOLS: Final = ("apt-get", "dpkg-deb")

_FIX: Final = "install Debian's package prometheus, or put prometheus and promtool on PATH"


class QueryRejected(RuntimeError):
    """Prometheus rejected a query; the message is its response."""


class PrometheusPrograms(NamedTuple):
    """Two programs of the same version."""

    prometheus: Path
    promtool: Path


class MetricSample(NamedTuple):
    """The value of one series at the time of the query."""

    labels: Mapping[str, str]
    value: float


class Alert(NamedTuple):
    """One alert that is pending or firing."""

    name: str
    labels: Mapping[str, str]
    state: str  # pending or firing


def find_or_fetch() -> PrometheusPrograms:
    """Return the programs from PATH, or from Debian's package. Raises CommandFailed."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    if found[0] and found[1]:
        return PrometheusPrograms(Path(found[0]), Path(found[1]))
    try:
        programs = _unpack_package() / "usr/bin"
    except CommandFailed as error:
        raise CommandFailed(
            f"no Prometheus on PATH, and the download failed: {error}\nThe fix: {_FIX}"
        ) from error
    return PrometheusPrograms(programs / "prometheus", programs / "promtool")


class PrometheusServer:
    """One server. Its targets can change while it runs."""

    def __init__(self, run_dir: Path, session: aiohttp.ClientSession) -> None:
        self.run_dir = run_dir
        self.port = allocate_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._session = session

    def set_targets(self, targets: Mapping[str, str]) -> None:
        """Replace the targets: name -> host:port. The name becomes the label `target`."""
        groups = [{"targets": [address], "labels": {"target": name}} for name, address in targets.items()]
        write_private(self.run_dir / "targets.json", json.dumps(groups).encode())

    async def query(self, promql: str) -> list[MetricSample]:
        """Return the result of an instant query: a vector, or a scalar as one sample without labels."""
        data = await self._request("/api/v1/query", {"query": promql})
        if data["resultType"] == "scalar":
            return [MetricSample({}, float(data["result"][1]))]
        return [MetricSample(each["metric"], float(each["value"][1])) for each in data["result"]]

    async def list_alerts(self) -> list[Alert]:
        """Return all alerts that are pending or firing."""
        data = await self._request("/api/v1/alerts", {})
        return [Alert(each["labels"]["alertname"], each["labels"], each["state"]) for each in data["alerts"]]

    async def get_target_states(self) -> Mapping[str, bool]:
        """Return for each scraped target whether it answered the last time."""
        return {each.labels["target"]: each.value == 1 for each in await self.query("up")}

    async def _request(self, path: str, parameters: Mapping[str, str]) -> Any:
        async with self._session.get(self.url + path, params=parameters, timeout=_ANSWER) as answer:
            text = await answer.text()
        if answer.status != 200:
            raise QueryRejected(f"{parameters.get('query', path)}: {answer.status} {text.strip()}")
        return json.loads(text)["data"]


@contextlib.asynccontextmanager
async def start_prometheus(
    targets: Mapping[str, str], *, rules: Path, scrape_seconds: float
) -> AsyncIterator[PrometheusServer]:
    """Run a server that scrapes `targets` (name -> host:port) and evaluates the file `rules` as often.

    It is configured as in docs and chart: `honor_labels`, OpenMetrics, exemplars.
    """
    programs = await asyncio.to_thread(find_or_fetch)
    with tempfile.TemporaryDirectory(prefix="talos-ccm-prometheus-") as own:
        folder = Path(own)
        async with aiohttp.ClientSession() as session:
            server = PrometheusServer(folder, session)
            server.set_targets(targets)
            config = _build_configuration(folder, rules, scrape_seconds)
            (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
            is_ready = partial(is_serving, f"{server.url}/-/ready")
            child = ChildProcess.start(
                "prometheus", [programs.prometheus, *_build_flags(server.port)], folder
            )
            try:
                await wait_until(is_ready, child, what="ready", every_seconds=0.05)
                yield server
            finally:
                await child.kill()


def _build_configuration(folder: Path, rules: Path, scrape_seconds: float) -> dict[str, Any]:
    every = f"{round(scrape_seconds * 1000)}ms"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules.resolve())],
        "scrape_configs": [
            {
                "job_name": "talos-ccm",
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(folder / "targets.json")], "refresh_interval": "1s"}],
            }
        ],
    }


def _build_flags(port: int) -> list[str]:
    return [
        "--config.file=prometheus.yaml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]


def _unpack_package() -> Path:
    """Return the folder with the files of Debian's package, downloaded once per user.

    apt downloads and verifies it. Nothing is installed, so root is not needed; nor are package lists, which
    a bare Debian image lacks. Raises CommandFailed.
    """
    lacks = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacks:
        raise CommandFailed(f"this machine is not like Debian: it lacks {' and '.join(lacks)}")
    return get_or_make(f"prometheus-{_identify_system()}", "fetching Debian's package prometheus", _fetch)


def _fetch(out: Path) -> None:
    download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name)
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        run = partial(run_command, cwd=folder, env={**os.environ, "LC_ALL": "C"})
        try:
            run(download)
        except CommandFailed:  # package lists are missing or outdated, and only root may change them
            run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", *own, "update"])
            run([*download, *own])
        (deb,) = folder.glob("prometheus_*.deb")
        run(["dpkg-deb", "-x", deb, out])


def _identify_system() -> str:
    """Return an ID of the system: in a shared cache, programs of one may not run on another."""
    release = Path("/etc/os-release")
    told = release.read_bytes() if release.exists() else b""
    return hashlib.sha256(told + platform.machine().encode()).hexdigest()[:16]


def main() -> None:
    """Find or download the programs and print their paths."""
    try:
        programs = find_or_fetch()
    except CommandFailed as error:
        sys.exit(str(error))
    for program in programs:
        print(program)
        subprocess.run([program, "--version"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
