"""Implements Go's text/template with the reference controller's functions, bounded in time and memory."""

from libs.gotemplate.bounds import Budget
from libs.gotemplate.errors import TemplateError
from libs.gotemplate.template import Template, parse, render
from libs.gotemplate.values import Given, Record, record

__all__ = ["Budget", "Given", "Record", "Template", "TemplateError", "parse", "record", "render"]
