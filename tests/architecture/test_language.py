"""No path of a machine, no registry, no module named `utils`; what pages and docstrings name exists."""

import ast
import re
import sys

from tests.architecture.sources import ROOT, list_tracked_files, sources

# Spelled in pieces, so that this file passes its own test.
HOSTS = ["py" + "pi.org", "files.python" + "hosted.org", "proxy." + "golang.org", "registry." + "npmjs.org"]
PATHS = ["/" + "root/", "/" + "work/", "/" + "tmp/brief"]
WORDS = [r"\bsub-?" + r"agents?\b", r"\bclau" + r"de\b", r"\bLL" + r"Ms?\b"]
FORBIDDEN = re.compile("|".join([*map(re.escape, HOSTS + PATHS), *WORDS]), re.IGNORECASE)
NAMES = {"utils", "helpers", "base", "manager", "misc", "common_utils"}


def test_no_file_names_this_machine_or_a_registry():
    names = [name for name in list_tracked_files() if not name.endswith(".webp")]  # of any bytes
    texts = {name: (ROOT / name).read_bytes().decode(errors="replace") for name in names}
    assert not [f"{name}: {match[0]}" for name, text in texts.items() for match in FORBIDDEN.finditer(text)]


def test_no_module_has_a_name_that_fits_any_project():
    assert not [s.module for s in sources("libs", "services", "cli") if s.module.split(".")[-1] in NAMES]


def test_every_type_that_a_docstring_names_by_its_module_exists():
    ours = list(sources("libs", "services", "cli", "tools", "tests"))
    dotted = re.compile(r"`([a-z]\w*(?:\.[a-z]\w*)*)\.([A-Z]\w*)`")
    wrong = {
        f"{s.module}: {module}.{name}"
        for s in ours
        if dotted.search(s.path.read_text())  # most modules name none and need not be parsed
        for node in s.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for module, name in dotted.findall(ast.get_docstring(node) or "")
        if module.split(".")[0] not in (s.imported_roots | sys.stdlib_module_names) - {"libs", "services"}
        if not any(f".{each.module}".endswith(f".{module}") and name in _names_in(each.tree) for each in ours)
    }
    assert not wrong


def _names_in(tree: ast.Module) -> set[str]:
    """Types, constants and functions at the top level of a module."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_every_path_in_a_page_or_makefile_exists():
    named = re.compile(r"(?<!Create `)(?<![\w./-])(?:libs|services|cli|tests|bench|docs|mk)/[\w./-]*\w")
    missing = {
        f"{name}: {path}"
        for name in list_tracked_files()
        if name.endswith((".md", ".mk")) or name == "Makefile"
        for path in named.findall((ROOT / name).read_text())
        if path != "services/status"  # a subresource of Kubernetes
        if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()
    }
    assert not missing


def test_every_link_of_a_page_leads_to_a_file_and_a_heading():
    broken = set[str]()
    for name in list_tracked_files():
        if not name.endswith(".md"):
            continue
        page = ROOT / name
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
            file = page.parent / target if target else page
            if not file.exists() or (anchor and anchor not in _list_anchors(file.read_text())):
                broken.add(f"{name}: {target}#{anchor}")
    assert not broken


def _list_anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings}


def test_every_function_on_the_way_of_a_node_exists():
    rows = _rows_of_the_way()
    assert len(rows) > 15
    for _, path, names in rows:
        missing = set(re.findall(r"`([^`]+)`", names)) - _functions_in(path)
        assert not missing, path


def test_every_function_of_a_failure_is_in_the_row_that_it_names():
    functions: dict[str, set[str]] = {}
    for numbers, path, _ in _rows_of_the_way():
        for number in numbers.split(" and "):
            functions.setdefault(number, set()).update(_functions_in(path))
    _, _, failures = _way_of_a_node().partition("### When something fails")
    named = re.findall(r"(\d+) `(\w+(?:\.\w+)?)`", failures)
    assert len(named) > 25
    missing = [f"{number} {name}" for number, name in named if name not in functions.get(number, ())]
    assert not missing


def _way_of_a_node() -> str:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    return page.partition("## From watch to write: one Node")[2].partition("\n## ")[0]


def _rows_of_the_way() -> list[tuple[str, str, str]]:
    """Return number, file and functions of each row."""
    return re.findall(r"^\| ([\w ]+) \| `([^`]+\.py)` \| ([^|]+) \|", _way_of_a_node(), re.MULTILINE)


def _functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return _names_in(tree) | {
        f"{each.name}.{method.name}"
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }
