"""Records the configuration that the training really had: what it parsed, composed and read.

Values are flattened to JSON texts under names such as `argparse.lr`. A value is hidden before
anything is written if its name or its form is a secret's. Processes that use one of the hooked
modules, or read such a file, import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys

from ..user_code import calling_frame, named_as, users_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_VALUES = 2_000
MAX_NAME = 200
MAX_VALUE = 400
MAX_DEPTH = 12
MAX_FILES = 20
MAX_FILE_BYTES = 64 * 1024
# tools write these files; nobody configures a training with them
NO_CONFIGURATION = ("package.json", "package-lock.json", "tokenizer.json", "vocab.json")
HIDDEN = '"(hidden)"'
# each is a word of a name, between underscores or capitals
SECRET_WORDS = frozenset(
    (
        *("token", "secret", "secrets", "password", "passwords", "passwd", "pwd", "passphrase"),
        *("credential", "credentials", "apikey"),
    )
)
SECRET_PAIRS = (
    *("api_key", "access_key", "private_key", "secret_key", "auth_key", "signing_key"),
    "account_key",
)
# tokens of GitHub, Hugging Face, OpenAI, AWS, Slack, GitLab, JWT
SECRET_BEGINNINGS = (
    *("ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "hf_", "sk-", "AKIA", "ASIA", "xoxb-"),
    *("xoxp-", "glpat-", "eyJ"),
)
KEY_FILE = "-----BEGIN"
# `user:password@` in an address, and anything before the `@` of a web address
LOGIN = r"(?:://[^/?#\s]*:[^/?#\s]*|https?://[^/?#\s]+)@"
# `--api-key=`, also in the query of an address or in a text with several settings
SETTING = r"(?:^|[?&;\s])-*([\w.-]+)=[^&;\s]"
# in an address that grants access by itself, such as a signed URL
SIGNATURES = ("signature", "sig")
WORDS = r"[\s=,;:\"']+"
MIN_SECRET = 16
# Only this much of a text is searched for a secret. A text longer than `MAX_VALUE` is reported by
# its digest alone.
MAX_LOOKED_AT = 4_000
# log folders whose names contain the host and the time
VOLATILE = frozenset(("logging_dir",))

_values: dict[str, str] = {}
_files: dict[str, None] = {}
_parsing: list[int] = []
_tree = ""


def hook(module: Any, tree: str) -> None:
    """Hook one of the modules from which scripts take their configuration."""
    set_tree(tree)
    {
        "argparse": _hook_argparse,
        "omegaconf.omegaconf": _hook_omegaconf,
        "hydra.core.hydra_config": _hook_hydra,
        "transformers.training_args": _hook_training_arguments,
    }[module.__name__](module)


def set_tree(tree: str) -> None:
    """Set the copy of the commit: paths below `tree` are reported relative to it."""
    global _tree
    _tree = os.path.realpath(tree or os.getcwd())  # noqa: PTH109 - pathlib is slow to import


def _hook_argparse(module: Any) -> None:
    """Record the result of each outermost `parse_args`."""
    plain = module.ArgumentParser.parse_known_args

    def parse_known_args(self: Any, *args: Any, **named: Any) -> Any:
        _parsing.append(1)
        try:
            parsed = plain(self, *args, **named)
        finally:
            _parsing.pop()
        # a subcommand's parser calls this function inside its parent's call
        if not _parsing:
            _keep("argparse", lambda: vars(parsed[0]))
        return parsed

    module.ArgumentParser.parse_known_args = named_as(parse_known_args, plain)


def _hook_training_arguments(module: Any) -> None:
    """Record the fields of transformers' TrainingArguments, once `__post_init__` is done."""
    kind = module.TrainingArguments
    plain = kind.__post_init__

    def __post_init__(self: Any) -> None:  # noqa: N807 - a dataclass looks for this name
        plain(self)
        _keep("TrainingArguments", lambda: _fields(self))

    kind.__post_init__ = named_as(__post_init__, plain)


def _fields(arguments: Any) -> dict[str, object]:
    fields = type(arguments).__dataclass_fields__
    return {name: getattr(arguments, name) for name, field in fields.items() if field.init}


def _hook_hydra(module: Any) -> None:
    """Record the configuration that Hydra composed for the job."""
    plain = module.HydraConfig.set_config

    def set_config(self: Any, cfg: Any) -> Any:
        done = plain(self, cfg)
        _keep("hydra", lambda: {k: v for k, v in _container(cfg).items() if k != "hydra"})
        return done

    module.HydraConfig.set_config = named_as(set_config, plain)


def _hook_omegaconf(module: Any) -> None:
    """Record what the script itself loads, merges and takes from the command line."""
    kind = module.OmegaConf
    for name in ("load", "merge", "from_cli", "from_dotlist", "create"):
        setattr(kind, name, staticmethod(_kept(getattr(kind, name))))


def _kept(plain: Any) -> Any:
    def call(*args: Any, **named: Any) -> Any:
        configuration = plain(*args, **named)
        frame = calling_frame(1)
        # libraries create configurations of their own, which are no input of the training
        if users_frame(frame, frozenset()) is frame:
            _keep("omegaconf", lambda: _container(configuration))
        return configuration

    return named_as(call, plain)


def _container(config: Any) -> dict[str, object]:
    from omegaconf import OmegaConf

    plain_config = OmegaConf.to_container(config, resolve=False)
    return (
        {str(k): v for k, v in plain_config.items()}
        if isinstance(plain_config, dict)
        else {"": plain_config}
    )


def note_opened(path: str) -> None:
    """Note a file of the commit that is about to be read and looks like a configuration."""
    name = path.rpartition(os.sep)[2]
    if name not in NO_CONFIGURATION and len(_files) < MAX_FILES:
        _files[path] = None


def recorded(tree: str) -> dict[str, str]:
    """Return every value by its name, sorted.

    The files are read only now, when the script has imported the parsers.
    """
    set_tree(tree)
    # a copy, since another thread may open a file meanwhile
    for path in list(_files):
        _read(path)
    return dict(sorted(_values.items())[:MAX_VALUES])


def _read(path: str) -> None:
    """Record a file's values, or its digest if nothing here can parse it."""
    import hashlib

    shown = os.path.relpath(path, _tree)
    try:
        if os.stat(path).st_size > MAX_FILE_BYTES:  # noqa: PTH116 - as above
            return
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            data = file.read(MAX_FILE_BYTES)
    except OSError:
        return
    try:
        values = _parsed(path, data)
    except Exception:
        values = None
    if isinstance(values, dict):
        _keep(shown, lambda: values)
    elif values is None:
        _put(shown, "", hashlib.sha256(data).hexdigest())


def _parsed(path: str, data: bytes) -> object:
    if path.endswith(".json"):
        import json

        return json.loads(data)
    if path.endswith(".toml"):
        import tomllib

        return tomllib.loads(data.decode("utf-8"))
    # the script parses YAML with this very module, or the file is not its own
    yaml: Any = sys.modules.get("yaml")
    return None if yaml is None else yaml.safe_load(data)


def _keep(source: str, values: Any) -> None:
    """Record the values of a source; an error here must never reach the script."""
    try:
        kept_values = values()
        for path, value in _flat(kept_values, "", MAX_DEPTH) if kept_values else ():
            _put(source, path, value)
    except Exception:
        return


def _put(source: str, path: str, value: object) -> None:
    name = f"{source}{path}"
    if len(_values) >= MAX_VALUES and name not in _values:
        return
    if path.rpartition(".")[2] in VOLATILE or len(name) > MAX_NAME or not name.isprintable():
        return
    _values[name] = HIDDEN if _secret(path, value) else _text(value)


def _flat(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    """Yield values under paths with a dot before each name; a list of plain values is one value."""
    mapping: Any = value
    nested = isinstance(value, list | tuple) and any(
        isinstance(item, dict | list | tuple) for item in value
    )
    if not depth and value and (nested or isinstance(value, dict)):
        yield path, type(value)
    elif isinstance(value, dict) and value:
        for key in mapping:
            yield from _flat(mapping[key], f"{path}.{key}" if str(key) else path, depth - 1)
    elif nested:
        for place, item in enumerate(mapping):
            yield from _flat(item, f"{path}.{place}", depth - 1)
    else:
        yield path, value


def _secret(path: str, value: object) -> bool:
    """Whether to hide a value, because of a name on its path or because of its form."""
    of_secret = any(map(_named_secret, path.split(".")))
    items = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return any(
        (isinstance(item, str) and item and (of_secret or _looks_secret(item)))
        or (of_secret and isinstance(item, int | float) and not isinstance(item, bool))
        for item in items
    )


def _named_secret(name: str) -> bool:
    import re

    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name).lower()
    # `pad_token_id` and the like are numbers of a vocabulary, not secrets
    if plain.endswith("token_id"):
        return False
    words = SECRET_WORDS.intersection(plain.split("_"))
    return bool(words) or plain.removesuffix("s").endswith(SECRET_PAIRS)


def _looks_secret(text: str) -> bool:
    import re

    text = text[:MAX_LOOKED_AT]
    if KEY_FILE in text or re.search(LOGIN, text):
        return True
    names = re.findall(SETTING, text)
    if any(_named_secret(name) or name.lower().endswith(SIGNATURES) for name in names):
        return True
    # in a list of arguments the value of `--api-key` is the next item
    if text.startswith("--") and _named_secret(text.lstrip("-")):
        return True
    words = re.split(WORDS, text)
    return any(len(word) >= MIN_SECRET and word.startswith(SECRET_BEGINNINGS) for word in words)


def _text(value: object) -> str:
    """Return a value as JSON; a digest if it is too long."""
    import json

    text = json.dumps(_plain(value), ensure_ascii=True, sort_keys=True)
    if len(text) <= MAX_VALUE:
        return text
    import hashlib

    return json.dumps(f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")


def _plain(value: object) -> object:
    """Return what JSON can express; of another value its kind, since `str` may show an address."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, str | os.PathLike):
        return _without_tree(os.fsdecode(value))
    # `_flat` only passes on dictionaries that are empty
    if value is None or isinstance(value, bool | int | float | dict):
        return value
    return _kind(value)


def _kind(value: object) -> object:
    kind = type(value)
    member = getattr(value, "value", None)
    # an enumeration's member is described by its value, torch's types and devices by their text
    if isinstance(member, str | int) and hasattr(kind, "__members__"):
        return member
    if kind.__module__ == "torch":
        return str(value)
    named = getattr(value, "__qualname__", None)
    return f"<{named if isinstance(named, str) else kind.__qualname__}>"


def _without_tree(text: str) -> str:
    return text.replace(f"{_tree}{os.sep}", "").replace(_tree, ".") if _tree else text
