"""A few small files on a branch of their own, changed together in one commit.

Endpoints: GitHub REST API, version 2022-11-28, "Git database" and "Repository contents". The branch
shares no commit with any other. It only moves forward: of two jobs at once the second looks again.
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
from gate.verdict.history import MAX_HISTORY_BYTES

TRIES: Final = 4
NOT_FOUND: Final = 404
# somebody else was faster: the branch is there already, or has moved on
CONFLICTS: Final = frozenset({409, 422})
# made of content, so that a second time makes the same again; moving a branch twice is refused
REPEATABLE: Final = frozenset({"GET", "POST", "PATCH"})
REGULAR_FILE: Final = "100644"
# what base64 and line ends make of the largest history, with room
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
        """Write the files that `made` makes of the content of `path`, empty where there is none.

        It is asked again where another job wrote meanwhile.
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
            # without it the tree would hold the new files alone, and the commit remove all others
            base = {"base_tree": commit.tree.sha}
        tree = read_as(api.send("POST", f"{git}/trees", {**base, "tree": entries}), _OBJECT).sha
        commit_body = {"message": message, "tree": tree, "parents": [parent] if parent else []}
        new = read_as(api.send("POST", f"{git}/commits", commit_body), _OBJECT).sha
        if parent:
            # never by force: what another job wrote meanwhile would be lost
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
    # above a megabyte GitHub sends no content; no history of ours is that large, so it begins anew
    if file.encoding != "base64" or len(file.content) > MAX_ENCODED:
        return b""
    try:
        return base64.b64decode(file.content)
    except binascii.Error as error:
        raise PublishError("the answer does not come from GitHub's API") from error
