from __future__ import annotations

from pathlib import Path

import pytest
import release_action
from fake_registry import registry
from git_workshop import Repository
from release_action import (
    ACTIONS,
    PLACEHOLDER,
    ReleaseError,
    faults,
    git,
    git_variables,
    notes,
    pinned,
    publish,
    published,
    run,
)

from gate.system.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
IMAGE = f"ghcr.io/org/repro-gate@sha256:{'a' * 64}"
SLIM = f"ghcr.io/org/repro-gate-slim@sha256:{'b' * 64}"
# apart from the name, so that putting the owner's in leaves it
STANDS_FOR_OWNER = "org"
PIN = ["pin", "--image", IMAGE, "--slim-image", SLIM]
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.3] - 2026-11-21

### Added

- A thing.

## [1.2.2] - 2026-10-01

- Older.
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A clone that is ready for version 1.2.3, and a remote of its own."""
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    made = Repository(tmp_path / "clone")
    (made.path / "gate" / "system").mkdir(parents=True)
    (made.path / "gate" / "system" / "version.py").write_text('"""V."""\n\nVERSION = "1.2.3"\n')
    (made.path / "CHANGELOG.md").write_text(CHANGELOG)
    (made.path / "slim").mkdir()
    (made.path / "README.md").write_text("uses: owner/repro-gate@v1\n")
    for name in ACTIONS:
        (made.path / name).write_bytes((ROOT / name).read_bytes())
    made.git("add", "-A")
    made.git("commit", "-qm", "ready")
    made.git("init", "-q", "--bare", str(tmp_path / "remote"))
    made.git("remote", "add", "origin", str(tmp_path / "remote"))
    made.git("push", "-q", "origin", "main")
    return made


def _remote(clone: Repository, *words: str) -> str:
    return clone.git("--git-dir", str(clone.path.parent / "remote"), *words).strip()


@pytest.mark.parametrize("name", ACTIONS)
def test_a_real_action_takes_an_image_by_digest(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    before, after = text.splitlines(), pinned(text, IMAGE).splitlines()
    changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    ((built, released),) = changed
    assert "Dockerfile" in built
    assert released == f"  image: docker://{IMAGE}"


@pytest.mark.parametrize("image", ["name:v1", "name@sha256:abc", f"{IMAGE}\nx", f"Ghcr@{IMAGE}"])
def test_an_image_that_is_not_named_by_its_digest_is_refused(image: str) -> None:
    with pytest.raises(ReleaseError, match="is no image by digest"):
        pinned("runs:\n  image: Dockerfile\n", image)


def test_an_action_is_not_pinned_twice() -> None:
    text = pinned("runs:\n  image: Dockerfile\n", IMAGE)
    with pytest.raises(ReleaseError, match="exactly once"):
        pinned(text, IMAGE)


def test_the_project_lacks_what_the_guide_tells_the_owner_to_do_and_no_more() -> None:
    found = faults(ROOT, VERSION, frozenset())
    # what is told before the first release, and nothing of it after
    kinds = {fault.partition(" ")[0] for fault in found}
    assert kinds <= {"CHANGELOG.md", "these"}
    todo = (ROOT / "docs" / "releasing.md").read_text("utf-8").partition("## Each release")[0]
    assert "in place of `org/`" in todo
    assert "## [1.0.0] - YYYY-MM-DD" in todo


@pytest.mark.parametrize(
    "text",
    [
        f"uses: {STANDS_FOR_OWNER}/repro-gate@v1",
        f"docker://ghcr.io/{STANDS_FOR_OWNER}/repro-gate@sha256:0",
        f"* @{STANDS_FOR_OWNER}/repro-gate-x",
    ],
)
def test_the_owners_placeholder_is_not_released(clone: Repository, text: str) -> None:
    (clone.path / ".github").mkdir()
    (clone.path / ".github" / "file").write_text(f"{text}\n")
    (fault,) = faults(clone.path, "1.2.3", frozenset())
    assert fault == "these files still name org/, which stands for the owner: .github/file"


def test_a_readme_that_follows_another_major_version_is_not_released(clone: Repository) -> None:
    (clone.path / "README.md").write_text("uses: owner/repro-gate/slim@v2\n")
    assert faults(clone.path, "1.2.3", frozenset()) == (
        "README.md does not name v1, the tag that 1.2.3 moves",
        "these files follow another tag than v1: README.md (v2)",
    )


def test_each_file_that_a_user_copies_is_looked_at() -> None:
    looked_at = set(map(str, published(ROOT)))
    copied = [*(ROOT / "examples" / "workflows").iterdir(), *(ROOT / "docs").glob("*.md")]
    assert {str(path.relative_to(ROOT)) for path in copied} <= looked_at
    assert {"README.md", "SECURITY.md", "container/action.yml", *ACTIONS} <= looked_at
    assert {"gate/pipelines/scaffold.py", "gate/data/fetching.py", "pyproject.toml"} <= looked_at
    assert {"ops/prometheus/rules.yml", "scripts/ops_kit.py"} <= looked_at


def test_every_file_that_names_the_placeholder_is_looked_at() -> None:
    """Or is a test, or the changelog: nobody follows an address there."""
    names = set(git(ROOT, "ls-files").splitlines()) - set(map(str, published(ROOT)))
    left = [
        name
        for name in names
        if not name.startswith(("tests/", "scripts/newcomer"))
        and (ROOT / name).is_file()
        and PLACEHOLDER.search((ROOT / name).read_text("utf-8", "replace"))
    ]
    assert sorted(left) == ["CHANGELOG.md"]


def test_notes_that_nobody_would_read_are_not_released(clone: Repository) -> None:
    long = CHANGELOG.replace("- A thing.", "- A thing. " * 150)
    (clone.path / "CHANGELOG.md").write_text(long)
    (fault,) = faults(clone.path, "1.2.3", frozenset())
    assert fault == (
        "CHANGELOG.md has 452 words under 1.2.3, and a release page 300 at most: shorten them"
    )


def test_each_file_of_the_action_is_looked_at() -> None:
    looked_at = set(map(str, published(ROOT)))
    assert {".github/CODEOWNERS", ".github/ISSUE_TEMPLATE/config.yml"} <= looked_at


def test_notes_are_the_changelogs_part() -> None:
    assert notes(CHANGELOG, "1.2.3") == "### Added\n\n- A thing.\n"


def test_a_version_that_the_changelog_does_not_know_is_not_ready() -> None:
    with pytest.raises(ReleaseError, match=r"nothing under `## \[2\.0\.0\] - YYYY-MM-DD`"):
        notes(CHANGELOG, "2.0.0")


def test_all_that_is_not_ready_is_told_at_once(clone: Repository) -> None:
    found = faults(clone.path, "1.2.4", frozenset({"v1.2.4"}))
    assert found[0] == "gate/system/version.py does not say 1.2.4"
    assert found[1] == "the tag v1.2.4 is there already: released versions never change"
    assert found[2].startswith("CHANGELOG.md has nothing under")


@pytest.mark.parametrize("version", ["v1.2.3", "1.2", "1.2.3-rc1", "1.2.3\n", "01.2.3", ""])
def test_what_is_no_version_is_refused(version: str, clone: Repository) -> None:
    with pytest.raises(ReleaseError, match=r"write it as 1\.2\.3"):
        run(["check", f"--version={version}"], clone.path)


def test_a_release_tags_a_commit_that_differs_in_the_actions_alone(clone: Repository) -> None:
    assert run(["check", "--version", "1.2.3"], clone.path) == "1.2.3 can be released\n"
    main = clone.git("rev-parse", "HEAD").strip()
    run(PIN, clone.path)
    commit = publish(clone.path, "1.2.3")
    assert _remote(clone, "rev-parse", "v1.2.3^{commit}") == commit
    assert _remote(clone, "rev-parse", "v1^{commit}") == commit
    assert _remote(clone, "rev-parse", "main") == main
    assert _remote(clone, "diff", "--name-only", main, commit).split() == list(ACTIONS)
    assert f"docker://{IMAGE}" in _remote(clone, "show", "v1:action.yml")
    assert f"docker://{SLIM}" in _remote(clone, "show", "v1:slim/action.yml")


def test_images_that_everybody_gets_for_both_architectures_can_be_released(
    clone: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    check = ["check", "--version", "1.2.3", "--pinned"]
    with pytest.raises(ReleaseError) as told:
        run(check, clone.path)
    assert str(told.value).splitlines() == [
        f"{name}: it names no image by digest: `pin` comes first" for name in ACTIONS
    ]
    with registry() as here:
        full = here.put("team/repro-gate", ("linux/amd64", "linux/arm64"))
        slim = here.put("team/repro-gate-slim", ("linux/amd64", "linux/arm64"))
        run(["pin", "--image", full, "--slim-image", slim], clone.path)
        assert run(check, clone.path) == "1.2.3 can be released\n"
        here.private.add("team/repro-gate-slim")
        with pytest.raises(ReleaseError) as told:
            run(check, clone.path)
        assert str(told.value).startswith(f"slim/action.yml: {slim} is not public: ")


def test_an_image_for_one_architecture_is_not_released(
    clone: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with registry() as here:
        image = here.put("team/repro-gate", ("linux/amd64",))
        run(["pin", "--image", image, "--slim-image", image], clone.path)
        with pytest.raises(ReleaseError) as told:
            run(["check", "--version", "1.2.3", "--pinned"], clone.path)
    assert str(told.value).splitlines() == [
        f"{name}: {image} is not for linux/arm64" for name in ACTIONS
    ]


def test_one_image_for_both_actions_is_not_released(
    clone: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with registry() as here:
        image = here.put("team/repro-gate", ("linux/amd64", "linux/arm64"))
        run(["pin", "--image", image, "--slim-image", image], clone.path)
        with pytest.raises(ReleaseError, match=r"^action\.yml and slim/action\.yml name the"):
            run(["check", "--version", "1.2.3", "--pinned"], clone.path)


def test_main_has_no_pinned_action(clone: Repository) -> None:
    run([word.replace("/org/", "/team/") for word in PIN], clone.path)
    with pytest.raises(ReleaseError) as told:
        run(["check", "--version", "1.2.3"], clone.path)
    assert str(told.value).splitlines() == [
        f"{name}: it does not say `image: Dockerfile` exactly once" for name in ACTIONS
    ]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["check"], "check needs --version"),
        (["publish"], "publish needs --version"),
        (["pin"], "pin needs --image and --slim-image"),
    ],
)
def test_an_option_that_is_missing_is_named(
    clone: Repository, words: list[str], fault: str
) -> None:
    with pytest.raises(ReleaseError) as told:
        run(words, clone.path)
    assert str(told.value) == fault


def test_an_action_without_its_image_leaves_both_as_they_are(clone: Repository) -> None:
    with pytest.raises(ReleaseError, match="pin needs --slim-image"):
        run(["pin", "--image", IMAGE], clone.path)
    assert clone.git("status", "--porcelain").strip() == ""


def test_the_tag_of_the_major_version_moves_and_a_version_never_does(clone: Repository) -> None:
    run(PIN, clone.path)
    first = publish(clone.path, "1.2.3")
    clone.git("checkout", "-q", "main~1")
    run([*PIN[:2], IMAGE.replace("a" * 64, "c" * 64), *PIN[3:]], clone.path)
    second = publish(clone.path, "1.3.0")
    assert _remote(clone, "rev-parse", "v1^{commit}") == second
    assert _remote(clone, "rev-parse", "v1.2.3^{commit}") == first
    with pytest.raises(ReleaseError, match="is there already"):
        run(["check", "--version", "1.2.3"], clone.path)


def test_a_tree_with_other_changes_is_not_published(clone: Repository) -> None:
    run(PIN, clone.path)
    (clone.path / "CHANGELOG.md").write_text("changed")
    with pytest.raises(
        ReleaseError, match=r"changes action\.yml and slim/action\.yml and nothing else"
    ):
        publish(clone.path, "1.2.3")
    assert _remote(clone, "tag") == ""


def test_the_token_reaches_git_by_its_environment_alone() -> None:
    variables = git_variables({"GITHUB_TOKEN": "t", "GITHUB_SERVER_URL": "https://ghes.example/"})
    assert variables["GIT_CONFIG_KEY_0"] == "http.https://ghes.example/.extraheader"
    assert variables["GIT_CONFIG_VALUE_0"] == "AUTHORIZATION: basic eC1hY2Nlc3MtdG9rZW46dA=="
    assert "GIT_CONFIG_COUNT" not in git_variables({})


def test_what_is_not_ready_is_one_plain_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["release_action.py", "notes", "--version", "9.9.9"])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit):
        release_action.main()
    assert capsys.readouterr().err.startswith("error: CHANGELOG.md has nothing under `## [9.9.9]")
