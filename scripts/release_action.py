"""The steps of a release that are more than one command, for `.github/workflows/release.yml`.

    release_action.py check --version 1.2.3
    release_action.py pin --image ghcr.io/owner/repro-gate@sha256:... --slim-image ghcr.io/...
    release_action.py check --version 1.2.3 --pinned
    release_action.py notes --version 1.2.3
    release_action.py publish --version 1.2.3

`check` says whether the code, the changelog, the published files and the tags are ready for a
version. `pin` writes both images by their digests into action.yml and slim/action.yml: only then
does a workflow that names an action by a commit's hash always get the same bytes. `check --pinned`
also asks the registry, as a runner without a login, whether everybody gets these images, for each
architecture. `notes` prints the changelog's part. `publish` commits both files on top of the
checked-out commit, tags it `v1.2.3`, moves the tag of the major version, and pushes both tags and
no branch: on main, both go on to build the Dockerfile.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from public_image import IMAGE, ImageError, public_platforms

BUILT_IMAGE: Final = re.compile(r"^  image: (?:\.\./)?Dockerfile(?: #.*)?\n", re.MULTILINE)
PINNED_IMAGE: Final = re.compile(r"^  image: docker://(\S+)$", re.MULTILINE)
PLATFORMS: Final = frozenset({"linux/amd64", "linux/arm64"})
ACTIONS: Final = ("action.yml", "slim/action.yml")
# what a reader copies or follows; the owner's name in tests and changelog is nobody's address
PUBLISHED: Final = (
    "*.md",
    "action.yml",
    "*/action.yml",
    ".github/**/*",
    "docs/*.md",
    "examples/**/*.yml",
    "examples/**/*.md",
    # `init` writes some of it into projects, and hints name the action
    "gate/**/*.py",
    # what a package index shows
    "pyproject.toml",
    # where an alert sends somebody, and what writes it
    "ops/**/*.yml",
    "scripts/ops_kit.py",
)
NOT_PUBLISHED: Final = ("CHANGELOG.md", "CONTRIBUTING.md")
PLACEHOLDER: Final = re.compile(r"(?<![\w.-])org/(?=repro-gate)")
FOLLOWED: Final = re.compile(r"\brepro-gate(?:/[a-z]+)?@(v[0-9]+)\b")
# what a reader of a release page reads
MOST_NOTES_WORDS: Final = 300
VERSION: Final = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
BOT: Final = (
    "-c",
    "user.name=github-actions[bot]",
    "-c",
    "user.email=41898282+github-actions[bot]@users.noreply.github.com",
)


class ReleaseError(Exception):
    """Something is not ready; the text says what to do."""


def checked_version(text: str) -> str:
    """The version as it was given, when it is one; raises `ReleaseError` otherwise."""
    if not VERSION.fullmatch(text):
        raise ReleaseError(f"{text[:40]!r} is not a version: write it as 1.2.3, without a v")
    return text


def moving_tag(version: str) -> str:
    """The tag that workflows follow, such as v1."""
    return f"v{version.partition('.')[0]}"


def pinned(action: str, image: str) -> str:
    """The text of an action.yml with an image by digest instead of the Dockerfile."""
    if not IMAGE.fullmatch(image):
        raise ReleaseError(f"{image[:300]!r} is no image by digest: name@sha256:...")
    if len(BUILT_IMAGE.findall(action)) != 1:
        raise ReleaseError("it does not say `image: Dockerfile` exactly once")
    return BUILT_IMAGE.sub(f"  image: docker://{image}\n", action)


def pinned_file(root: Path, name: str, image: str) -> str:
    """The text of one action with an image by digest; a fault names the file."""
    try:
        return pinned((root / name).read_text("utf-8"), image)
    except ReleaseError as error:
        raise ReleaseError(f"{name}: {error}") from error


def pin(root: Path, images: tuple[str, str]) -> str:
    """Write the image and the one without torch into their actions; answers what was done."""
    texts = [pinned_file(root, name, image) for name, image in zip(ACTIONS, images, strict=True)]
    for name, text in zip(ACTIONS, texts, strict=True):
        (root / name).write_text(text, "utf-8")
    return "".join(f"{name} starts {image}\n" for name, image in zip(ACTIONS, images, strict=True))


def published(root: Path) -> tuple[Path, ...]:
    """The files that users copy or follow, by their paths in the tree."""
    found = {path for pattern in PUBLISHED for path in root.glob(pattern) if path.is_file()}
    kept = (path.relative_to(root) for path in found if path.name not in NOT_PUBLISHED)
    return tuple(sorted(kept))


def text_faults(root: Path, version: str) -> tuple[str, ...]:
    """What the published files say that is not so once this version is released."""
    texts = {path: (root / path).read_text("utf-8") for path in published(root)}
    unnamed = [str(path) for path, text in texts.items() if PLACEHOLDER.search(text)]
    tag = moving_tag(version)
    followed = {str(path): set(FOLLOWED.findall(text)) for path, text in texts.items()}
    other = [
        f"{path} ({', '.join(sorted(tags - {tag}))})"
        for path, tags in followed.items()
        if tags - {tag}
    ]
    found = []
    if unnamed:
        found.append(
            "these files still name org/, which stands for the owner: " + ", ".join(unnamed)
        )
    if tag not in followed.get("README.md", ()):
        found.append(f"README.md does not name {tag}, the tag that {version} moves")
    if other:
        found.append(f"these files follow another tag than {tag}: " + ", ".join(other))
    return tuple(found)


def notes(changelog: str, version: str) -> str:
    """The changelog's part for a version, without its heading."""
    heading = rf"^## \[{re.escape(version)}\] - [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$"
    found = re.search(rf"{heading}\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ReleaseError(
            f"CHANGELOG.md has nothing under `## [{version}] - YYYY-MM-DD`: move the entries "
            "of Unreleased to that heading"
        )
    return found[1].strip() + "\n"


def faults(root: Path, version: str, tags: frozenset[str]) -> tuple[str, ...]:
    """Why a version cannot be released from this tree; empty when it can."""
    found = []
    code = (root / "gate" / "system" / "version.py").read_text("utf-8")
    if f'\nVERSION = "{version}"\n' not in code:
        found.append(f"gate/system/version.py does not say {version}")
    if f"v{version}" in tags:
        found.append(f"the tag v{version} is there already: released versions never change")
    try:
        words = len(notes((root / "CHANGELOG.md").read_text("utf-8"), version).split())
        if words > MOST_NOTES_WORDS:
            found.append(
                f"CHANGELOG.md has {words:,} words under {version}, and a release page "
                f"{MOST_NOTES_WORDS} at most: shorten them"
            )
    except ReleaseError as error:
        found.append(str(error))
    return (*found, *text_faults(root, version))


def unpinned_faults(root: Path) -> tuple[str, ...]:
    """Why an action cannot take an image: on main, each builds the Dockerfile."""
    found = []
    for name in ACTIONS:
        try:
            pinned_file(root, name, f"registry/name@sha256:{'0' * 64}")
        except ReleaseError as error:
            found.append(str(error))
    return tuple(found)


def image_fault(image: str) -> str:
    """Why a runner could not start an image: it has no login, and either architecture."""
    if not IMAGE.fullmatch(image):
        return "it names no image by digest: `pin` comes first"
    try:
        missing = PLATFORMS - public_platforms(image)
    except ImageError as error:
        return str(error)
    return f"{image} is not for {' and '.join(sorted(missing))}" if missing else ""


def image_faults(root: Path) -> tuple[str, ...]:
    """Why the actions, as they stand in the tree, would not start everywhere."""
    texts = {name: (root / name).read_text("utf-8") for name in ACTIONS}
    images = {name: "".join(PINNED_IMAGE.findall(text)) for name, text in texts.items()}
    found = [f"{name}: {fault}" for name, image in images.items() if (fault := image_fault(image))]
    if not found and len(set(images.values())) < len(images):
        found = [f"{' and '.join(ACTIONS)} name the same image"]
    return tuple(found)


def git_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment for a git that may push: the token comes by no argument and no file."""
    token = variables.get("GITHUB_TOKEN", "")
    if not token:
        return dict(variables)
    server = variables.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/")
    secret = base64.b64encode(f"x-access-token:{token}".encode()).decode("ascii")
    return {
        **variables,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{server}/.extraheader",
        "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {secret}",
    }


def git(root: Path, *arguments: str) -> str:
    """What git prints; `ReleaseError` with its own words when it fails."""
    done = subprocess.run(
        ("git", "-C", str(root), *arguments),
        env=git_variables(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def remote_tags(root: Path) -> frozenset[str]:
    """The names of the tags that the remote has."""
    listed = git(root, "ls-remote", "--tags", "--refs", "origin")
    return frozenset(line.rpartition("refs/tags/")[2] for line in listed.splitlines())


def publish(root: Path, version: str) -> str:
    """Commit both actions, tag the commit and push the tags; answers the commit's hash."""
    changed = git(root, "status", "--porcelain=v1", "--untracked-files=no").splitlines()
    if changed != [f" M {name}" for name in ACTIONS]:
        raise ReleaseError(
            f"a release changes {' and '.join(ACTIONS)} and nothing else, not {changed}"
        )
    tag, moving = f"v{version}", moving_tag(version)
    git(root, *BOT, "commit", "--quiet", "--message", f"Release {tag}", *ACTIONS)
    git(root, *BOT, "tag", "--annotate", "--message", f"repro-gate {version}", tag)
    git(root, "tag", "--force", moving)
    # one push, all or nothing; the version's tag is never forced
    git(root, "push", "--atomic", "origin", f"refs/tags/{tag}", f"+refs/tags/{moving}")
    return git(root, "rev-parse", "HEAD").strip()


def run(words: list[str], root: Path) -> str:
    """One command; answers what it prints."""
    parser = argparse.ArgumentParser(description="The steps of a release.")
    parser.add_argument("command", choices=("check", "pin", "notes", "publish"))
    parser.add_argument("--version")
    parser.add_argument("--image")
    parser.add_argument("--slim-image")
    parser.add_argument("--pinned", action="store_true")
    asked = parser.parse_args(words)
    needed = ("image", "slim_image") if asked.command == "pin" else ("version",)
    missing = [f"--{name.replace('_', '-')}" for name in needed if getattr(asked, name) is None]
    if missing:
        raise ReleaseError(f"{asked.command} needs {' and '.join(missing)}")
    if asked.command == "pin":
        return pin(root, (asked.image, asked.slim_image))
    version = checked_version(asked.version)
    if asked.command == "notes":
        return notes((root / "CHANGELOG.md").read_text("utf-8"), version)
    if asked.command == "publish":
        return f"v{version} and {moving_tag(version)} are {publish(root, version)}\n"
    found = faults(root, version, remote_tags(root))
    found += image_faults(root) if asked.pinned else unpinned_faults(root)
    if found:
        raise ReleaseError("\n".join(found))
    return f"{version} can be released\n"


def main() -> None:
    """Print the answer, or say what is not ready and end with 1."""
    try:
        sys.stdout.write(run(sys.argv[1:], Path.cwd()))
    except ReleaseError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
