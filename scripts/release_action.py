"""The steps of a release that need more than one command, for `.github/workflows/release.yml`.

    release_action.py check --version 1.2.3
    release_action.py pin --image ghcr.io/owner/repro-gate@sha256:... --slim-image ghcr.io/...
    release_action.py check --version 1.2.3 --pinned
    release_action.py notes --version 1.2.3
    release_action.py publish --version 1.2.3

`check` reports whether the code, the changelog, the published files and the tags are ready for a
version. `pin` writes both images by digest into action.yml and slim/action.yml. Only then does a
workflow that names the action by a commit's hash always get the same bytes. `check --pinned` also
asks the registry, without a login as a runner does, whether these images are public for each
architecture. `notes` prints the version's part of the changelog. `publish` commits both files on
top of the checked-out commit, tags that commit `v1.2.3`, moves the tag of the major version, and
pushes both tags. It pushes no branch: on main, both actions continue to build the Dockerfile.
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
# The files that readers copy from or follow, in which the placeholder `org/` must be replaced.
# Tests and changelog may keep it: nobody uses the name there as an address.
PUBLISHED: Final = (
    "*.md",
    "action.yml",
    "*/action.yml",
    ".github/**/*",
    "docs/*.md",
    "examples/**/*.yml",
    "examples/**/*.md",
    # `init` writes parts of it into projects, and hints name the action
    "gate/**/*.py",
    # a package index shows it
    "pyproject.toml",
    # alerts link to pages of the repository; the script writes these files
    "ops/**/*.yml",
    "scripts/ops_kit.py",
)
NOT_PUBLISHED: Final = ("CHANGELOG.md", "CONTRIBUTING.md")
PLACEHOLDER: Final = re.compile(r"(?<![\w.-])org/(?=repro-gate)")
FOLLOWED: Final = re.compile(r"\brepro-gate(?:/[a-z]+)?@(v[0-9]+)\b")
# more than this nobody reads on a release page
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
    """Return the text if it is a version such as 1.2.3; raises `ReleaseError` otherwise."""
    if not VERSION.fullmatch(text):
        raise ReleaseError(f"{text[:40]!r} is not a version: write it as 1.2.3, without a v")
    return text


def moving_tag(version: str) -> str:
    """Return the tag of the major version, such as v1, which workflows follow."""
    return f"v{version.partition('.')[0]}"


def pinned(action: str, image: str) -> str:
    """Return the text of an action.yml with an image by digest in place of the Dockerfile.

    Raises `ReleaseError` for an image without a digest, and for a text that does not name the
    Dockerfile exactly once.
    """
    if not IMAGE.fullmatch(image):
        raise ReleaseError(f"{image[:300]!r} is no image by digest: name@sha256:...")
    if len(BUILT_IMAGE.findall(action)) != 1:
        raise ReleaseError("it does not say `image: Dockerfile` exactly once")
    return BUILT_IMAGE.sub(f"  image: docker://{image}\n", action)


def pinned_file(root: Path, name: str, image: str) -> str:
    """Return the text of the action `name` with an image by digest; errors name the file."""
    try:
        return pinned((root / name).read_text("utf-8"), image)
    except ReleaseError as error:
        raise ReleaseError(f"{name}: {error}") from error


def pin(root: Path, images: tuple[str, str]) -> str:
    """Write both images into their actions, in the order of `ACTIONS`; return what was done."""
    # compute both texts before writing either, so that a fault leaves both files unchanged
    texts = [pinned_file(root, name, image) for name, image in zip(ACTIONS, images, strict=True)]
    for name, text in zip(ACTIONS, texts, strict=True):
        (root / name).write_text(text, "utf-8")
    return "".join(f"{name} starts {image}\n" for name, image in zip(ACTIONS, images, strict=True))


def published(root: Path) -> tuple[Path, ...]:
    """Return the files that users copy from or follow, as paths relative to `root`."""
    found = {path for pattern in PUBLISHED for path in root.glob(pattern) if path.is_file()}
    kept = (path.relative_to(root) for path in found if path.name not in NOT_PUBLISHED)
    return tuple(sorted(kept))


def text_faults(root: Path, version: str) -> tuple[str, ...]:
    """Return what would be wrong in the published files once this version is released.

    That is the placeholder `org/`, and any moving tag other than this version's.
    """
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
    """Return the changelog's part for a version, without its heading.

    Raises `ReleaseError` if there is none, or if it is empty.
    """
    heading = rf"^## \[{re.escape(version)}\] - [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$"
    found = re.search(rf"{heading}\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ReleaseError(
            f"CHANGELOG.md has nothing under `## [{version}] - YYYY-MM-DD`: move the entries "
            "of Unreleased to that heading"
        )
    return found[1].strip() + "\n"


def faults(root: Path, version: str, tags: frozenset[str]) -> tuple[str, ...]:
    """Return the reasons why a version cannot be released from this tree; empty if it can.

    `tags` are the tags of the remote.
    """
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
    """Return the reasons why an image could not be pinned; on main, each action builds one."""
    found = []
    for name in ACTIONS:
        try:
            # an example digest: this only tries whether `pin` would find the line to replace
            pinned_file(root, name, f"registry/name@sha256:{'0' * 64}")
        except ReleaseError as error:
            found.append(str(error))
    return tuple(found)


def image_fault(image: str) -> str:
    """Return why some runner could not start an image; empty if all can.

    A runner has no login for the registry, and either architecture.
    """
    if not IMAGE.fullmatch(image):
        return "it names no image by digest: `pin` comes first"
    try:
        missing = PLATFORMS - public_platforms(image)
    except ImageError as error:
        return str(error)
    return f"{image} is not for {' and '.join(sorted(missing))}" if missing else ""


def image_faults(root: Path) -> tuple[str, ...]:
    """Return the reasons why the pinned actions would not start on every runner."""
    texts = {name: (root / name).read_text("utf-8") for name in ACTIONS}
    images = {name: "".join(PINNED_IMAGE.findall(text)) for name, text in texts.items()}
    found = [f"{name}: {fault}" for name, image in images.items() if (fault := image_fault(image))]
    if not found and len(set(images.values())) < len(images):
        found = [f"{' and '.join(ACTIONS)} name the same image"]
    return tuple(found)


def git_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return git's environment, with the token as an HTTP header for the server.

    Not as an argument, which other processes can read, and not in a file, which would remain.
    """
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
    """Return what git prints; raises `ReleaseError` with git's message if it fails."""
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
    """Return the names of the remote's tags."""
    listed = git(root, "ls-remote", "--tags", "--refs", "origin")
    return frozenset(line.rpartition("refs/tags/")[2] for line in listed.splitlines())


def publish(root: Path, version: str) -> str:
    """Commit both actions, tag the commit and push the tags; return the commit's hash.

    Raises `ReleaseError` if any other file has changed.
    """
    changed = git(root, "status", "--porcelain=v1", "--untracked-files=no").splitlines()
    if changed != [f" M {name}" for name in ACTIONS]:
        raise ReleaseError(
            f"a release changes {' and '.join(ACTIONS)} and nothing else, not {changed}"
        )
    tag, moving = f"v{version}", moving_tag(version)
    git(root, *BOT, "commit", "--quiet", "--message", f"Release {tag}", *ACTIONS)
    git(root, *BOT, "tag", "--annotate", "--message", f"repro-gate {version}", tag)
    git(root, "tag", "--force", moving)
    # Atomic: both tags move, or none. Only the moving tag has the `+` that forces it, so a version
    # that was released cannot be replaced.
    git(root, "push", "--atomic", "origin", f"refs/tags/{tag}", f"+refs/tags/{moving}")
    return git(root, "rev-parse", "HEAD").strip()


def run(words: list[str], root: Path) -> str:
    """Run one command of the script and return what it prints; raises `ReleaseError`."""
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
    """Print the answer, or print what is not ready and end with exit code 1."""
    try:
        sys.stdout.write(run(sys.argv[1:], Path.cwd()))
    except ReleaseError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
