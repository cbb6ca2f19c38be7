"""What the harness records of a configuration, in copies of the modules that it watches."""

from __future__ import annotations

import enum
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from gate.harness.sources import configuration


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path: Path) -> Iterator[None]:
    configuration._values.clear()
    configuration._files.clear()
    configuration.set_tree(str(tmp_path))
    yield
    configuration._values.clear()
    configuration._files.clear()


@pytest.fixture
def argparse() -> ModuleType:
    """A copy of its own: the one of this process stays as it is."""
    spec = importlib.util.find_spec("argparse")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    configuration.hook(module, "")
    return module


def test_parsed_arguments_are_kept_once_with_their_types(
    argparse: ModuleType, tmp_path: Path
) -> None:
    configuration.set_tree(str(tmp_path))
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--data", type=Path)
    below = parser.add_subparsers(dest="verb").add_parser("fit")
    below.add_argument("--epochs", type=int)
    below.set_defaults(run=test_parsed_arguments_are_kept_once_with_their_types)
    parser.parse_args(["--data", f"{tmp_path}/a/b", "fit", "--epochs", "3"])
    assert configuration.recorded(str(tmp_path)) == {
        "argparse.data": '"a/b"',
        "argparse.epochs": "3",
        "argparse.lr": "0.1",
        "argparse.run": '"<test_parsed_arguments_are_kept_once_with_their_types>"',
        "argparse.verb": '"fit"',
    }


def test_a_parser_without_arguments_is_no_configuration(
    argparse: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        argparse.ArgumentParser().parse_args(["--nope"])
    assert configuration.recorded(str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("api_key", "k", True),
        ("wandb.api-key", 12345678, True),
        ("hub_token", "x", True),
        ("db.password", "", False),
        ("password", None, False),
        ("use_auth_token", True, False),
        ("pad_token_id", 0, False),
        ("max_tokens", 512, False),
        ("tokenizer", "bpe", False),
        ("keys", ["hf_abcdefghijklmnop", "b"], True),
        ("note", "ghp_0123456789abcdef", True),
        ("note", "sk-short", False),
        ("url", "https://me:secret@host/x", True),
        ("url", "https://host/a@b:c", False),
        ("pem", "-----BEGIN PRIVATE KEY-----", True),
        ("lr", 0.1, False),
        # below a name that says it, however it is written
        ("secrets.wandb", "abc", True),
        ("credentials.pin", 1234, True),
        ("logger.hubToken", "abc", True),
        ("api_keys", ["abc"], True),
        ("role.secret_id", "abc", True),
        ("tokenizer.name", "bpe", False),
        ("input_signature", "x", False),
        ("keys", {"hf_abcdefghijklmnop"}, True),
        # in a text that says more
        ("header", "Bearer ghp_0123456789abcdef", True),
        ("extra", ["--hub-token", "abc"], True),
        ("extra", ["--hub-token=abc"], True),
        ("extra", ["--max-tokens=3", "--token-file"], True),
        ("extra", ["--max-tokens=3"], False),
        ("store", "DefaultEndpoint=https;AccountKey=abc", True),
        ("storage", "postgresql+psycopg2://me:pw@host/db", True),
        ("see", "as in https://me:pw@host/db", True),
        ("git", "https://abcdef@host/x.git", True),
        ("git", "ssh://git@host/x.git", False),
        ("url", "https://host:8080/a@b?size=3", False),
        ("url", "https://host/x?X-Amz-Signature=abc", True),
        ("url", "https://host/x?sv=1&sig=abc", True),
        ("note", "lr=0.1 batch=3", False),
    ],
)
def test_secrets_are_hidden_and_nothing_else(
    tmp_path: Path, name: str, value: object, *, hidden: bool
) -> None:
    configuration._keep("s", lambda: {name: value})
    (text,) = configuration.recorded(str(tmp_path)).values()
    assert (text == configuration.HIDDEN) is hidden


def test_files_of_the_commit_are_read_by_their_own_parsers(tmp_path: Path) -> None:
    texts = {
        "a.json": '{"lr": 0.1, "deep": {"x": [1, {"y": null}]}}',
        "b.toml": "[optimizer]\nname = 'sgd'\n",
        "c.yaml": yaml.safe_dump({"momentum": 0.9}),
        "d.yaml": "[: broken",
        "list.json": "[1, 2]",
        "package.json": "{}",
        "big.json": json.dumps({"x": "y" * configuration.MAX_FILE_BYTES}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        configuration.note_opened(str(tmp_path / name))
    found = configuration.recorded(str(tmp_path))
    digest = found.pop("d.yaml")
    assert len(json.loads(digest)) == 64
    assert found == {
        "a.json.deep.x.0": "1",
        "a.json.deep.x.1.y": "null",
        "a.json.lr": "0.1",
        "b.toml.optimizer.name": '"sgd"',
        "c.yaml.momentum": "0.9",
    }


def test_what_json_cannot_hold_is_named_by_its_kind(tmp_path: Path) -> None:
    kinds = enum.Enum("kinds", {"FAST": "fast"})
    endless: dict[str, object] = {}
    endless["again"] = endless
    values = {
        "object": object(),
        "class": Path,
        "enum": kinds.FAST,
        "set": {"b", "a"},
        # such an array is equal to nothing as a whole
        "array": np.zeros(3),
        "nothing": {},
        "nan": float("nan"),
        "long": "z" * 1000,
        "endless": endless,
        "logging_dir": "runs/Nov26_host",
    }
    configuration._keep("v", lambda: values)
    found = configuration.recorded(str(tmp_path))
    assert json.loads(found.pop("v.long")).startswith("sha256:")
    (deep,) = [name for name in found if name.startswith("v.endless")]
    assert found.pop(deep) == '"<dict>"'
    assert found == {
        "v.array": '"<ndarray>"',
        "v.class": '"<Path>"',
        "v.enum": '"fast"',
        "v.nan": "NaN",
        "v.nothing": "{}",
        "v.object": '"<object>"',
        "v.set": '["a", "b"]',
    }


def test_limits_hold_and_a_value_that_raises_harms_nobody(tmp_path: Path) -> None:
    configuration._keep("many", lambda: {f"k{place}": place for place in range(5000)})
    configuration._keep("names", lambda: {"n" * 500: 1, "a\nb": 2})
    configuration._keep("raises", lambda: 1 / 0)
    found = configuration.recorded(str(tmp_path))
    assert len(found) == configuration.MAX_VALUES
    assert all(name.startswith("many.") for name in found)


def test_fields_of_training_arguments_are_kept_once_they_are_complete(tmp_path: Path) -> None:
    class TrainingArguments:
        __dataclass_fields__ = {  # noqa: RUF012 - as dataclasses make it
            "learning_rate": SimpleNamespace(init=True),
            "seen": SimpleNamespace(init=False),
        }

        def __init__(self) -> None:
            self.learning_rate, self.seen = 1e-3, 1
            self.__post_init__()

        def __post_init__(self) -> None:
            self.learning_rate *= 2

    module: Any = ModuleType("transformers.training_args")
    module.TrainingArguments = TrainingArguments
    configuration.hook(module, "")
    TrainingArguments()
    configuration.set_tree(str(tmp_path))
    found = configuration.recorded(str(tmp_path))
    assert found == {"TrainingArguments.learning_rate": "0.002"}
