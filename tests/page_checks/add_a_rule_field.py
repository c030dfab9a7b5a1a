"""What the section on rule fields of docs/contributing/add-a-fact-or-rule-field.md promises."""

from pathlib import Path

from libs.common.cloud_config.document import parse_cloud_config
from services.labeler.rules.application import apply_rules
from services.labeler.rules.compilation import compile_rules
from tests.builders import make_facts

ROOT = Path(__file__).parents[2]


def check(name: str) -> None:
    """Check that the key has its effect, and the docs."""
    for value, labels in (("true", {}), ("false", {"team": "web"})):
        config = parse_cloud_config(f"transformations: [{{{name}: {value}, labels: {{team: web}}}}]", "f")
        assert not config.warnings
        assert apply_rules(compile_rules(config), make_facts()).labels == labels
    assert f"`{name}: true`" in (ROOT / "docs/rules.md").read_text()
