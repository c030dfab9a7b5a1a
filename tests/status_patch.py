"""The API server's strategic merge of a Node's status, by the simulated one's own hand."""

import copy
from typing import Any

from libs.testbed.sim_apiserver.patches import apply_strategic_merge_patch


def apply_status_patch(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The Node after the patch. Raises ValueError if it is for a Node of another uid."""
    result: dict[str, Any] = apply_strategic_merge_patch(copy.deepcopy(document), patch)
    if result["metadata"]["uid"] != document["metadata"]["uid"]:
        raise ValueError("metadata.uid: the Node is another one")
    return result
