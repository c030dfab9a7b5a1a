"""Gathers, explains, shows. Writes to no cluster."""

from rich.console import Console

from cli.explain.node.as_json import explanation_json
from cli.explain.node.explanation import explain
from cli.explain.node.from_cluster import Source, gather
from cli.explain.node.text import of_explanation
from cli.lines import print_json, print_lines
from cli.render.config_in_use import ConfigInUse
from services.lifecycle.decide import DeletionPolicy


def explain_node(source: Source, file: ConfigInUse | None, terms: DeletionPolicy, *, as_json: bool) -> int:
    """Show it; the exit status. Raises CannotAsk."""
    explanation = explain(gather(source, file), terms)
    if as_json:
        print_json(explanation_json(explanation))
    else:
        print_lines(of_explanation(explanation, explanation.evidence.at), Console(highlight=False))
    return explanation.exit_status
