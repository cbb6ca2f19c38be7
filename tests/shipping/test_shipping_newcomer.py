"""What `make newcomer` types is what the pages say, with the exit codes that they tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row
from newcomer import (
    PACKAGES,
    ROOT,
    DifferentError,
    Line,
    archive_of,
    code_lines,
    document,
    documents,
    local_paths,
    uv_variables,
)

STANZA = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n"


def test_each_way_in_trains_without_a_baseline_and_then_passes() -> None:
    *pages, in_pytest = documents()
    for page in pages:
        commands = [line.command.removeprefix("uv run ") for line in page.lines]
        gates = [
            line.exit_code
            for line, command in zip(page.lines, commands, strict=True)
            if command.startswith("repro-gate gate")
        ]
        assert gates == [1, 0]
        assert next(command for command in commands if not command.startswith("uv ")).startswith(
            "repro-gate init"
        )
        assert any("baseline accept" in line.command for line in page.lines)
    first, *_, last = (line.command for line in in_pytest.lines)
    assert (first, last) == ("pytest --repro-gate-update", "pytest")
    assert "pytest.mark.reproducible" in in_pytest.test


def test_the_packages_to_install_are_those_of_the_readme() -> None:
    found = PACKAGES.search((ROOT / "README.md").read_text("utf-8"))
    assert found
    assert found[1].split() == ["python3-venv", "make", "git"]


def test_a_line_ends_as_its_comment_says() -> None:
    block = "# only said: exit code 9\na \\\n  b\n\nrepro-gate gate   # no baseline: exit code 1\n"
    assert list(code_lines(block)) == [
        Line(command="a    b", exit_code=0),
        Line(command="repro-gate gate   # no baseline: exit code 1", exit_code=1),
    ]


@pytest.mark.parametrize("text", ["```yaml\na: 1\n```\n", "```sh\nx\n```\n", "nothing"])
def test_a_page_without_commands_or_settings_is_refused(text: str) -> None:
    with pytest.raises(DifferentError, match=r"page\.md: expected commands and one settings file"):
        document("page.md", text)


@each_row(
    ("text", "mirror"),
    [
        ("deb http://mirror.example/debian bookworm main\n", "http://mirror.example/debian"),
        ("deb [arch=amd64] http://m.example/debian bookworm main\n", "http://m.example/debian"),
        (
            f"Types: deb\nURIs: http://x.example\nSuites: other\n\n{STANZA}",
            "http://mirror.example/debian",
        ),
        ("deb http://mirror.example/tools bookworm main\n", ""),
        ("# deb http://mirror.example/debian bookworm main\n", ""),
        ("", ""),
    ],
)
def test_the_mirror_is_the_one_of_this_machine(text: str, mirror: str) -> None:
    assert archive_of([text], "debian", "bookworm") == mirror


def test_what_pip_names_on_this_machine_is_handed_over(tmp_path: Path) -> None:
    for name in ("index/simple", "wheels"):
        (tmp_path / name).mkdir(parents=True)
    settings = {
        "extra-index-url": f"file://{tmp_path}/index/simple https://packages.example/simple",
        "find-links": f"{tmp_path}/wheels {tmp_path}/gone",
        "timeout": "9",
    }
    assert local_paths(settings) == (tmp_path / "index", tmp_path / "wheels")


def test_uv_finds_what_pip_finds_and_takes_the_same_torch() -> None:
    settings = {
        "cert": "/etc/ca.pem",
        "extra-index-url": "file:///srv/index https://packages.example/simple",
        "find-links": "/srv/wheels /srv/more",
    }
    assert uv_variables(settings, "torch==2.13.0+cpu") == {
        "UV_FIND_LINKS": "/srv/wheels,/srv/more",
        "UV_INDEX": "https://packages.example/simple",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_CONSTRAINT": "/home/newcomer/torch.txt",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    assert uv_variables({}, "torch") == {"UV_PYTHON_DOWNLOADS": "never"}
