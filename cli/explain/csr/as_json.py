"""The explanation of a request as JSON. Pure."""

from typing import Any

import msgspec

from cli.explain.csr.advice import suggest_actions
from cli.explain.csr.request_explanation import RequestExplanation


def request_explanation_to_json(explanation: RequestExplanation) -> dict[str, Any]:
    """Return the same content as the text output. Kubernetes names are as in Kubernetes."""
    filed, asked = explanation.csr, explanation.certificate_request
    return {
        "name": filed.name,
        "node": filed.signing_request.node_name or None,
        "username": filed.spec.username,
        "signerName": filed.spec.signer_name,
        "creationTimestamp": msgspec.to_builtins(filed.metadata.creation_timestamp),
        "dnsNames": list(asked.dns_names) if asked else None,
        "ipAddresses": list(asked.ips) if asked else None,
        "otherNames": list(asked.other_sans) if asked else None,
        "key": asked.key if asked else None,
        "usages": list(filed.spec.usages),
        "expirationSeconds": filed.spec.expiration_seconds,
        "conditions": msgspec.to_builtins(filed.status.conditions),
        "issued": filed.is_issued,
        "state": explanation.state,
        "supersededBy": explanation.superseded_by or None,
        "machinesAsked": list(explanation.machines),
        "machinesNotAsked": explanation.unqueried_machines,
        "checks": msgspec.to_builtins(explanation.checks),
        "decision": {
            "now": explanation.verdict,
            "check": explanation.check or None,
            "reason": explanation.reason,
        },
        "advice": list(suggest_actions(explanation)),
    }
