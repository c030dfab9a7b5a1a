"""Merges several kubeconfig files by kubernetes_asyncio; imported only where there are several."""

from collections.abc import Iterable
from pathlib import Path

from kubernetes_asyncio.config.kube_config import ConfigNode, KubeConfigMerger


class KubeconfigMerger(KubeConfigMerger):
    """Merges files in this order; the first entry of a name wins, and each one remembers its file.

    The library's own constructor splits a path at ":", and logs a warning about a missing file.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = []
        self.config_files = {}
        self.config_merged = None
        for path in paths:
            self.load_config(str(path))

    def list_entries(self, section: str) -> list[ConfigNode]:
        return list(self.config_merged.value[section]) if self.config_merged else []
