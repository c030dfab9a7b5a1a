"""The project speaks of itself alone: no machine's paths, no registries' hosts, no utils."""

import re
import subprocess

from tests.architecture.sources import ROOT, sources

# Spelled in pieces, so that this file passes its own test.
HOSTS = ["py" + "pi.org", "files.python" + "hosted.org", "proxy." + "golang.org", "registry." + "npmjs.org"]
PATHS = ["/" + "root/", "/" + "work/", "/" + "tmp/brief"]
WORDS = [r"\bsub-?" + r"agents?\b", r"\bclau" + r"de\b", r"\bLL" + r"Ms?\b"]
FORBIDDEN = re.compile("|".join([*map(re.escape, HOSTS + PATHS), *WORDS]), re.IGNORECASE)
NAMES = {"utils", "helpers", "base", "manager", "misc", "common_utils"}


def tracked_files() -> list[str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in listing.stdout.decode().split("\0") if name]


def test_no_file_names_this_machine_or_a_registry():
    offences = []
    for name in tracked_files():
        path = ROOT / name
        if not path.is_file():
            continue
        text = path.read_bytes().decode(errors="replace")
        offences += [f"{name}: {match.group()}" for match in FORBIDDEN.finditer(text)]
    assert not offences


def test_no_module_bears_a_name_that_could_stand_in_any_project():
    assert not [s.module for s in sources("libs", "services", "cli") if s.module.split(".")[-1] in NAMES]


def test_every_module_says_what_it_is():
    import ast

    silent = [
        s.module
        for s in sources("libs", "services", "cli")
        if s.path.stat().st_size and ast.get_docstring(s.tree) is None
    ]
    assert not silent


def test_every_path_that_a_page_or_a_makefile_names_exists():
    named = re.compile(r"(?<![\w./-])(?:libs|services|cli|tests|bench|docs|mk)/[\w./-]*\w")
    missing = {
        f"{name}: {path}"
        for name in tracked_files()
        if name.endswith((".md", ".mk")) or name == "Makefile"
        for path in named.findall((ROOT / name).read_text())
        if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()
    }
    assert not missing
