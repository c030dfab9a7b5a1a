"""Parses templates when the configuration is loaded, and renders them for each machine."""

from collections.abc import Mapping

import msgspec

from libs.gotemplate.bounds import MAX_SOURCE, Budget
from libs.gotemplate.errors import Places, TemplateError
from libs.gotemplate.executor import execute
from libs.gotemplate.parser import ROOT, parse_source
from libs.gotemplate.reading import fields_read
from libs.gotemplate.runes import encoded, valid
from libs.gotemplate.tree import Items
from libs.gotemplate.values import Record


class Template(msgspec.Struct, frozen=True):
    """A parsed template."""

    source: str
    fields: frozenset[str]  # the fields of its data that it reads, as far as they are known before rendering
    definitions: Mapping[str, Items]  # the template itself and those that it defines
    places: Places


def parse(source: str) -> Template:
    """Parse a template.

    Raises TemplateError of kind "parse" for bad syntax or an unknown name, and "bound" for its size. `render`
    raises the errors that Go reports only at execution: a wrong number of arguments, an unknown field.
    """
    size = len(encoded(source))
    if size > MAX_SOURCE:
        raise TemplateError("bound", (1, 0), f"has {size} bytes, more than MAX_SOURCE = {MAX_SOURCE}")
    places = Places(source)
    definitions = parse_source(source, places)
    fields = fields_read(definitions, ROOT)
    return Template(source, fields, definitions, places)


def render(
    template: Template,
    data: Record,
    budget: Budget | None = None,
    actions: list[tuple[int, int]] | None = None,
) -> str:
    """Render the template as plain text without escaping. Raises TemplateError of kind "exec" or "bound".

    Invalid UTF-8 becomes U+FFFD. The default budget is MAX_STEPS; afterwards `budget.left` is the rest.
    `actions` receives the start and the end of what each action writes, in bytes before that replacement.
    """
    return valid(execute(template.definitions, template.places, data, budget or Budget(), actions))
