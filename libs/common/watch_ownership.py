"""Which Nodes are a controller's by the --cloud-config file as it is now; a bad file changes nothing."""

import logging
from collections.abc import Callable
from pathlib import Path

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.rule import CloudConfig
from libs.common.node import Node
from libs.common.ownership import why_not_owned
from libs.common.settings.cloud_config_file import CloudConfigFile

log = logging.getLogger(__name__)


class WatchOwnership:
    """For services that read nothing else of the file; what is wrong with it, the labeler tells."""

    def __init__(
        self,
        path: Path | None,
        file: CloudConfig,
        *,
        controller: str,
        changed: Callable[[], None],
        look_seconds: float = 1.0,
    ) -> None:
        """`file` is what it says at the start, `controller` a proper name; `changed` hears of other Nodes."""
        self._path = path
        self._file = file
        self._controller = controller
        self._changed = changed
        self._look_seconds = look_seconds
        self._held = file.ownership.of(controller)

    def why_not_owned(self, node: Node) -> str:
        """Why nothing may be written for that Node, "" if it may."""
        return why_not_owned(self._held, node)

    @property
    def is_said(self) -> bool:
        """Whether there may be Nodes that are not ours."""
        return bool(self._held.selector or self._held.provider_id_schemes)

    async def run(self) -> None:
        """Look at the file until cancelled; without one there is nothing to do."""
        if self._path is not None:
            file = CloudConfigFile(self._path, self._file)
            await file.watch(self._look_at, look_seconds=self._look_seconds)

    def _look_at(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            log.warning(
                "the --cloud-config file has mistakes: whose Nodes are whose stays as it was",
                extra={"mistake": found.mistakes[0] if found.mistakes else ""},
            )
            return
        held = found.ownership.of(self._controller)
        if held != self._held:
            self._held = held
            log.info("the --cloud-config file says anew which Nodes are ours")
            self._changed()
