"""Gathers, explains and prints; writes nothing to the cluster."""

from datetime import UTC, datetime

import msgspec
from rich.console import Console

from cli.explain.csr.as_json import request_explanation_to_json
from cli.explain.csr.from_cluster import RequestQuery, gather_request_evidence
from cli.explain.csr.request_explanation import explain_request
from cli.explain.csr.text import format_request_explanation
from cli.lines import print_json, print_lines
from libs.common.cloud_config.model import Ownership
from services.csr.decision import ApprovalPolicy


def explain_csr(source: RequestQuery, policy: ApprovalPolicy, ownership: Ownership, *, as_json: bool) -> int:
    """Print the explanation and return the exit status. Raises ClusterUnavailable."""
    evidence = msgspec.structs.replace(gather_request_evidence(source), ownership=ownership)
    explanation = explain_request(evidence, policy)
    if as_json:
        print_json(request_explanation_to_json(explanation))
    else:
        print_lines(format_request_explanation(explanation, datetime.now(UTC)), Console(highlight=False))
    return explanation.exit_status
