"""Names and texts by docs/glossary.md and the patterns beside this file; `make lint` runs it.

`python -m tools.language.check` checks the tracked files. `--subjects` checks the subjects of the commits
since the check began. Exits with 1 if there is a finding.
"""

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tools.language.names import is_poor_file, poor_types
from tools.language.texts import passages_of

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# Generated code, output of other programs, recorded bytes, the patterns and their test.
NOT_READ = re.compile(
    r"/generated/|/testdata/|^tests/contract/(golden/|talos_samples|config_decoding|interface/|test_interface_)"
    r"|^tools/language/|/test_language_check\.py$"
)
SUBJECT = re.compile(r"^[a-z][a-z0-9_, -]*: \S.*$")
LONGEST_SUBJECT = 72
CHECKED_SINCE = "52588f2"  # subjects of older commits follow no rule


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A forbidden phrase, its standard wording, an example that is caught and one that is not."""

    pattern: str
    instead: str
    caught: str
    fine: str

    def find(self, text: str) -> Iterator[re.Match[str]]:
        """Every match in a text without line breaks."""
        return _compile(self.pattern).finditer(text)

    def is_likely_in(self, lines: str) -> bool:
        """Whether a line may have a match; a match may go across lines here."""
        return _compile(f"(?m:{self.pattern})").search(lines) is not None


class Exemption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place where a phrase or name is right, and why."""

    file: str
    text: str
    why: str


@functools.cache  # the one of `re` is slower, and each of a million searches asks it
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def patterns() -> list[Pattern]:
    """The phrases of patterns.yaml."""
    return msgspec.yaml.decode((HERE / "patterns.yaml").read_bytes(), type=list[Pattern])


def exemptions() -> list[Exemption]:
    """The places of exemptions.yaml; at most 20, which a test holds."""
    return msgspec.yaml.decode((HERE / "exemptions.yaml").read_bytes(), type=list[Exemption])


def findings_of(name: str, content: str, phrases: list[Pattern]) -> Iterator[tuple[int, str, str]]:
    """Line, found text and advice for each finding in one file."""
    passages = list(passages_of(name, content))
    running = [re.sub(r"\s", " ", passage.text) for passage in passages]  # a phrase may go across lines
    # One search in the whole file rules out most phrases. It may find more than there is, never less.
    likely = [phrase for phrase in phrases if phrase.is_likely_in("\n".join(running))]
    for passage, text in zip(passages, running, strict=True) if likely else ():
        for phrase in likely:
            for found in phrase.find(text):
                line = passage.line + passage.text.count("\n", 0, found.start())
                yield line, found.group().strip(), f"write: {phrase.instead}"
    if name.endswith(".py"):
        for line, type_name in poor_types(content):
            yield line, type_name, "name the type with a noun of the glossary"
        if is_poor_file(name):
            yield 1, Path(name).name, "name the file for its main type or decision"


def tracked_files() -> list[str]:
    """The existing files that git tracks, by their path below ROOT, sorted."""
    listing = _git(ROOT, "ls-files", "-z")
    if listing is None:
        raise RuntimeError(f"git ls-files failed in {ROOT}")
    return sorted(name for name in listing.split("\0") if name and (ROOT / name).is_file())


def check_tree() -> list[str]:
    """Every finding in the tracked files, as `file:line: text -> advice`."""
    phrases, exempt = patterns(), {(one.file, one.text) for one in exemptions()}
    found, used = [], set[tuple[str, str]]()
    for name in tracked_files():
        if NOT_READ.search(name):
            continue
        content = (ROOT / name).read_bytes().decode(errors="replace")
        for line, text, advice in findings_of(name, content, phrases):
            if (name, text) in exempt:
                used.add((name, text))
            else:
                found.append(f"{name}:{line}: {text!r} -> {advice}")
    found += [
        f"tools/language/exemptions.yaml: not needed any more: {file}: {text}" for file, text in exempt - used
    ]
    return found


def check_subjects(root: Path = ROOT, since: str = CHECKED_SINCE) -> list[str]:
    """The commits after `since` whose subject is not `scope: imperative` in at most 72 characters.

    A shallow clone may lack that commit. Then the new commits are unknown: a notice is printed instead.
    """
    if _git(root, "cat-file", "-e", f"{since}^{{commit}}") is None:
        sys.stderr.write(f"commit subjects not checked: this clone lacks the commit {since}\n")
        return []
    log = _git(root, "log", "--no-merges", "--format=%h %s", f"{since}..HEAD")
    if log is None:
        return [f"git log {since}..HEAD failed in {root}"]
    return [
        f"commit {commit}: write `scope: imperative`, at most {LONGEST_SUBJECT} characters: {subject!r}"
        for commit, _, subject in (line.partition(" ") for line in log.splitlines())
        if not SUBJECT.match(subject) or len(subject) > LONGEST_SUBJECT
    ]


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git, None if it failed."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def main(arguments: list[str]) -> int:
    """Print the findings; the exit status is 1 if there are any."""
    match arguments:
        case []:
            found = check_tree()
        case ["--subjects"]:
            found = check_subjects()
        case _:
            sys.stderr.write("usage: python -m tools.language.check [--subjects]\n")
            return 2
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
