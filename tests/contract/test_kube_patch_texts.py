"""A fence around a text holds whatever the text is, on a real and a simulated API server."""

import pytest

from libs.common.kube.api import KubeApi
from libs.testbed.kubelets import KubeletFleet

TEXTS = {
    "what Go escapes for HTML": "made by <metal> & co",
    "line separators of JavaScript": "a\u2028b\u2029c",
    "control characters": "".join(chr(code) for code in range(1, 32)) + "\x7f\x80",
    "quotes and slashes": "\"'\\/\\u003c",
    "JSON": '{"labels":{"a":"<b>"}}',
    "beyond the basic plane": "ä€😀\ufffd\uffff",
    "nothing": "",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_a_text_that_was_written_is_found_again_by_its_test(
    admin: KubeletFleet, api: KubeApi, text: str
):
    name = "texts"
    path = "/metadata/annotations/text"
    metadata = {"name": name, "annotations": {"other": "x"}}
    created = await admin.request("POST", "/api/v1/nodes", body={"metadata": metadata})
    assert created.status == 201, created
    try:
        node = await api.patch_node(
            name,
            [
                {"op": "test", "path": path, "value": None},
                {"op": "add", "path": path, "value": text},
            ],
        )
        assert node.annotations["text"] == text
        removal = [{"op": "test", "path": path, "value": text}, {"op": "remove", "path": path}]
        assert "text" not in (await api.patch_node(name, removal)).annotations
    finally:
        await admin.delete_node(name)
