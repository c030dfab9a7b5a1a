"""The chart's NOTES.txt, which helm prints after an installation, rendered without a cluster."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from libs.testbed.helm.chart import CHART, ChartValues, parse_manifests, render_text

# `helm template` omits NOTES.txt, so a copy of the chart renders it into an object.
_OBJECT: Final = 'kind: Notes\ntext: {{ tpl (.Files.Get "NOTES.copy") . | toJson }}\n'


def notes(values: ChartValues) -> str:
    """The notes for these values. Raises HelmError."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "chart"
        shutil.copytree(CHART, chart)
        (chart / "templates" / "NOTES.txt").rename(chart / "NOTES.copy")
        (chart / "templates" / "notes.yaml").write_text(_OBJECT)
        (found,) = [each for each in parse_manifests(render_text(values, chart)) if each["kind"] == "Notes"]
    text: str = found["text"]
    return text
