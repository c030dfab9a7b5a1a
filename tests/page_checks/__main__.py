"""`python -m tests.page_checks PAGE NAME COMMAND...`: runs the commands of a page, and checks the result.

One process does what `make` does in several: the modules are loaded once.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from libs.common.cloud_config.schema import render_schema
from libs.testbed.helm import embedded_chart, renders
from tools import metrics_page, platform_samples
from tools.service_table.__main__ import render_files

ROOT: Final = Path(__file__).parents[2]
Files = Iterator[tuple[Path, str]]


def _render_manifests() -> Files:
    """Yield what `make manifests` writes without helm."""
    yield from render_files()
    yield renders.PAGE, renders.render_values_doc()
    yield embedded_chart.EMBEDDED, embedded_chart.render_embedded()


def _render_samples() -> Files:
    yield platform_samples.SAMPLES, platform_samples.render_samples()
    page = platform_samples.PAGE
    yield page, platform_samples.render_platforms_page(page.read_text())


def _render_metrics_page() -> Files:
    yield metrics_page.PAGE, metrics_page.render_metrics_page()


def _render_schema() -> Files:
    yield ROOT / "docs/cloud-config.schema.json", render_schema()


COMMANDS: Final[dict[str, Callable[[], Files]]] = {
    "make manifests": _render_manifests,
    "make metrics-page": _render_metrics_page,
    "make render-samples": _render_samples,
    "make cloud-config-schema": _render_schema,
}


def main(page: str, name: str, *commands: str) -> None:
    """Write the files of the commands. Then check the files of all commands, and what the page promises."""
    for command in commands:
        for path, content in COMMANDS[command]():
            path.write_text(content)
    import_module(f"tests.page_checks.{page}").check(name)
    for command in COMMANDS.keys() - commands:
        for path, content in COMMANDS[command]():
            assert path.read_text() == content, f"{path.name} needs `{command}`"


if __name__ == "__main__":
    main(*sys.argv[1:])
