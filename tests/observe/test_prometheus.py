"""The Prometheus of these tests: how it is found, and that it scrapes and evaluates rules."""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web

from libs.testbed.ports import allocate_port
from libs.testbed.prometheus import PrometheusUnavailable, QueryRejected, find_or_fetch, start_prometheus
from tests.bus_actors import wait_until
from tests.observe.observed_cluster import RULES


@contextlib.asynccontextmanager
async def metrics_page(text: str) -> AsyncIterator[str]:
    """Serve the text; yields the address."""
    app = web.Application()

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    port = allocate_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_it_scrapes_its_targets_and_keeps_the_labels_of_a_service(tmp_path: Path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: Cold, expr: degrees < 0, labels: {severity: low}}]}]\n"
    )
    async with (
        metrics_page('degrees{service="cellar"} -3\n') as cold,
        metrics_page("degrees 20\n") as warm,
        start_prometheus({"a": cold, "b": warm}, rules=rules, run_dir=tmp_path) as prometheus,
    ):

        async def both_are_known():
            known = {(sample.labels["target"], sample.value) for sample in await prometheus.query("degrees")}
            return known == {("a", -3), ("b", 20)}

        await wait_until(both_are_known, "both are scraped")
        assert [sample.value for sample in await prometheus.query('degrees{service="cellar"}')] == [-3]
        assert await prometheus.get_target_states() == {"a": True, "b": True}

        async def it_is_cold():
            seen = [
                (alert.name, alert.labels["service"], alert.state) for alert in await prometheus.list_alerts()
            ]
            return seen == [("Cold", "cellar", "firing")]

        await wait_until(it_is_cold, "it is cold")
        prometheus.set_targets({"b": warm})

        async def it_is_not_cold_any_more():
            return not await prometheus.list_alerts()

        await wait_until(it_is_not_cold_any_more, "it is not cold any more")
        with pytest.raises(QueryRejected, match="parse error"):
            await prometheus.query("degrees{")


def test_a_named_program_is_used_and_the_other_one_is_found_beside_it(tmp_path: Path):
    for name in ("prometheus", "promtool"):
        (tmp_path / name).symlink_to(sys.executable)
    for name in ("prometheus", "promtool"):
        programs = find_or_fetch({name.upper(): str(tmp_path / name), "PATH": "/nowhere"})
        assert programs == (Path(sys.executable).resolve(), Path(sys.executable).resolve())


def test_a_named_program_that_does_not_exist_is_reported(tmp_path: Path):
    with pytest.raises(
        PrometheusUnavailable,
        match=r"PROMETHEUS: /nowhere/p is not an executable program.*PROMETHEUS=/path/to",
    ):
        find_or_fetch({"PROMETHEUS": "/nowhere/p", "PATH": "/nowhere"})


def test_without_debians_tools_the_fix_is_named():
    with pytest.raises(
        PrometheusUnavailable, match=r"lacks apt-get and dpkg-deb\n.*PROMETHEUS=/path/to/prometheus"
    ):
        find_or_fetch({"PATH": "/nowhere"})


FOLDER: Final = Path(__file__).parent


def promtool(*arguments: str | Path) -> str:
    """Run promtool, which must succeed, and return its output."""
    argv = [find_or_fetch().promtool, *arguments]
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_nothing_wrong_with_the_rules():
    assert "SUCCESS" in promtool("check", "rules", RULES)


def test_every_test_case_of_the_alerts_passes():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")
