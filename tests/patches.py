"""What patches do, by the hand of the simulated API server, which is held to the real one."""

import copy
from typing import Any

from libs.testbed.sim_apiserver.patches import apply_json_patch as apply_operations
from libs.testbed.sim_apiserver.patches import apply_strategic_merge_patch
from libs.testbed.sim_apiserver.refusals import Refusal


class PatchFailed(Exception):
    """The patch as a whole does not apply, as the API server's 422."""


def apply_json_patch(document: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """The document after the patch; empty maps and lists of metadata and spec vanish, as on the server."""
    try:
        result: dict[str, Any] = apply_operations(copy.deepcopy(document), patch)
    except Refusal as refusal:
        if refusal.code != 422 or refusal.status["details"]:  # no failed fence but a wrong patch
            raise
        raise PatchFailed(str(refusal)) from refusal
    for section in ("metadata", "spec"):
        for key in [k for k, v in result.get(section, {}).items() if v in ({}, [])]:
            del result[section][key]
    return result


def apply_status_patch(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The Node after the patch. Raises ValueError if it is for a Node of another uid."""
    result: dict[str, Any] = apply_strategic_merge_patch(copy.deepcopy(document), patch)
    if result["metadata"]["uid"] != document["metadata"]["uid"]:
        raise ValueError("metadata.uid: the Node is another one")
    return result
