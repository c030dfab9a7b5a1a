"""Every attempt of a hostile machine, in the order of docs/threat-model.md."""

from tests.integration.hostile.attacker import Attacker
from tests.integration.hostile.attempts import Attempt
from tests.integration.hostile.node_attempts import NODE_ATTEMPTS
from tests.integration.hostile.request_attempts import REQUEST_ATTEMPTS
from tests.integration.hostile.talos_attempts import TALOS_ATTEMPTS

MACHINE_ATTEMPTS: tuple[Attempt[Attacker], ...] = (*REQUEST_ATTEMPTS, *NODE_ATTEMPTS, *TALOS_ATTEMPTS)
