"""The names that documents may use: commands with options, keys of the settings, extras."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel
from typer.core import TyperCommand, TyperGroup
from written_texts import ROOT

from gate.cli import QUICK_VERBS
from gate.commands.verbs import VERBS, Verbs
from gate.settings.gate_settings import GateSettings

OPTION = re.compile(r"^ +(?:-\w, )?(--[a-z-]+)", re.MULTILINE)
PROGRAM_OPTIONS = frozenset(("--version", "--help", "--install-completion", "--show-completion"))


@cache
def commands() -> Mapping[str, frozenset[str]]:
    """Return each command, such as `keys generate`, with its options; a group has none."""
    found: dict[str, frozenset[str]] = {"": PROGRAM_OPTIONS}
    for name, module in QUICK_VERBS.items():
        found[name] = _options_in_help(module)
    verbs = Verbs({})
    for name in VERBS:
        found |= dict(_of_verb(name, verbs.get_command(None, name)))
    return found


def _of_verb(
    name: str, command: TyperCommand | TyperGroup | None
) -> Iterator[tuple[str, frozenset[str]]]:
    if isinstance(command, TyperGroup):
        yield name, frozenset(("--help",))
        for below, single in command.commands.items():
            yield from _of_verb(f"{name} {below}", single)  # type: ignore[arg-type] # typer makes them all
    elif command is not None:
        options = (option for one in command.params for option in (*one.opts, *one.secondary_opts))
        yield name, frozenset(text for text in options if text.startswith("--")) | {"--help"}


def _options_in_help(module: str) -> frozenset[str]:
    """Return the options in the help of a verb that parses its arguments without typer."""
    shown = StringIO()
    with redirect_stdout(shown):
        try:
            import_module(module).run(["--help"])
        except SystemExit:
            return frozenset(OPTION.findall(shown.getvalue()))
    message = "the help did not end the program"
    raise AssertionError(message)


@cache
def setting_keys() -> Mapping[str, type[BaseModel]]:
    """Each key of `repro-gate.yml` by its path, sections included, with the class that holds it.

    A key of an entry of a list has the list's key before it: `compare.tolerances.ulp`.
    """
    return dict(_keys(GateSettings, ""))


def section_keys() -> frozenset[str]:
    """Return the keys that contain other keys."""
    return frozenset(key.rpartition(".")[0] for key in setting_keys()) - {""}


def _keys(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        # some keys are no names in Python
        key = f"{path}{field.alias or name}"
        yield key, model
        for below in models_in(field.annotation):
            yield from _keys(below, f"{key}.")


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Return the settings classes in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in {tuple, Union, UnionType}:
        for part in get_args(annotation):
            yield from models_in(part)


@cache
def extras() -> frozenset[str]:
    """Return the extras: the names that may follow the package's name in brackets."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return frozenset(project["project"]["optional-dependencies"])


@cache
def extra_packages() -> frozenset[str]:
    """Return the packages, with versions, that a user installs for a way to sign or isolate."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = project["project"]["optional-dependencies"]
    return frozenset(each for name in ("container", "sigstore", "pkcs11") for each in listed[name])


@cache
def make_targets() -> frozenset[str]:
    """Return the targets of the Makefile, including the parts of `make gpu`."""
    text = (ROOT / "Makefile").read_text("utf-8")
    parts = re.search(r"^GPU_PARTS := \$\(addprefix gpu-,([^)]*)\)", text, re.MULTILINE)
    words = parts[1].replace("\\\n", " ").split() if parts else []
    targets = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    return frozenset((*targets, *(f"gpu-{word}" for word in words)))
