"""Reads the --cloud-config of an installation from the ConfigMap of its chart."""

from typing import Final

from cli.cluster.pod_commands import build_label_selector
from libs.common.kube.api import KubeApi

_FILE: Final = "ccm-config.yaml"  # a key of the ConfigMap


async def read_chart_config(kube: KubeApi, namespace: str, release: str) -> tuple[str, str]:
    """Return the content and the place of the chart's --cloud-config.

    Both are "" if the chart is not installed, or more than once. Raises KubeError.
    """
    maps = [
        each
        async for page in kube.list_config_maps(namespace, build_label_selector(release))
        for each in page.items
    ]
    found = [each for each in maps if _FILE in each.data]
    if len(found) != 1:
        return "", ""
    return found[0].data[_FILE], f"ConfigMap {namespace}/{found[0].metadata.name}"
