"""How one object of a kind is selected at the API server."""

import pytest

from libs.common.kube.api import SIGNING_REQUESTS
from libs.common.kube.objects import select_by_name


@pytest.mark.parametrize(
    ("name", "value"), [("csr-1", "csr-1"), ("a,b=c", r"a\,b\=c"), ("back\\slash", r"back\\slash")]
)
def test_the_characters_of_a_selector_in_a_name_are_escaped(name: str, value: str):
    """Names of requests may contain them. Kubernetes rejects the whole selector otherwise."""
    selector = select_by_name(SIGNING_REQUESTS, name).query["fieldSelector"]
    assert selector == f"{SIGNING_REQUESTS.query['fieldSelector']},metadata.name={value}"
