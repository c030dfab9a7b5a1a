"""The file of --cloud-config: its `global` part, and every mistake in it with file and line."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from libs.common.yaml_reading import YamlError, refuse_bombs

_TOP: Final = ("global", "transformations")
_GLOBAL: Final[dict[str, type]] = {"clusterName": str, "preferIPv6": bool}


class CloudConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says."""

    values: dict[str, Any] = {}  # "global.clusterName" -> value, as YAML has it
    transformations: int = 0  # how many rules it holds


class CloudConfigError(Exception):
    """The file cannot be used; one sentence per mistake."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def parse_cloud_config(text: str, source: str) -> CloudConfig:
    """Read the file's text; `source` names it in messages. Raises CloudConfigError."""
    try:
        refuse_bombs(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except YamlError as error:
        line = f", line {error.line}" if error.line else ""
        raise CloudConfigError([f"{source}{line}: {error.problem}"]) from error
    except yaml.YAMLError as error:
        raise CloudConfigError([_yaml_mistake(error, source)]) from error
    if root is None:
        return CloudConfig()
    mistakes: list[str] = []
    top = _entries(root, source, "the file", _TOP, mistakes)
    values: dict[str, Any] = {}
    if "global" in top and not _is_null(top["global"]):
        entries = _entries(top["global"], source, "global", tuple(_GLOBAL), mistakes)
        for name, node in entries.items():
            value = _scalar(node, name, source, mistakes)
            if value is not None:
                values[f"global.{name}"] = value
    rules = top.get("transformations")
    count = 0
    if rules is not None and not _is_null(rules):
        if isinstance(rules, yaml.SequenceNode):
            count = len(rules.value)
        else:
            mistakes.append(f"{_at(rules, source)}: transformations is not a list")
    if mistakes:
        raise CloudConfigError(mistakes)
    return CloudConfig(values=values, transformations=count)


def _entries(
    node: yaml.Node, source: str, where: str, known: tuple[str, ...], mistakes: list[str]
) -> Mapping[str, yaml.Node]:
    """The entries of a mapping, by their proper names: the letter case of keys does not matter."""
    if not isinstance(node, yaml.MappingNode):
        mistakes.append(f"{_at(node, source)}: {where} is not a mapping of keys to values")
        return {}
    proper = {name.lower(): name for name in known}
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = proper.get(str(key.value).lower())
        if name is None:
            mistakes.append(
                f"{_at(key, source)}: {where} has no key {key.value!r}; it may have {', '.join(known)}"
            )
        elif name in entries:
            mistakes.append(f"{_at(key, source)}: {where} has {name} twice")
        else:
            entries[name] = value
    return entries


def _scalar(node: yaml.Node, name: str, source: str, mistakes: list[str]) -> Any:
    wanted = _GLOBAL[name]
    value = None
    if isinstance(node, yaml.ScalarNode):
        value = node.value if wanted is str else _boolean(node)
        if _is_null(node):
            return None
    if not isinstance(value, wanted):
        expected = "true or false" if wanted is bool else "a text"
        mistakes.append(f"{_at(node, source)}: global.{name} is not {expected}")
        return None
    return value


def _boolean(node: yaml.ScalarNode) -> bool | None:
    is_one = node.tag == "tag:yaml.org,2002:bool"
    return yaml.SafeLoader.bool_values.get(node.value.lower()) if is_one else None


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _at(node: yaml.Node, source: str) -> str:
    return f"{source}, line {node.start_mark.line + 1}"


def _yaml_mistake(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return f"{source}{line}: not valid YAML: {problem}"
