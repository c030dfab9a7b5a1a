"""`python -m services`: every service in one process, on one bus and one client of the Kubernetes API."""

import sys

from libs.common.process.run import run_process
from libs.common.process.service import Run
from libs.common.wiring import LABELER, METADATA, WATCHER
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings
from services.watcher.service import WatcherService
from services.watcher.settings import WatcherSettings

if __name__ == "__main__":
    sys.exit(
        run_process(
            Run(wiring=WATCHER, settings=WatcherSettings, build=WatcherService),
            Run(wiring=METADATA, settings=MetadataSettings, build=MetadataService),
            Run(wiring=LABELER, settings=LabelerSettings, build=LabelerService),
            program="python -m services",
        )
    )
