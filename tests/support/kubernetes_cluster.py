"""A cluster behind kmock's emulator of the API; pods of an Indexed Job are local processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp.web
import kmock
from kmock import KubernetesEmulator, Request, Server

JOBS, PODS = kmock.resource("batch/v1/jobs"), kmock.resource("v1/pods")
HOSTS = ("n1", "n2", "n3", "n4")
TOKEN = "a-token-of-the-service-account"
NAMESPACE = "team"
IMAGE = f"registry.example/training@sha256:{'0' * 64}"
FORBIDDEN = (
    'jobs.batch is forbidden: User "system:serviceaccount:team:gate" cannot create resource "jobs" '
    'in API group "batch" in the namespace "team"'
)


class Emulator(KubernetesEmulator):
    """kmock's emulator with logins, access rights and label selectors, which kmock lacks."""

    forbidden: kmock.resource | None = None

    async def _handle(self, request: Request) -> aiohttp.web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _refused(401, "Unauthorized")
        if request.method.name == "POST" and request.resource == self.forbidden:
            return _refused(403, FORBIDDEN)
        return await super()._handle(request)

    async def _serve_list(self, request: Request) -> Any:  # noqa: ANN401 - kmock's payload
        told: Any = await super()._serve_list(request)
        key, _, value = request.params.get("labelSelector", "").partition("=")
        held = (one for one in told["items"] if one["metadata"]["labels"].get(key) == value)
        return {**told, "items": list(held)}


def _refused(status: int, message: str) -> aiohttp.web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
    return aiohttp.web.json_response(body, status=status)


class KubernetesCluster:
    """The API on a port of this machine, and a thread that acts as the cluster's controllers."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.home = folder / "shared", folder / "home"
        self.shared.mkdir(parents=True)
        self.created: list[dict[str, Any]] = []
        # by a pod's index: the status that it gets instead of being started
        self.instead: dict[int, dict[str, Any]] = {}
        self._pods: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._ready.wait(60)
        self._log_in()

    def close(self) -> None:
        """End all pods and the API."""
        self._stop.set()
        self._thread.join()

    def forbid_jobs(self) -> None:
        """Forbid the account to create jobs from now on."""
        self.emulator.forbidden = JOBS

    def _log_in(self) -> None:
        config = {
            "current-context": "one",
            "contexts": [
                {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}
            ],
            "clusters": [{"name": "c", "cluster": {"server": self.address}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }
        file = self.home / ".kube" / "config"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(config))

    async def _serve(self) -> None:
        self.emulator = Emulator()
        async with self.emulator, Server(self.emulator) as server:
            self.address = str(server.url).rstrip("/")
            self._ready.set()
            while not self._stop.is_set():
                self._control()
                await asyncio.sleep(0.05)
        for pods in self._pods.values():
            _end(pods)

    def _control(self) -> None:
        for (kind, _, name), held in list(self.emulator.objects.items()):
            if held.deleted and name in self._pods:
                _end(self._pods.pop(name))
                for (_, _, other), pod in self.emulator.objects.items():
                    if other.startswith(f"{name}-") and not pod.deleted:
                        pod.delete()
            elif not held.deleted and held.raw not in self.created and kind != PODS:
                self.created.append(held.raw)
                if kind == JOBS:
                    self._begin(name, held.raw)

    def _begin(self, name: str, job: dict[str, Any]) -> None:
        template = job["spec"]["template"]["spec"]
        free = [host for host in HOSTS if host not in _left_out(template["affinity"])]
        self._pods[name] = []
        for index in range(job["spec"]["completions"]):
            labels = {
                "batch.kubernetes.io/job-name": name,
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            pod: dict[str, Any] = {"metadata": {"name": f"{name}-{index}", "labels": labels}}
            pod["spec"] = {"nodeName": free[index]}
            pod["status"] = self.instead.get(index) or {"phase": "Running"}
            self.emulator.objects[PODS, NAMESPACE, f"{name}-{index}"] = pod
            if index not in self.instead:
                self._pods[name].append(_started(template, index, free[index]))

    def evict(self, index: int, words: str) -> None:
        """Evict a pod of the job from its node, as for a pod with a higher priority."""
        for (kind, _, name), held in list(self.emulator.objects.items()):
            if kind == PODS and name.endswith(f"-{index}"):
                condition = {"type": "DisruptionTarget", "status": "True", "message": words}
                condition["reason"] = "PreemptionByScheduler"
                held.patch({"status": {"phase": "Failed", "conditions": [condition]}})
        for pods in self._pods.values():
            _end(pods[index : index + 1])

    def wait_for(self, present: Path) -> None:
        """Wait until a file exists."""
        until = time.monotonic() + 60
        while not present.exists() and time.monotonic() < until:
            time.sleep(0.05)

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the gate's variables, with access to this cluster."""
        return {**own, "HOME": str(self.home)}

    def settings(self, **keys: object) -> str:
        """Return the cluster section of a settings file, with these keys."""
        pod = {"image": IMAGE, "volume_claim": "repro-gate"}
        lines = {
            "engine": "kubernetes",
            "nodes": 2,
            "folder": str(self.shared),
            "pod": pod,
            **keys,
        }
        return "cluster:\n" + "".join(f"  {key}: {json.dumps(lines[key])}\n" for key in lines)


def _left_out(affinity: dict[str, Any]) -> set[str]:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.get("nodeAffinity", {required: {"nodeSelectorTerms": []}})[required]
    fields = [field for term in terms["nodeSelectorTerms"] for field in term["matchFields"]]
    # in `matchFields` the API allows only the node's name, with one value
    assert all(field["key"] == "metadata.name" and len(field["values"]) == 1 for field in fields)
    return {field["values"][0] for field in fields}


def _started(template: dict[str, Any], index: int, node: str) -> subprocess.Popen[bytes]:
    own = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(index), "NODE_NAME": node}
    return subprocess.Popen(
        template["containers"][0]["command"],
        env=own,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end(pods: list[subprocess.Popen[bytes]]) -> None:
    for pod in pods:
        if pod.poll() is None:
            os.kill(pod.pid, signal.SIGTERM)
    for pod in pods:
        pod.wait(30)
