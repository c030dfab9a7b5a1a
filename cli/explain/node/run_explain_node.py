"""Gathers, explains and prints; writes nothing to the cluster."""

from rich.console import Console

from cli.explain.node.as_json import node_explanation_to_json
from cli.explain.node.from_cluster import NodeQuery, gather_node_evidence
from cli.explain.node.node_explanation import explain_node_evidence
from cli.explain.node.text import format_explanation
from cli.lines import print_json, print_lines
from cli.render.compiled_config import CompiledConfig
from services.lifecycle.decide import DeletionPolicy


def explain_node(
    source: NodeQuery, file: CompiledConfig | None, terms: DeletionPolicy, *, as_json: bool
) -> int:
    """Print the explanation and return the exit status. Raises ClusterUnavailable."""
    explanation = explain_node_evidence(gather_node_evidence(source, file), terms)
    if as_json:
        print_json(node_explanation_to_json(explanation))
    else:
        print_lines(format_explanation(explanation, explanation.evidence.at), Console(highlight=False))
    return explanation.exit_status
