"""A few small files on a separate branch, changed together in one commit through GitHub's API.

Endpoints: GitHub REST API, version 2022-11-28, "Git database" and "Repository contents". The branch
shares no commit with any other. It only moves forward: if two jobs write at once, the second one
starts over with the new content.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import BaseModel, TypeAdapter

from gate.errors import PublishError
from gate.system.github.api import HISTORY_REFUSALS, GitHubApi, RefusedError, read_as
from gate.system.http import GITHUB_POLICY, RetryPolicy
from gate.verdict.history_lines import MAX_HISTORY_BYTES

TRIES: Final = 4
NOT_FOUND: Final = 404
# Another job was faster: the branch exists already, or has moved on.
CONFLICTS: Final = frozenset({409, 422})
# Git objects are named by their content, so repeating a POST makes the same object. Moving a branch
# twice is refused.
REPEATABLE: Final = frozenset({"GET", "POST", "PATCH"})
REGULAR_FILE: Final = "100644"
# the largest history after base64 with line ends, and some room
MAX_ENCODED: Final = 2 * MAX_HISTORY_BYTES


class _Object(BaseModel):
    sha: str


class _Ref(BaseModel):
    object: _Object


class _Commit(BaseModel):
    tree: _Object


class _File(BaseModel):
    encoding: str
    content: str


_OBJECT, _REF = TypeAdapter(_Object), TypeAdapter(_Ref)
_COMMIT, _FILE = TypeAdapter(_Commit), TypeAdapter(_File)


class HistoryBranch:
    """A branch of a repository (owner/name); every failure is a `PublishError`."""

    def __init__(
        self, *, api_url: str, repository: str, token: str, policy: RetryPolicy = GITHUB_POLICY
    ) -> None:
        self._where = (api_url, repository, token, policy, HISTORY_REFUSALS, REPEATABLE)
        self._policy = policy

    def change(
        self, branch: str, path: str, message: str, made: Callable[[bytes], Mapping[str, bytes]]
    ) -> None:
        """Write the files that `made` returns for the current content of `path`.

        The content is empty if the file does not exist. `made` is called again if another job wrote
        in the meantime.
        """
        with GitHubApi(*self._where) as api:
            for tries in range(1, TRIES + 1):
                try:
                    self._try(api, branch, path, message, made)
                except RefusedError as error:
                    if error.status not in CONFLICTS or tries == TRIES:
                        raise
                    self._policy.sleep(self._policy.backoff(tries))
                else:
                    return

    def _try(
        self,
        api: GitHubApi,
        branch: str,
        path: str,
        message: str,
        made: Callable[[bytes], Mapping[str, bytes]],
    ) -> None:
        git = f"{api.repository_url}/git"
        parent = _head(api, branch)
        files = made(_content(api, path, parent) if parent else b"")
        entries = [
            {"path": name, "mode": REGULAR_FILE, "type": "blob", "content": data.decode("utf-8")}
            for name, data in files.items()
        ]
        base = {}
        if parent:
            commit = read_as(api.send("GET", f"{git}/commits/{parent}"), _COMMIT)
            # Without the base tree, the commit would remove all files but the new ones.
            base = {"base_tree": commit.tree.sha}
        tree = read_as(api.send("POST", f"{git}/trees", {**base, "tree": entries}), _OBJECT).sha
        commit_body = {"message": message, "tree": tree, "parents": [parent] if parent else []}
        new = read_as(api.send("POST", f"{git}/commits", commit_body), _OBJECT).sha
        if parent:
            # Never forced, because that would lose what another job wrote in the meantime.
            body = {"sha": new, "force": False}
            api.send("PATCH", f"{git}/refs/heads/{branch}", body)
        else:
            api.send("POST", f"{git}/refs", {"ref": f"refs/heads/{branch}", "sha": new})


def _head(api: GitHubApi, branch: str) -> str:
    try:
        answer = api.send("GET", f"{api.repository_url}/git/ref/heads/{branch}")
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return ""
        raise
    return read_as(answer, _REF).object.sha


def _content(api: GitHubApi, path: str, commit: str) -> bytes:
    try:
        answer = api.send("GET", f"{api.repository_url}/contents/{path}?ref={commit}")
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return b""
        raise
    file = read_as(answer, _FILE)
    # GitHub sends no content above a megabyte. No history is that large, so treat it as empty.
    if file.encoding != "base64" or len(file.content) > MAX_ENCODED:
        return b""
    try:
        return base64.b64decode(file.content)
    except binascii.Error as error:
        raise PublishError("the answer does not come from GitHub's API") from error
