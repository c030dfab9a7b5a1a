"""What docs/contributing/add-a-template-function.md promises."""

from pathlib import Path

from cli.config.config_check import check_config
from libs.gotemplate import parse, record, render

ROOT = Path(__file__).parents[2]
GO_PROGRAM = ROOT / "tests/unit/libs/gotemplate/go_templates/generate"


def check(name: str) -> None:
    """Check the result of the function, the report of `config check`, the Go program and the docs."""
    template = f'{{{{ {name} "a b c" }}}}'
    assert render(parse(template), record("Machine", {})) == "abc"
    report = check_config(f"transformations: [{{annotations: {{a: '{template}'}}}}]", "f")
    assert not report.mistakes
    (found,) = (each for each in report.differences if f"calls {name}," in each.problem)
    assert found.path == 'transformations[0].annotations["a"]'
    assert f'"{name}":' in (GO_PROGRAM / "functions.go").read_text()
    assert f"{{{{{name} " in (GO_PROGRAM / "function_cases.go").read_text()
    assert f"`{name}`" in (ROOT / "docs/rules-reference.md").read_text()
