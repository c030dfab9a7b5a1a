"""What a caller does with templates: parse one when the configuration is read, render it for each machine."""

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
    fields: frozenset[str]  # the fields of its data that it reads, as far as they can be known unrendered
    definitions: Mapping[str, Items]  # itself, and what it defines
    places: Places


def parse(source: str) -> Template:
    """A template; TemplateError of kind "parse" for bad syntax or an unknown name, "bound" for its size.

    What Go notices only when it runs (a wrong number of arguments, a field that does not exist) is an
    error of `render`.
    """
    size = len(encoded(source))
    if size > MAX_SOURCE:
        raise TemplateError("bound", (1, 0), f"has {size} bytes, more than MAX_SOURCE = {MAX_SOURCE}")
    places = Places(source)
    definitions = parse_source(source, places)
    return Template(source, fields_read(definitions, ROOT), definitions, places)


def render(template: Template, data: Record, budget: Budget | None = None) -> str:
    """The plain text that the template makes of the data; TemplateError of kind "exec" or "bound".

    Nothing is escaped. What is no UTF-8 comes out as U+FFFD. The budget, of MAX_STEPS if none is given, tells
    afterwards what is left of it.
    """
    return valid(execute(template.definitions, template.places, data, budget or Budget()))
