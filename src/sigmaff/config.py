"""Strict YAML configuration files. An error names the key, the invalid value and the nearest valid one."""

import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from string import Template
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from sigmaff.errors import ConfigError

MAX_VALUES = 100_000
"""Of one configuration, keys among them."""
MAX_BITS = 1024
"""Of an integer: larger ones are no floating-point numbers either."""
Config = TypeVar("Config", bound=BaseModel)


class Settings(BaseModel):
    """Base of all settings: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_config(
    model: type[Config],
    source: Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> Config:
    """Read and validate a YAML file, or settings with the same keys.

    Arguments:
        model: the config class.
        source: the path of a file, or its content.
        overrides: texts ``section.key=value`` that replace values of the file; the value is YAML.
        values: values by ``section.key`` that replace both; ``None`` replaces nothing.
    """
    name = str(source) if isinstance(source, Path) else "settings"
    content = _expanded(_read(source) if isinstance(source, Path) else dict(source), name)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"{override!r} is not of the form section.key=value")
        _set(content, key, _expanded(_parsed(text, override), override))
    for key, value in (values or {}).items():
        if value is not None:
            _set(content, key, value)
    return validated(model, content, name)


def with_unnamed(config: Config, values: Mapping[str, Any]) -> Config:
    """A copy with values by ``section.key`` of settings that nobody has named; keys that do not exist are left out."""
    for name, value in values.items():
        section, _, rest = name.partition(".")
        if section not in type(config).model_fields:
            continue
        if rest:
            if (inner := getattr(config, section)) is not None:
                config = config.model_copy(update={section: with_unnamed(inner, {rest: value})})
        elif section not in config.model_fields_set:
            copied = config.model_copy(update={section: value})
            copied.model_fields_set.discard(section)
            config = copied
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        content = _parsed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: got {_shown(content)}; a configuration is a mapping of sections: "
            "see 'sigmaff train --print-defaults'"
        )
    return content


class _StrictLoader(yaml.SafeLoader):
    """YAML without repeated keys, in which dates are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(
                problem=f"duplicate key {repeated[0]!r}", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parsed(text: str, source: str) -> Any:
    try:
        content = yaml.load(text, _StrictLoader)
        _refuse_swollen(content)
        return content
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


def _refuse_swollen(content: Any) -> None:
    """Refuse a text that repeats parts of itself (``*name``) without end, or very often; and absurd numbers."""
    waiting, n_values = [content], 0
    while waiting:
        n_values += 1
        if n_values > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values; remove references (*name) to parts that hold themselves")
        value = waiting.pop()
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise ValueError("an integer of several hundred digits")
        if isinstance(value, dict | list):
            waiting.extend([*value.keys(), *value.values()] if isinstance(value, dict) else value)


def validated(model: type[Config], content: dict[str, Any], source: str) -> Config:
    """Validate a configuration. A ConfigError has one line per mistake, which begins with ``source``."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = dict.fromkeys(_explain(model, details) for details in error.errors())
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def _expanded(content: Any, source: str) -> Any:
    """Replace ${VARIABLE} in all strings by the environment variable."""
    if isinstance(content, dict):
        return {key: _expanded(value, source) for key, value in content.items()}
    if isinstance(content, list):
        return [_expanded(value, source) for value in content]
    if not isinstance(content, str):
        return content
    try:
        return Template(content).substitute(os.environ)
    except KeyError as missing:
        raise ConfigError(f"{source}: {content}: the environment variable {missing.args[0]} is not set") from None
    except ValueError:
        raise ConfigError(f"{source}: {content}: invalid $; write $$ for a dollar sign") from None


def _set(content: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a key such as ``training.max_epochs``."""
    *sections, last = key.split(".")
    place = content
    for section in sections:
        if place.get(section) is None:
            place[section] = {}
        place = place[section]
        if not isinstance(place, dict):
            raise ConfigError(f"{key}: {section} is a value ({_shown(place)}), not a section")
    place[last] = value


def _explain(root: type[BaseModel], details: ErrorDetails) -> str:
    parts = [str(part) for part in details["loc"]]
    n_given = 1 if details["type"] == "extra_forbidden" else 0  # the unknown key: whatever somebody wrote
    location = [part for part in parts[: len(parts) - n_given] if "[" not in part]  # not members of unions
    if not n_given and location[-1:] and location[-1] in ("bool", "float", "int", "str"):
        del location[-1]
    location += parts[len(parts) - n_given :]
    keys, models = _follow(root, location)
    key, got = ".".join(keys), details["input"]
    if details["type"] == "extra_forbidden":
        known = [name for model in _follow(root, location[:-1])[1] for name in model.model_fields]
        near = get_close_matches(location[-1], known, n=1, cutoff=0.0)
        return f"{key}: unknown key; nearest: {near[0] if near else 'none'}; known: {', '.join(known)}"
    if details["type"] == "missing":
        return f"{key}: missing, and has no default"
    if details["type"] == "union_tag_not_found":
        return f"{key}.name: missing; expected {_alternatives(_tags(models))}"
    if details["type"] == "union_tag_invalid":
        return _unexpected(f"{key}.name", details["ctx"]["tag"], _tags(models))
    if details["type"] == "literal_error":
        return _unexpected(key, got, re.findall(r"'([^']*)'", details["ctx"]["expected"]))
    reason = details["msg"].removeprefix("Value error, ")
    return f"{key}: got {_shown(got)}; {reason}" if key else reason


def _unexpected(key: str, got: Any, expected: Sequence[str]) -> str:
    near = get_close_matches(str(got), expected, n=1, cutoff=0.0)[0]
    return f"{key}: got {_shown(got)}; expected {_alternatives(expected)}; nearest: {near}"


def _tags(models: Sequence[type[BaseModel]]) -> list[str]:
    """The names by which a configuration chooses among classes."""
    return [model.model_fields["name"].default for model in models if "name" in model.model_fields]


def _alternatives(names: Sequence[str]) -> str:
    return " or ".join(repr(name) for name in names)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _follow(root: type[BaseModel], location: list[str]) -> tuple[list[str], list[type[BaseModel]]]:
    """Follow a location of a pydantic error: the keys as the user wrote them, and the config classes at its end.

    A union has several classes, unless the location names one by its tag. Tags are no keys.
    """
    keys: list[str] = []
    models = [root]
    for part in location:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        tagged = [model for model in models if part in _tags([model])]
        if fields:
            models = [member for field in fields for member in _models(field.annotation)]
        elif tagged:
            models = tagged
        if fields or not models or (part == location[-1] and not tagged):
            keys.append(part)
    return keys, models


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated, tuple):
        return [model for argument in get_args(annotation) for model in _models(argument)]
    return []


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a YAML file, by which an editor checks and completes it."""
    found: dict[str, Any] = _with_any_of(model.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _with_any_of(schema: Any) -> Any:
    """Without "oneOf": where a name may be left out, several classes of a union can fit."""
    if isinstance(schema, list):
        return [_with_any_of(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {"discriminator"} if "oneOf" in schema else set[str]()
    kept = {key: value for key, value in schema.items() if key not in left_out}
    return {"anyOf" if key == "oneOf" else key: _with_any_of(value) for key, value in kept.items()}


def print_defaults(model: type[BaseModel]) -> str:
    """Every key with its default and description, as YAML to edit."""
    return "\n".join(_section(model, indent=0)) + "\n"


def _section(model: type[BaseModel], indent: int, value: BaseModel | None = None) -> Iterator[str]:
    pad = "  " * indent
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True) if value is None else getattr(value, name)
        nested = type(default) if isinstance(default, BaseModel) else next(iter(_models(field.annotation)), None)
        choices = ", ".join(map(str, get_args(field.annotation))) or str(field.annotation)
        yield f"{pad}# {field.description or f'one of: {choices}'}"
        if nested is not None and default is not None and name != "source":
            yield f"{pad}{name}:"
            yield from _section(nested, indent + 1, default if isinstance(default, BaseModel) else None)
        elif default is PydanticUndefined:
            yield f"{pad}{name}: data.extxyz"
        else:
            yield f"{pad}{name}: {_scalar(default)}"


def _scalar(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return yaml.safe_dump(plain, default_flow_style=True).removesuffix("...\n").strip()
