"""A fake registry by the OCI distribution specification, with the API that artifacts need."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from urllib.parse import parse_qs, urlsplit

from web_double import Handler, WebDouble

INDEX = "application/vnd.oci.image.index.v1+json"


class OciDouble(WebDouble):
    """Blobs and manifests of any name.

    `keeps_referrers`: it has the list of what refers to a manifest. `login` is `user:password` that
    it wants, asked for by `scheme`; `tokens` is who gives out tokens, itself without another.
    """

    def __init__(self, *, keeps_referrers: bool = False) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.keeps_referrers = keeps_referrers
        self.login = ""
        self.scheme = "bearer"
        self.tokens: str = ""
        self.page = 2
        self.token_query: dict[str, list[str]] = {}

    def serve(self, handler: Handler) -> None:
        url = urlsplit(handler.path)
        if url.path == "/token":
            self._token(handler, url.query)
            return
        content = handler.body()
        if not self._let_in(handler):
            return
        found = re.fullmatch(r"/v2/(.+)/(blobs|manifests|referrers|tags)/(.*)", url.path)
        if found is None:
            handler.answer(404)
        elif found[2] == "blobs":
            self._blob(handler, found[1], found[3], url.query, content)
        elif found[2] == "manifests":
            self._manifest(handler, found[3], content)
        elif found[2] == "tags":
            self._tags(handler, parse_qs(url.query))
        else:
            self._referrers(handler, found[3])

    def _let_in(self, handler: Handler) -> bool:
        wanted = {
            "": "",
            "basic": f"Basic {_coded(self.login)}",
            "bearer": "Bearer a-token",
        }[self.scheme if self.login else ""]
        if handler.headers.get("Authorization", "") == wanted or not wanted:
            return True
        realm = self.tokens or f"{self.url}/token"
        scope = "repository:team/runs:pull,push"
        challenge = f'Bearer realm="{realm}",service="double",scope="{scope}"'
        told = 'Basic realm="double"' if self.scheme == "basic" else challenge
        handler.answer(401, b'{"errors": [{"message": "log in"}]}', WWW_Authenticate=told)
        return False

    def _token(self, handler: Handler, query: str) -> None:
        self.token_query = parse_qs(query)
        if handler.headers.get("Authorization", "") != f"Basic {_coded(self.login)}":
            handler.answer(401, b'{"errors": [{"message": "who is that"}]}')
            return
        handler.answer(200, b'{"token": "a-token", "expires_in": 60}')

    def _blob(self, handler: Handler, name: str, rest: str, query: str, content: bytes) -> None:
        if handler.command == "POST":
            handler.answer(202, Location=f"/v2/{name}/blobs/uploads/one?state=x")
        elif handler.command == "PUT":
            (digest,) = parse_qs(query)["digest"]
            if digest != _digest(content):
                handler.answer(400, b'{"errors": [{"message": "digest did not match"}]}')
                return
            self.blobs[digest] = content
            handler.answer(201)
        elif rest in self.blobs:
            handler.answer(200, self.blobs[rest])
        else:
            handler.answer(404)

    def _manifest(self, handler: Handler, reference: str, content: bytes) -> None:
        if handler.command == "PUT":
            for name in (reference, _digest(content)):
                self.manifests[name] = content
                self.types[name] = handler.headers.get("Content-Type", "")
            subject = json.loads(content).get("subject", {}).get("digest", "")
            told = {"OCI_Subject": subject} if subject and self.keeps_referrers else {}
            handler.answer(201, **told)
        elif reference in self.manifests:
            handler.answer(200, self.manifests[reference], Content_Type=self.types[reference])
        else:
            handler.answer(404, b'{"errors": [{"message": "manifest unknown"}]}')

    def _tags(self, handler: Handler, query: dict[str, list[str]]) -> None:
        """Answer with at most `page` tags after the `last` one, and a link if more follow."""
        last = query.get("last", [""])[0]
        tags = sorted(name for name in self.manifests if ":" not in name and name > last)
        more = {"Link": f'<{self.url}/tags>; rel="next"'} if len(tags) > self.page else {}
        handler.answer(200, json.dumps({"tags": tags[: self.page]}).encode(), **more)

    def _referrers(self, handler: Handler, digest: str) -> None:
        if not self.keeps_referrers:
            handler.answer(404, b"404 page not found")
            return
        rows = []
        for name, content in self.manifests.items():
            document = json.loads(content)
            if document.get("subject", {}).get("digest") == digest and ":" in name:
                row = {"mediaType": document["mediaType"], "digest": name, "size": len(content)}
                row |= {one: document[one] for one in ("artifactType", "annotations")}
                rows.append(row)
        answer = {"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}
        handler.answer(200, json.dumps(answer).encode(), Content_Type=INDEX)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _coded(login: str) -> str:
    return base64.b64encode(login.encode()).decode()
