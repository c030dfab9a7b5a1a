"""Gathers, explains, shows. Writes to no cluster."""

from datetime import UTC, datetime

import msgspec
from rich.console import Console

from cli.explain.as_json import explanation_json
from cli.explain.explanation import explain
from cli.explain.from_cluster import Source, gather
from cli.explain.text import of_explanation
from cli.lines import print_json, print_lines
from libs.common.cloud_config.model import Ownership
from services.csr.decision import ApprovalPolicy


def explain_csr(source: Source, policy: ApprovalPolicy, ownership: Ownership, *, as_json: bool) -> int:
    """Show it; the exit status. Raises CannotAsk."""
    evidence = msgspec.structs.replace(gather(source), ownership=ownership)
    explanation = explain(evidence, policy)
    if as_json:
        print_json(explanation_json(explanation))
    else:
        print_lines(of_explanation(explanation, datetime.now(UTC)), Console(highlight=False))
    return explanation.exit_status
