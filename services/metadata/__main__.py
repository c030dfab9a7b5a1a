"""`python -m services.metadata`: one process that asks machines."""

import sys

from libs.common.process.run import run_process
from libs.common.process.service import Run
from libs.common.wiring import METADATA
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings

RUN = Run(wiring=METADATA, settings=MetadataSettings, build=MetadataService)

if __name__ == "__main__":
    sys.exit(run_process(RUN))
