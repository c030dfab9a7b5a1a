"""Reads objects of Octavia and Neutron that belong to the project: one by its id, or all of a list."""

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import NotFound, Unanswered
from libs.clouds.openstack.login import Login
from libs.clouds.openstack.object_responses import (
    PER_PAGE,
    Page,
    read_item,
    read_page,
)
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.responses import UUID, Service

ID: Final = re.compile(UUID)

ItemT = TypeVar("ItemT")


async def get_object(
    api: OpenStackApi, service: Service, path: str, object_id: str, item: type[ItemT]
) -> ItemT | NotFound | Unanswered:
    """Return the object with exactly this id; `path` is that of all objects of the kind, in the plural."""
    key = path.rpartition("/")[2].removesuffix("s")
    if not ID.fullmatch(object_id):
        return Unanswered("malformed", f"{object_id!r} is not an id")

    def read(response: HttpResponse, login: Login) -> ItemT | NotFound | Unanswered:
        found = read_item(response, key, item, object_id)
        if getattr(found, "project_id", login.project) != login.project:
            return Unanswered("malformed", f"{key} {object_id} belongs to another project")
        return found

    return await api.get(service, f"{path}/{object_id}", {}, read)


async def list_objects(
    api: OpenStackApi, service: Service, path: str, query: Mapping[str, str], item: type[ItemT]
) -> tuple[ItemT, ...] | Unanswered:
    """Return all objects of one listing."""
    key = path.rpartition("/")[2]
    project = ""

    def read(response: HttpResponse, login: Login) -> Page | Unanswered:
        nonlocal project
        project = login.project
        return read_page(response, key, item)

    async def read_next(before: list[Page]) -> Page | Unanswered:
        marker = {"marker": before[-1].items[-1].id} if before else {}  # type: ignore[attr-defined]
        limits = {"limit": str(PER_PAGE), **marker}
        return await api.get(service, path, {**query, **limits}, read)

    pages = await api.session.read_pages(path, read_next)
    if isinstance(pages, Unanswered):
        return pages
    # An administrator sees other projects' objects. All pages are of one credential, so of one project.
    items = (each for page in pages for each in page.items)
    return tuple(each for each in items if getattr(each, "project_id", project) == project)  # type: ignore[misc]
