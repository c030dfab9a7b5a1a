"""Checks whether the image in the chart's values can be an image of this controller. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

from cli.config.chart_schema import CHART, make_finding
from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import Finding

_REFERENCE_IMAGE: Final = re.compile(r"(^|/)siderolabs/talos-cloud-controller-manager([:@].*)?$")
_VERSION: Final = re.compile(r"v[0-9]+([.-]|$)|[0-9]+\.[0-9]")
_NUMBER: Final = re.compile(r"[0-9]+")


def find_image_mistakes(image: dict[str, Any]) -> Iterator[Finding]:
    """Yield mistakes that the chart rejects."""
    repository = _text(image.get("repository"))
    if image.get("digest"):
        return  # a digest names one exact image
    if _REFERENCE_IMAGE.search(repository):
        problem = f"{truncate_line(repository)} is the reference's image. Set your own image"
        if not repository.startswith("ghcr.io/"):
            problem += ". If your own image has this name, set image.digest"
        yield make_finding("image.repository", problem)


def find_image_warnings(image: dict[str, Any]) -> Iterator[Finding]:
    """Yield a tag that may not exist."""
    tag = _text(image.get("tag"))
    if image.get("digest") or tag in ("", CHART["appVersion"]):
        return
    is_other = _has_other_major(tag)
    why = f" is not a version of this controller ({CHART['appVersion']})" if is_other else ""
    yield make_finding(
        "image.tag", f"{truncate_line(tag)}{why}: remove it unless you have pushed an image with this tag"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""  # the schema rejects other types


def _has_other_major(tag: str) -> bool:
    """Whether the tag is a version with another major number than this chart, by the chart's own rule."""
    return bool(_VERSION.match(tag)) and _NUMBER.findall(tag)[0] != _NUMBER.findall(CHART["appVersion"])[0]
