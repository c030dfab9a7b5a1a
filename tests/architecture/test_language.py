"""No path of a machine, no registry host, no module named `utils`; docstrings and paths in pages exist."""

import ast
import re

from tests.architecture.sources import ROOT, sources
from tools.language.check import tracked_files

# Spelled in pieces, so that this file passes its own test.
HOSTS = ["py" + "pi.org", "files.python" + "hosted.org", "proxy." + "golang.org", "registry." + "npmjs.org"]
PATHS = ["/" + "root/", "/" + "work/", "/" + "tmp/brief"]
WORDS = [r"\bsub-?" + r"agents?\b", r"\bclau" + r"de\b", r"\bLL" + r"Ms?\b"]
FORBIDDEN = re.compile("|".join([*map(re.escape, HOSTS + PATHS), *WORDS]), re.IGNORECASE)
NAMES = {"utils", "helpers", "base", "manager", "misc", "common_utils"}


def test_no_file_names_this_machine_or_a_registry():
    texts = {name: (ROOT / name).read_bytes().decode(errors="replace") for name in tracked_files()}
    assert not [f"{name}: {match[0]}" for name, text in texts.items() for match in FORBIDDEN.finditer(text)]


def test_no_module_has_a_name_that_fits_any_project():
    assert not [s.module for s in sources("libs", "services", "cli") if s.module.split(".")[-1] in NAMES]


def test_every_module_has_a_docstring():
    without = [
        s.module
        for s in sources("libs", "services", "cli")
        if s.path.stat().st_size and ast.get_docstring(s.tree) is None
    ]
    assert not without


def test_every_path_in_a_page_or_makefile_exists():
    named = re.compile(r"(?<!Create `)(?<![\w./-])(?:libs|services|cli|tests|bench|docs|mk)/[\w./-]*\w")
    missing = {
        f"{name}: {path}"
        for name in tracked_files()
        if name.endswith((".md", ".mk")) or name == "Makefile"
        for path in named.findall((ROOT / name).read_text())
        if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()
    }
    assert not missing
