"""What a message, a hint or a page names is there: commands, options, keys, extras, pages, links.

The walk reads every string constant of the program and every page, so that a name that goes away
takes its mentions with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from known_names import commands, extra_packages, extras, make_targets, setting_keys
from written_texts import (
    ROOT,
    VALUE,
    Page,
    Written,
    constants,
    pages,
    source_texts,
    spoken,
    yaml_texts,
)

from gate.settings.gate_settings import GateSettings
from gate.settings.knobs import BY_NAME
from gate.settings.load import MINIMAL_FILE, parse_settings

IMAGE = f"sha256:{'0' * 64}"
MINIMAL: dict[str, Any] = yaml.safe_load(MINIMAL_FILE)

INSTALLED = re.compile(r"pip install '?([A-Za-z][^\s'`]*)")
NAME = re.compile(r"[\[><=]")

# A word behind the program's name where it is the subject of a sentence and not a command.
PROSE = re.compile(
    r"adds|and|authors|call|could|in|itself|on|packs|reads|reports|statement|that|version|with|"
    r"without|writes|wrote"
)
CALL = re.compile(r"(?<![\w/])repro-gate ((?:[a-z]|--)[^`|;&#<>()\[\]\"\n]*)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")
# Options of other programs that our texts advise, and whose they are.
FOREIGN_OPTIONS = {
    "--nproc-per-node": "torchrun",
    "--resume": "the training of a game day",
    "--standalone": "torchrun",
    "--all": "git lfs push",
    "--cached": "git rm",
    **dict.fromkeys(("--no-assume-unchanged", "--no-skip-worktree"), "git update-index"),
    **dict.fromkeys(("--parsable", "--wrap", "--export", "--no-requeue"), "sbatch"),
    "--constraint": "pip",
    "--editable": "pip",
    "--ephemeral": "GitHub's runner",
    "--extra-index-url": "pip, in a lock file",
    "--filter": "git clone",
    "--find-links": "pip",
    "--generate-hashes": "uv pip compile",
    "--global": "dvc remote modify",
    "--gpus": "docker run",
    "--hash": "pip, in a lock file",
    "--index-url": "pip",
    "--insecure-ignore-tlog": "cosign",
    "--ipc": "docker run",
    "--key": "cosign",
    "--key-type": "pkcs11-tool",
    "--keypairgen": "pkcs11-tool",
    "--list-objects": "pkcs11-tool",
    "--login": "pkcs11-tool",
    "--module": "pkcs11-tool",
    "--new-bundle-format": "cosign",
    "--no-binary": "pip",
    "--no-emit-find-links": "pip-compile",
    "--no-emit-index-url": "pip-compile",
    "--no-emit-project": "uv export",
    "--no-emit-workspace": "uv export",
    "--no-ignore-git-paths": "model_signing",
    "--no-index": "pip",
    "--only-binary": "pip",
    "--output": "poetry export",
    "--output-file": "uv export",
    "--pid": "docker run",
    "--public": "model_signing, up to its underscore",
    "--pypi-url": "pip",
    "--repro-gate-update": "pytest, with the plug-in",
    "--requirement": "pip",
    "--shm-size": "docker run",
    "--signature": "cosign, model_signing",
    "--trusted-host": "pip",
    "--type": "cosign",
    "--unshallow": "git fetch",
    "--user": "docker run",
    "--volume": "docker run",
    "--without-urls": "poetry export",
}
EXTRA = re.compile(r"(?:repro-gate|(?<=['\" ])\.)\[(\w[\w,-]*)\]")
KEY = re.compile(
    r"(?<![\w/.*-])((?:train|determinism|compare|baseline|policy|record|cost|noise|isolation|signing|"
    r"report)(?:\.[a-z_]+)+)(?![\w(])"
)
FILE_ENDINGS = frozenset(("json", "md", "html", "py", "yml"))
PATH = re.compile(
    r"(?<![\w/.:@-])((?:\.github|benchmarks|container|docs|examples|gate|requirements|scripts|slim|"
    r"tests)/[\w./*-]*[\w*])"
)
# Paths that are not of this repository, and whose they are.
FOREIGN_PATHS = {
    ".github/workflows/repro-gate.yml": "`init` writes it into a project",
    "docs/developer/determinism": "Megatron-LM",
    "docs/results/gpu-NAME.md": "NAME is the GPU's",
    "tests/testdata/asyoulik.txt": "brotli",
}
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
README_PART = re.compile(r"README, ([A-Z][^:;.,`]+)")
MAKE = re.compile(r"^make ([a-z][a-z-]*)")
VARIABLE = re.compile(r"\bREPRO_GATE_[A-Z_]*[A-Z]")
FINDING = re.compile(r"finding `([a-z-]+)`")
TEMPLATE_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|<style>.*?</style>", re.DOTALL)
GROUPS = frozenset(name.split()[0] for name in commands() if " " in name)
ALL_OPTIONS = frozenset[str]().union(*commands().values())


def code_of_pages() -> Iterator[Written]:
    """What pages and workflows say as code: spans and blocks of shell, a line each."""
    for page in pages():
        blocks = [block.replace("\\\n", " ") for block in page.blocks("", "sh", "console", "yaml")]
        for text in (*page.code_spans(), *(line for block in blocks for line in block.split("\n"))):
            yield Written(where=page.name, text=text)
    for written in yaml_texts():
        for line in written.text.replace("\\\n", " ").split("\n"):
            yield Written(where=written.where, text=line)


def wrong_calls(written: Written) -> list[str]:
    """The calls of the program in a text that name no command, or an option that it has not."""
    found = []
    for match in CALL.finditer(written.text):
        words = [re.split(r"[^a-z-]", word)[0] for word in match[1].split()]
        if PROSE.fullmatch(words[0]):
            continue
        name = "" if words[0].startswith("--") else words[0]
        if name in GROUPS and words[1:2] != [""] and len(words) > 1:
            name = " ".join(words[:2])
        known = commands().get(name)
        if known is None:
            found.append(f"{written.where}: repro-gate {match[1]}")
            continue
        unknown = set(OPTION.findall(match[1])) - known
        found += [f"{written.where}: repro-gate {name} {option}" for option in sorted(unknown)]
    return found


def unknown_options(text: str) -> set[str]:
    """The options in a text that neither a command of ours has nor a program that we advise."""
    return set(OPTION.findall(text)) - ALL_OPTIONS - FOREIGN_OPTIONS.keys()


def unknown_keys(text: str) -> list[str]:
    """The settings keys in a text that the schema does not have."""
    return [
        key
        for key in KEY.findall(TEMPLATE_CODE.sub("", text))
        if key.rpartition(".")[2] not in FILE_ENDINGS
        and not key.startswith("train.env.")
        and key.removeprefix("determinism.knobs.") not in BY_NAME
        and key not in setting_keys()
    ]


def unknown_extras(text: str) -> set[str]:
    """The extras in a text that the package does not have."""
    return {name for names in EXTRA.findall(text) for name in names.split(",")} - extras()


def installed_wrongly(text: str) -> list[str]:
    """What a text says to install by a name that is not ours, or in a version we do not ask for."""
    asked = {NAME.split(each)[0]: each for each in extra_packages()}
    found = [name for name in INSTALLED.findall(text) if name.startswith("repro-gate")]
    others = {NAME.split(each)[0]: each for each in INSTALLED.findall(text)}
    return found + [each for name, each in others.items() if each != asked.get(name, each)]


def missing_paths(text: str) -> set[str]:
    """The paths of this repository in a text where nothing is."""
    named = set(PATH.findall(text)) - FOREIGN_PATHS.keys()
    return {path for path in named if not any(ROOT.glob(path))}


def dead_links(page: Page) -> list[str]:
    """The links of a page to a file that is not there, or to a heading that the file has not."""
    anchors = {one.path: one.anchors() for one in (*pages(), page)}
    found = []
    for groups in LINK.findall(page.text):
        link = groups[0] or groups[1]
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        is_there = target in anchors or target.exists()
        if not (is_there and (not anchor or anchor in anchors.get(target, ()))):
            found += [] if re.match(r"https?:|mailto:", link) else [link]
    return found


def test_each_call_of_the_program_names_a_command_and_its_options() -> None:
    texts = (*source_texts(), *code_of_pages())
    assert [fault for written in texts for fault in wrong_calls(written)] == []


def test_each_option_by_itself_is_one_of_a_command() -> None:
    messages = [w for w in source_texts() if w.is_message]
    spans = [w for w in code_of_pages() if w.text.startswith("--")]
    wrong = [(w.where, unknown_options(w.text)) for w in (*messages, *spans)]
    assert [fault for fault in wrong if fault[1]] == []


def test_each_extra_is_one_of_the_package() -> None:
    paths = [ROOT / "Makefile", ROOT / "Dockerfile", *(ROOT / "scripts").glob("*.*")]
    files = (Written(where=path.name, text=path.read_text("utf-8")) for path in paths)
    wrong = [(w.where, unknown_extras(w.text)) for w in (*spoken(), *files)]
    assert [fault for fault in wrong if fault[1]] == []


def test_nothing_is_installed_by_a_name_that_nobody_has_published() -> None:
    wrong = [(w.where, each) for w in spoken() for each in installed_wrongly(w.text)]
    assert wrong == []
    assert installed_wrongly("pip install 'repro-gate[sigstore]'") == ["repro-gate[sigstore]"]
    assert installed_wrongly("run `pip install docker` first") == ["docker"]
    assert installed_wrongly("run `pip install -e .` in a clone") == []


def test_each_setting_that_a_text_names_is_in_the_schema() -> None:
    assert [(w.where, key) for w in spoken() for key in unknown_keys(w.text)] == []


def test_each_path_in_a_text_is_there() -> None:
    sources = sorted((ROOT / "gate").rglob("*.py"))  # a comment may name a page as well
    texts = [*spoken(), *(Written(where=str(p), text=p.read_text("utf-8")) for p in sources)]
    assert [(w.where, path) for w in texts for path in missing_paths(w.text)] == []


def test_each_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    dead = {page.name: found for page in pages() if (found := dead_links(page))}
    assert dead == {}


def test_each_part_of_the_readme_that_a_text_names_is_a_heading() -> None:
    (readme,) = (page for page in pages() if page.name == "README.md")
    named = {part.strip() for w in spoken() for part in README_PART.findall(w.text)}
    assert named
    assert {part.lower().replace(" ", "-") for part in named} <= readme.anchors()


def test_each_chore_that_a_text_names_is_a_target_of_make() -> None:
    spans = (
        Written(where=w.where, text=span)
        for w in source_texts()
        for span in re.findall(r"`([^`]+)`", w.text)
    )
    named = {(w.where, name) for w in (*spans, *code_of_pages()) for name in MAKE.findall(w.text)}
    assert named
    assert {(where, name) for where, name in named if name not in make_targets()} == set()


def test_each_variable_of_ours_in_a_page_is_read_by_a_program() -> None:
    paths = [
        path for folder in ("gate", "tests", "scripts") for path in (ROOT / folder).rglob("*.*")
    ]
    code = "".join(path.read_text("utf-8") for path in paths if path.suffix in {".py", ".sh"})
    spelt = set(VARIABLE.findall(code)) | {f"REPRO_GATE_{name}" for name in harness_names(code)}
    named = {name for page in pages() for name in VARIABLE.findall(page.text)}
    assert named - spelt == set()


def harness_names(code: str) -> set[str]:
    """The variables that the harness spells behind its common prefix."""
    return set(re.findall(r"\{PREFIX\}([A-Z_]+)", code))


def test_each_finding_that_a_page_names_is_one_of_the_program() -> None:
    codes = {written.text for written in source_texts()}
    named = {name for page in pages() for name in FINDING.findall(page.text)}
    assert named
    assert named - codes == set()


def test_settings_in_a_page_are_valid() -> None:
    """Whole files, blocks of some sections, and single keys such as `train.device: cuda`."""
    for page in pages():
        # a fault names the page
        _settings_are_valid(page)


def _settings_are_valid(page: Page) -> None:
    for block in page.blocks("yaml"):
        found = yaml.safe_load(block.replace("sha256:...", IMAGE))
        if isinstance(found, dict) and found.keys() & GateSettings.model_fields.keys():
            complete = MINIMAL | found
            parse_settings(yaml.safe_dump(complete).encode(), page.name)
    for span in page.code_spans():
        single = re.fullmatch(r"([a-z_]+\.[a-z_.]+|operator audit): (\S+)", span)
        if single is not None:
            parse_settings(yaml.safe_dump(_one_key(*single.groups())).encode(), page.name)


def _one_key(key: str, value: str) -> dict[str, Any]:
    """The smallest file, with this key set."""
    settings: dict[str, Any] = {**MINIMAL, "train": {**MINIMAL["train"]}}
    *sections, name = key.split(".")
    place = settings
    for section in sections:
        place = place.setdefault(section, {})
    place[name] = yaml.safe_load(value)
    if key == "isolation.mode" and value == "container":
        place["image"] = IMAGE
    return settings


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("compare key ids with `repro-gate keys show`", "x.py:1: repro-gate keys show"),
        ("run repro-gate recrod first", "x.py:1: repro-gate recrod first"),
        ("`repro-gate baseline show --leaves`", "x.py:1: repro-gate baseline show --leaves"),
        ("`repro-gate --verison`", "x.py:1: repro-gate  --verison"),
    ],
)
def test_a_call_of_what_is_not_there_is_seen(text: str, fault: str) -> None:
    assert wrong_calls(Written(where="x.py:1", text=text)) == [fault]


def test_each_other_kind_of_wrong_name_is_seen(tmp_path: Path) -> None:
    assert unknown_options("name the base with --bse") == {"--bse"}
    assert unknown_keys("raise train.timeout, or isolation.shm_bytes.") == ["train.timeout"]
    assert unknown_keys("set determinism.knobs.no_such_knob") == ["determinism.knobs.no_such_knob"]
    assert unknown_extras("pip install 'repro-gate[blake4]' or '.[torch,tset]'") == {
        "blake4",
        "tset",
    }
    assert missing_paths("see docs/no-such-page.md and docs/limits.md") == {"docs/no-such-page.md"}
    page = Page(path=tmp_path / "page.md", text="# A\n[x](#a) [y](#b) [z](other.md)\n")
    assert dead_links(page) == ["#b", "other.md"]


def test_a_message_is_one_text_however_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Doc."""\nhint = f"set {key}" " to " + value\n')
    found = {(text.text, text.docstring) for text in constants(path)}
    assert found == {("Doc.", True), (f"set {VALUE} to {VALUE}", False)}


def test_each_law_of_the_tests_is_held_by_files_that_are_there() -> None:
    table = (ROOT / "tests" / "README.md").read_text("utf-8").partition("## The laws")[2]
    rows = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    held = [re.findall(r"`([^`]+)`", row.split("|")[2]) for row in rows[1:]]
    assert len(held) > 30
    gone = []
    for names in held:
        folder = ""
        for name in names:
            within, slash, file = name.rpartition("/")
            folder = within if slash else folder
            place = ROOT / "tests" / folder
            path = place / f"{file.replace('…', f'test_{folder}')}.py" if file else place
            gone += [] if path.exists() else [name]
    assert gone == []
