"""A real Prometheus that scrapes what a test names, and promtool: Debian's, unless the user names others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import yaml

from libs.testbed.children import Child, free_port, until
from libs.testbed.debian_package import NoPackage, unpacked

_ANSWER: Final = aiohttp.ClientTimeout(total=30)
_START_SECONDS: Final = 60  # one on an idle machine

_FIX: Final = (
    "install Debian's package prometheus, or put prometheus and promtool on PATH, "
    "or name them: PROMETHEUS=/path/to/prometheus PROMTOOL=/path/to/promtool"
)


class NoPrometheus(RuntimeError):
    """There is none on this machine and none could be fetched; the message says why, and the fix."""


class QueryRefused(RuntimeError):
    """Prometheus did not answer a query; the message is what it said."""


class Programs(NamedTuple):
    """Both are of one version."""

    prometheus: Path
    promtool: Path


class Sample(NamedTuple):
    """One series' value at the time of the query."""

    labels: Mapping[str, str]
    value: float


class Alert(NamedTuple):
    """One alert that is not inactive."""

    name: str
    labels: Mapping[str, str]
    state: str  # pending or firing


def find_or_fetch(environment: Mapping[str, str] = os.environ) -> Programs:
    """Those that the environment names, those on PATH, else Debian's package. Raises NoPrometheus."""
    path = environment.get("PATH")
    named = environment.get("PROMETHEUS"), environment.get("PROMTOOL")
    if any(named):
        return _named(*named, path)
    found = shutil.which("prometheus", path=path), shutil.which("promtool", path=path)
    if found[0] and found[1]:
        return Programs(Path(found[0]), Path(found[1]))
    try:
        programs = unpacked("prometheus", path=path) / "usr/bin"
    except NoPackage as error:
        raise NoPrometheus(
            f"no Prometheus on PATH, and none to be fetched: {error}\nThe fix: {_FIX}"
        ) from error
    return Programs(programs / "prometheus", programs / "promtool")


class Prometheus:
    """One server. What it scrapes may change while it runs."""

    def __init__(self, run_dir: Path, session: aiohttp.ClientSession) -> None:
        self.run_dir = run_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._session = session

    def scrape(self, targets: Mapping[str, str]) -> None:
        """From now on these and no others: name -> host:port. The name becomes the label `target`."""
        groups = [{"targets": [address], "labels": {"target": name}} for name, address in targets.items()]
        fresh = self.run_dir / "targets.json.fresh"
        fresh.write_text(json.dumps(groups))
        fresh.replace(self.run_dir / "targets.json")

    async def query(self, promql: str) -> list[Sample]:
        """What an instant query gives now: a vector, or a scalar as one sample without labels."""
        data = await self._ask("/api/v1/query", {"query": promql})
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]

    async def alerts(self) -> list[Alert]:
        """All alerts that are pending or firing."""
        data = await self._ask("/api/v1/alerts", {})
        return [Alert(each["labels"]["alertname"], each["labels"], each["state"]) for each in data["alerts"]]

    async def up(self) -> Mapping[str, bool]:
        """For each target that was scraped, whether it answered the last time."""
        return {each.labels["target"]: each.value == 1 for each in await self.query("up")}

    async def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            async with self._session.get(f"{self.url}/-/ready", timeout=_ANSWER) as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def _ask(self, path: str, parameters: Mapping[str, str]) -> Any:
        async with self._session.get(self.url + path, params=parameters, timeout=_ANSWER) as answer:
            told = await answer.text()
        if answer.status != 200:
            raise QueryRefused(f"{parameters.get('query', path)}: {answer.status} {told.strip()}")
        return json.loads(told)["data"]


@contextlib.asynccontextmanager
async def prometheus_running(
    targets: Mapping[str, str],
    *,
    rules: Path | None = None,
    scrape_seconds: float = 0.5,
    run_dir: Path | None = None,
) -> AsyncIterator[Prometheus]:
    """A server that scrapes `targets` (name -> host:port), and judges by the file `rules` as often.

    As docs and chart want it: `honor_labels`, OpenMetrics, exemplars. `run_dir` has to be empty.
    """
    programs = await asyncio.to_thread(find_or_fetch)
    with tempfile.TemporaryDirectory(prefix="talos-ccm-prometheus-") as own:
        folder = run_dir or Path(own)
        async with aiohttp.ClientSession() as session:
            server = Prometheus(folder, session)
            server.scrape(targets)
            config = _configuration(folder, rules, scrape_seconds)
            (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
            child = Child.start("prometheus", [programs.prometheus, *_flags(server.port)], folder)
            try:
                await until(server.ready, child, what="ready", seconds=_START_SECONDS, every_seconds=0.05)
                yield server
            finally:
                await child.kill()


def _configuration(folder: Path, rules: Path | None, scrape_seconds: float) -> dict[str, Any]:
    every = f"{round(scrape_seconds * 1000)}ms"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules.resolve())] if rules else [],
        "scrape_configs": [
            {
                "job_name": "talos-ccm",
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(folder / "targets.json")], "refresh_interval": "1s"}],
            }
        ],
    }


def _flags(port: int) -> list[str]:
    return [
        "--config.file=prometheus.yaml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]


def _named(prometheus: str | None, promtool: str | None, path: str | None) -> Programs:
    """What of the two is not named lies beside the other, or on PATH."""
    found = []
    for name, own, other in (("prometheus", prometheus, promtool), ("promtool", promtool, prometheus)):
        beside = Path(other).parent / name if other else None
        word = own or (str(beside) if beside and beside.exists() else name)
        program = shutil.which(word, path=path)
        if program is None:
            raise NoPrometheus(f"{name.upper()}: {word} is no program that can be run. The fix: {_FIX}")
        found.append(Path(program).resolve())
    return Programs(*found)


def main() -> None:
    """Fetch them if need be, and say where they are."""
    try:
        programs = find_or_fetch()
    except NoPrometheus as error:
        sys.exit(str(error))
    for program in programs:
        print(program)
        subprocess.run([program, "--version"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
