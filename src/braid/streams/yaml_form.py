"""YAML as topologies use it: a word means itself (`on` is no boolean) and a key stands once."""

from __future__ import annotations

import re
from typing import Any, cast

import yaml

from braid.errors import TopologyError
from braid.streams.strict import shown

__all__ = ["dump_yaml", "load_yaml"]

_FIRST_OF_NUMBER = list("-+.0123456789")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_INT = re.compile(r"^[-+]?[0-9]+$")
_FLOAT = re.compile(
    r"""^(?: [-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?
           | [-+]?\.(?:inf|Inf|INF)
           | \.(?:nan|NaN|NAN) )$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """A safe loader with the scalars of YAML 1.2: 1.1 takes the key of `{on: stream}` for true, `1e3` for text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, and not where mappings are constructed, because there merge keys (`<<`) repeat keys rightly.
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            if not isinstance(key, yaml.ScalarNode):
                raise TopologyError(
                    f"line {key.start_mark.line + 1}: a key must be a word, not a list or a mapping"
                )
            name = (key.tag, str(key.value))
            if name in seen:
                raise TopologyError(
                    f"line {key.start_mark.line + 1}: the key {key.value!r} stands here twice; keep one"
                )
            seen.add(name)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return float(str(self.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, _FIRST_OF_NUMBER)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _FIRST_OF_NUMBER)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes whatever YAML 1.1 or 1.2 would take for something other than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Single quotes would turn the line ends that only Unicode has into ordinary ones; double ones escape them.
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _FIRST_OF_NUMBER)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", _INT, _FIRST_OF_NUMBER)


def load_yaml(text: str) -> dict[Any, Any]:
    """The mapping that a YAML text spells.

    Args:
        text: one YAML document, whose top level is a mapping.

    Raises:
        TopologyError: the text is no YAML, is not a mapping, or says a key twice.
    """
    try:
        # The subclass of SafeLoader above builds only plain values.
        data = yaml.load(text, Loader=_Loader)  # noqa: S506
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise TopologyError(f"{where}this is not YAML ({what})") from None
    except TopologyError:
        raise
    except (AttributeError, LookupError, RecursionError, ValueError) as error:
        # What PyYAML lets through: tags that do not fit their scalars, numbers too long, nesting too deep.
        raise TopologyError(f"this YAML cannot be read ({type(error).__name__}: {error})") from None
    if not isinstance(data, dict):
        raise TopologyError(f"a topology is a mapping that starts with `streams:`, not {shown(data)}")
    return cast("dict[Any, Any]", data)


def dump_yaml(data: dict[str, Any]) -> str:
    """The YAML text that spells a mapping, keys in their order, the innermost collections on one line."""
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    )
