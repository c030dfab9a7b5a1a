"""Names of types and files that tell a reader nothing. Pure.

The rule is section "Names" of CONTRIBUTING.md: a participle names an event and nothing else, and a file is
named for its main type or decision.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.language.texts import nodes_of

_TYPES = """
Answered Asked Begun Claimed Done Found Given Heard Held Judged Kept Known Left Looked Made Meant Missed
Offered Read Refused Resting Said Seen Sent Settled Shown Taken Told Tried Unasked Unseen Untold Wanted
Watched Written Agenda Errand Mouth Reign Rounds Surroundings Handling Happening Words
"""
_FILES = """
agenda around asked asking cast claimed first_words freshest gathering given happenings heard held hop
in_its_place inside kept_running known last_words looked measured offered reign said seen surroundings swept
told wanted word words
"""
PARTICIPLES = frozenset(_TYPES.split())
FILES = frozenset(_FILES.split())


def poor_types(content: str) -> Iterator[tuple[int, str]]:
    """Line and name of every class whose name, without leading underscores, is one of PARTICIPLES."""
    for node in nodes_of(content):
        if isinstance(node, ast.ClassDef) and node.name.lstrip("_") in PARTICIPLES:
            yield node.lineno, node.name


def is_poor_file(name: str) -> bool:
    """Whether the module is named for a word of FILES; `test_said.py` counts as `said`."""
    return re.sub(r"^test_", "", PurePosixPath(name).stem) in FILES
