"""The check of names and texts finds poor phrases and accepts standard ones."""

import subprocess
from pathlib import Path

import pytest

from tools.language.check import (
    Pattern,
    check_subjects,
    exemptions,
    findings_of,
    patterns,
)
from tools.language.names import is_poor_file, poor_types
from tools.language.texts import passages_of

PATTERNS = patterns()


@pytest.mark.parametrize("phrase", PATTERNS, ids=lambda phrase: phrase.instead)
def test_each_pattern_matches_only_its_first_example(phrase: Pattern):
    assert list(phrase.find(phrase.caught))
    assert not list(phrase.find(phrase.fine))


@pytest.mark.parametrize("phrase", PATTERNS, ids=lambda phrase: phrase.instead)
def test_the_standard_examples_pass_every_other_pattern(phrase: Pattern):
    assert not [other.pattern for other in PATTERNS if list(other.find(phrase.fine))]


def test_there_are_at_most_20_exemptions():
    assert len(exemptions()) <= 20


FOUND_ON_LINE = {
    1: {"deploy/one.yaml": "a: 1  # written anew\n", "Makefile": "a: ## write it anew\n\ttrue\n"},
    2: {
        "libs/one.py": "x = 1\n# written anew\n",
        "libs/two.py": 'def two():\n    """Write it anew."""\n',
        "libs/three.py": 'def three(x):\n    return f"{x} is written anew"\n',
        "deploy/one.tpl": "{{- /* written\nanew */ -}}\n",
    },
    3: {"deploy/templates/NOTES.txt": "a\n\nwritten anew\n"},
    4: {
        "tools/dashboards/declarations/one.yaml": "a: 1\nb: 2\n\nbad: written anew\n",
        "docs/page.md": "One.\n\nThe page is written\nanew.\n",
    },
}


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [(*item, line) for line, contents in FOUND_ON_LINE.items() for item in contents.items()],
)
def test_a_phrase_is_found_with_its_line_in_every_kind_of_file(name: str, content: str, line: int):
    assert [(at, text) for at, text, _ in findings_of(name, content, PATTERNS)] == [(line, "anew")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("docs/page.md", "```\nwritten anew\n```\n\nThe flag `--anew`.\n"),
        ("libs/one.py", "anew = 1\n"),
        ("deploy/one.yaml", "a: anew\n"),
        ("tests/one.json", '{"a": "written anew"}'),
    ],
)
def test_code_and_data_are_not_checked(name: str, content: str):
    assert not list(findings_of(name, content, PATTERNS))


def test_a_phrase_across_two_comment_lines_is_found():
    text = "# it waits for\n# want of an address\n"
    assert [found[0] for found in findings_of("libs/one.py", text, PATTERNS)] == [1]


@pytest.mark.parametrize("text", ['"#"', "'\"#'", r"'\'#'", r"r'\\'", '"""\n"#\n"""', "'' ''", "f'{x}#'"])
def test_only_a_sharp_outside_of_strings_begins_a_comment(text: str):
    comments = [p for p in passages_of("libs/one.py", f"x = {text}  # it's one\n") if p.text == "it's one"]
    assert [comment.line for comment in comments] == [1 + text.count("\n")]


def test_participles_as_types_and_project_jargon_as_files_are_found():
    assert list(poor_types("class Told: ...\nclass _Asked: ...\nclass NodeObserved: ...\n")) == [
        (1, "Told"),
        (2, "_Asked"),
    ]
    assert is_poor_file("services/csr/said.py")
    assert is_poor_file("tests/unit/test_said.py")
    assert not is_poor_file("services/csr/settings.py")


def test_a_passage_has_its_line():
    assert [(p.line, p.text) for p in passages_of("a.md", "a\nb\n\nc\n")] == [(1, "a\nb"), (4, "c")]


def _repository(folder: Path, *subjects: str) -> Path:
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
    for subject in subjects:
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", subject], cwd=folder, check=True)
    return folder


def test_subjects_without_scope_and_imperative_are_found(tmp_path: Path):
    long = "labeler: " + "x" * 64
    repository = _repository(tmp_path, "Old one", "labeler: keep taints", "Fix things", long)
    found = check_subjects(repository, "HEAD~3")
    assert [("Fix things" in line, "xxx" in line) for line in found] == [(False, True), (True, False)]


def test_commits_before_the_check_began_are_not_checked(tmp_path: Path):
    assert not check_subjects(_repository(tmp_path, "Old one", "labeler: keep taints"), "HEAD~1")


def test_a_clone_without_that_commit_prints_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert not check_subjects(_repository(tmp_path, "Old one"), "0123456789")
    assert "this clone lacks the commit 0123456789" in capsys.readouterr().err
