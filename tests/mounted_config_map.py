"""A ConfigMap on disk, changed as the kubelet does it."""

from pathlib import Path


class MountedConfigMap:
    """file -> ..data/file, ..data -> a directory per version."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder = folder
        self._version = 0
        self.path = folder / "ccm-config.yaml"
        self.path.symlink_to(Path("..data") / self.path.name)
        self.replace_text(text)

    def replace_text(self, text: str) -> None:
        """Put another version in place, as the kubelet does: by one rename."""
        self._version += 1
        version = self._folder / f"..version_{self._version}"
        version.mkdir()
        (version / self.path.name).write_text(text)
        (self._folder / "..data_tmp").symlink_to(version.name)
        (self._folder / "..data_tmp").rename(self._folder / "..data")
