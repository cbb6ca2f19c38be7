"""Branches and their files, as the fake GitHub server stores them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

GIT_PATH = re.compile(r"/repos/[^/]+/[^/]+/(?:git/(?P<what>.+)|contents/(?P<file>.+))")
Answer = tuple[int, object, dict[str, str]]
NOT_FOUND: Answer = (404, {"message": "Not Found"}, {})


@dataclass
class Branches:
    """Refs, commits and trees by made-up hashes; without `allowed` the token is read-only."""

    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, Any]] = field(default_factory=dict)
    trees: dict[str, dict[str, str]] = field(default_factory=dict)
    allowed: bool = True
    # commits by somebody else, one of which is pushed before each move of a branch: a race
    meanwhile: list[dict[str, str]] = field(default_factory=list)

    def files(self, branch: str) -> dict[str, str]:
        """Return the files of a branch by path."""
        return dict(self.trees[self.commits[self.refs[f"heads/{branch}"]]["tree"]])

    def put(self, branch: str, files: dict[str, str]) -> None:
        """Commit files to a branch, as somebody else would."""
        name = f"heads/{branch}"
        parents = [self.refs[name]] if name in self.refs else []
        old = self.files(branch) if parents else {}
        tree = self._keep(self.trees, old | files)
        made = {"tree": tree, "parents": parents, "message": f"by hand {len(self.commits)}"}
        self.refs[name] = self._keep(self.commits, made)

    def answer(self, method: str, path: str, query: str, body: dict[str, Any]) -> Answer | None:
        """Return the API's answer, or None if the request is not about branches."""
        found = GIT_PATH.fullmatch(path)
        if found is None:
            return None
        if method != "GET" and not self.allowed:
            return 403, {"message": "Resource not accessible by integration"}, {}
        if found["file"]:
            return self._file(found["file"], query.removeprefix("ref="))
        what, _, name = found["what"].partition("/")
        return self._git(method, what, name, body)

    def _git(self, method: str, what: str, name: str, body: dict[str, Any]) -> Answer:
        if (method, what) == ("GET", "ref"):
            return self._told(self.refs.get(name))
        if (method, what) == ("GET", "commits") and name in self.commits:
            return 200, {"tree": {"sha": self.commits[name]["tree"]}}, {}
        if (method, what) == ("POST", "trees"):
            base = self.trees[body["base_tree"]] if "base_tree" in body else {}
            made = {entry["path"]: entry["content"] for entry in body["tree"]}
            return 201, {"sha": self._keep(self.trees, base | made)}, {}
        if (method, what) == ("POST", "commits"):
            return 201, {"sha": self._keep(self.commits, body)}, {}
        return self._move(method, name, body) if what == "refs" else NOT_FOUND

    def _move(self, method: str, name: str, body: dict[str, Any]) -> Answer:
        if method == "POST" and not {"ref", "sha"} <= body.keys():
            return 422, {"message": "Invalid request."}, {}
        name = name or body["ref"].removeprefix("refs/")
        if self.meanwhile:
            self.put(name.removeprefix("heads/"), self.meanwhile.pop(0))
        if method == "POST" and name in self.refs:
            return 422, {"message": "Reference already exists"}, {}
        forward = self.refs.get(name) in [*self.commits[body["sha"]]["parents"], body["sha"]]
        if method == "PATCH" and not forward:
            return 422, {"message": "Update is not a fast forward"}, {}
        self.refs[name] = body["sha"]
        return self._told(body["sha"])

    def _file(self, path: str, commit: str) -> Answer:
        content = self.trees[self.commits[commit]["tree"]].get(path)
        if content is None:
            return NOT_FOUND
        encoded = base64.encodebytes(content.encode()).decode()
        return 200, {"encoding": "base64", "content": encoded}, {}

    @staticmethod
    def _told(sha: str | None) -> Answer:
        return (200, {"object": {"sha": sha}}, {}) if sha else NOT_FOUND

    @staticmethod
    def _keep(kept: dict[str, Any], thing: dict[str, Any]) -> str:
        sha = hashlib.sha1(json.dumps(thing).encode(), usedforsecurity=False).hexdigest()
        kept[sha] = thing
        return sha
