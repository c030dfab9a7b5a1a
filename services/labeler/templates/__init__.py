"""Implements Go's text/template with the reference controller's functions, bounded in time and memory."""

from services.labeler.templates.bounds import Budget
from services.labeler.templates.errors import TemplateError
from services.labeler.templates.template import Template, parse, render
from services.labeler.templates.values import Given, Record, record

__all__ = ["Budget", "Given", "Record", "Template", "TemplateError", "parse", "record", "render"]
