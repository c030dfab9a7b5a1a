"""The diagnosis as JSON: every check, in the order of importance. Pure."""

from typing import Any

from cli.cluster.installation import Installation
from cli.doctor.check_report import Diagnosis


def diagnosis_to_json(diagnosis: Diagnosis, installation: Installation) -> dict[str, Any]:
    """Return the JSON document; `state` is ok, wrong or unknown."""
    return {
        "namespace": installation.namespace,
        "release": installation.release,
        "services": list(installation.services),
        "checks": [
            {
                "name": check.name,
                "state": check.state,
                "asks": check.question,
                "findings": [
                    {
                        "state": finding.state,
                        "seen": finding.observation,
                        "fix": finding.fix or None,
                        "commands": list(finding.commands),
                    }
                    for finding in check.findings
                ],
            }
            for check in diagnosis.checks
        ],
    }
