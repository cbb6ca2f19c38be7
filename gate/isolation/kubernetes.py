"""Pods of an Indexed Job as the nodes of a call: `engine: kubernetes`.

The three commands that `own_programs` needs are functions of this module, which call the API. A
headless service gives the pods their names. The manifests follow the reference of batch/v1 and v1.
Why a pod ended is read from its conditions (Kubernetes, "Pod disruption conditions" and "Container
states").
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field

from gate.errors import GateError
from gate.isolation.cluster_settings import ClusterSettings, PodSettings
from gate.isolation.kubernetes_api import (
    CONFIG_VARIABLE,
    VARIABLES,
    KubernetesApi,
    access_by,
    config_file,
)
from gate.isolation.own_programs import KEPT_VARIABLES, AgentJobs, JobPrograms, python_command
from gate.system.http import UnansweredError
from gate.text.untrusted_text import safe_line

JOBS: Final = "apis/batch/v1/jobs"
SERVICES: Final = "api/v1/services"
PODS: Final = "api/v1/pods"
MODULE: Final = "from gate.isolation.kubernetes import {0}; {0}"
LABEL: Final = "batch.kubernetes.io/job-name"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
SHARED: Final = "shared"
MEMORY: Final = "memory"
# Kubernetes removes what a killed gate left of its job after this time, if no call cancels it first
KEPT_SECONDS: Final = 600
WATCH_SECONDS: Final = 2.0
# a container that waits for one of these reasons will not start by itself (kubelet, images and
# containers)
STUCK: Final = frozenset(
    (
        *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    )
)
HINT: Final = (
    "The details show what the API said. docs/cluster.md has the rights that the gate's account "
    "needs, and what `cluster.pod` means."
)


class Kubernetes(AgentJobs):
    """A scheduler that submits its jobs through the Kubernetes API."""

    def __init__(
        self,
        settings: ClusterSettings,
        pod: PodSettings,
        variables: Mapping[str, str],
        imports: Iterable[str],
    ) -> None:
        """`variables` are the gate's own; the commands get those that locate the API."""
        self._variables = variables
        folder, imports = Path(settings.folder or "/"), tuple(imports)

        def command(main: str) -> tuple[str, ...]:
            return (*python_command(MODULE.format(main), imports), pod.model_dump_json())

        commands = JobPrograms(
            submit=(*command("main_submit"), str(folder), str(round(settings.queue_seconds))),
            wait=command("main_wait"),
            cancel=command("main_cancel"),
            submit_called="the submission to Kubernetes",
            cancel_called="the deletion of a job of Kubernetes",
            hint=HINT,
        )
        kept = (*KEPT_VARIABLES, *VARIABLES)
        passed = {name: variables[name] for name in kept if name in variables}
        if named := passed.get(CONFIG_VARIABLE):
            # make the path absolute, because the commands start in another folder
            passed[CONFIG_VARIABLE] = str(config_file(named).absolute())
        super().__init__(commands, folder, passed, imports)

    def refuse_absent(self) -> None:
        """Raise `RunError` if nothing on this machine says how to reach an API."""
        access_by(self._variables).login()


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The nodes that a job asks for, and the script that starts on each.

    `seconds` count from the start of the job, so they include the time its pods wait for nodes.
    Nodes in `left_out` must not be used.
    """

    count: int
    seconds: int
    folder: str
    script: str
    left_out: tuple[str, ...] = ()


def main_submit(pod_settings: str, folder: str, queue_seconds: str, *asked_for: str) -> None:
    """Create the service and the job, and print the job's name.

    If that fails, exit with 1 and the reason.
    """
    nodes, _, seconds, script, left_out = asked_for
    pod = PodSettings.model_validate_json(pod_settings)
    asked = Nodes(
        count=int(nodes),
        seconds=int(queue_seconds) + int(seconds),
        folder=folder,
        script=script,
        left_out=tuple(filter(None, left_out.split(","))),
    )
    name = f"repro-gate-{secrets.token_hex(5)}"
    with _api(pod) as api:
        try:
            api.create(SERVICES, service_of(name, pod))
            api.create(JOBS, job_of(name, pod, asked))
        except GateError as error:
            # after a lost answer the job may exist, and would hold its nodes
            with suppress(GateError):
                _delete(api, name)
            sys.exit(_words(error))
    sys.stdout.write(f"{name}\n")


def main_wait(pod_settings: str, job: str) -> None:
    """Print what the job waits for whenever that changes, and finally why it ended."""
    before = ""
    with _api(PodSettings.model_validate_json(pod_settings)) as api:
        while True:
            try:
                seen = watched_job(api, job)
            except UnansweredError as error:
                # the pods keep running while the API is unreachable
                seen = WatchedJob(over=False, words=_words(error))
            except GateError as error:
                seen = WatchedJob(over=True, words=_words(error))
            if seen.words != before:
                sys.stdout.write(f"{safe_line(seen.words)}\n")
                sys.stdout.flush()
                before = seen.words
            if seen.over:
                return
            time.sleep(WATCH_SECONDS)


def main_cancel(pod_settings: str, job: str) -> None:
    """Delete the job with its pods, and its service."""
    with _api(PodSettings.model_validate_json(pod_settings)) as api:
        try:
            _delete(api, job)
        except GateError as error:
            sys.exit(_words(error))


def _api(pod: PodSettings) -> KubernetesApi:
    try:
        access = access_by(os.environ)
    except GateError as error:
        sys.exit(_words(error))
    return KubernetesApi(access, pod.namespace)


def _delete(api: KubernetesApi, name: str) -> None:
    api.delete(JOBS, name)
    api.delete(SERVICES, name)


def _words(error: GateError) -> str:
    return ": ".join((error.message, *error.details))


def service_of(name: str, pod: PodSettings) -> dict[str, object]:
    """Return the manifest of the headless service by which pods find each other.

    It also publishes pods that are not ready yet.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": _labels(pod)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: name},
        },
    }


def job_of(name: str, pod: PodSettings, asked: Nodes) -> dict[str, object]:
    """Return the manifest of a job with one index for each node.

    Each pod gets its own machine. If one pod fails, the job fails, and no pod is restarted.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": _labels(pod)},
        "spec": {
            "completionMode": "Indexed",
            "completions": asked.count,
            "parallelism": asked.count,
            # a restarted pod would be a different run
            "backoffLimit": 0,
            "activeDeadlineSeconds": asked.seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {"labels": _labels(pod)},
                "spec": {
                    "restartPolicy": "Never",
                    "subdomain": name,
                    # a training gets none of the cluster's credentials or addresses (rule T1)
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "nodeSelector": dict(pod.node_selector),
                    "tolerations": [{"key": key, "operator": "Exists"} for key in pod.tolerations],
                    # the same ids as the gate, whose account owns the files in the shared folder
                    "securityContext": {
                        "runAsUser": os.getuid(),
                        "runAsGroup": os.getgid(),
                        "runAsNonRoot": os.getuid() != 0,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "affinity": _affinity(name, asked.left_out),
                    "containers": [_container(name, pod, asked)],
                    "volumes": [
                        {"name": SHARED, "persistentVolumeClaim": {"claimName": pod.volume_claim}},
                        # the default of 64 MiB is too small: DataLoader workers would die by SIGBUS
                        {"name": MEMORY, "emptyDir": {"medium": "Memory"}},
                    ],
                },
            },
        },
    }


def _container(name: str, pod: PodSettings, asked: Nodes) -> dict[str, object]:
    # the host name that an Indexed job gives each pod, in the domain of its service
    address = f"{name}-$JOB_COMPLETION_INDEX.{name}"
    # the script is passed as `$0`, so the shell does not parse its path
    start = f'exec /bin/sh "$0" "$JOB_COMPLETION_INDEX" "$NODE_NAME" "{address}"'
    return {
        "name": "node",
        "image": pod.image,
        "command": ["/bin/sh", "-c", start, asked.script],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"limits": dict(pod.resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": SHARED, "mountPath": asked.folder},
            {"name": MEMORY, "mountPath": "/dev/shm"},  # noqa: S108 - inside the pod
        ],
    }


def _labels(pod: PodSettings) -> dict[str, str]:
    return {"app.kubernetes.io/name": "repro-gate", **pod.labels}


def _affinity(name: str, left_out: tuple[str, ...]) -> dict[str, object]:
    affinity: dict[str, object] = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {LABEL: name}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    # match the node's name: its label for the host name may differ. A field takes one value per
    # entry.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in left_out]
    if fields:
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": fields}]
            }
        }
    return affinity


class _Condition(BaseModel):
    type: str
    status: str
    reason: str = ""
    message: str = ""

    @property
    def words(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message)))


class _Conditions(BaseModel):
    conditions: list[_Condition] = Field(default_factory=list, max_length=100)

    def holding(self, *kinds: str) -> _Condition | None:
        held = (
            condition
            for condition in self.conditions
            if condition.status == "True" and condition.type in kinds
        )
        return next(held, None)


class _Job(BaseModel):
    status: _Conditions = _Conditions()


class _Waiting(BaseModel):
    reason: str = ""
    message: str = ""


class _Terminated(BaseModel):
    reason: str = ""
    exitCode: int = 0  # noqa: N815 - the API's name


class _State(BaseModel):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _Container(BaseModel):
    state: _State = _State()


class _PodStatus(_Conditions):
    phase: str = ""
    reason: str = ""
    message: str = ""
    containerStatuses: list[_Container] = Field(default_factory=list, max_length=100)  # noqa: N815


class _PodSpec(BaseModel):
    nodeName: str = ""  # noqa: N815


class _Metadata(BaseModel):
    name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)


class _Pod(BaseModel):
    metadata: _Metadata = _Metadata()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def called(self) -> str:
        index = self.metadata.labels.get(INDEX) or self.metadata.name
        return f"node {index}" + (f" ({self.spec.nodeName})" if self.spec.nodeName else "")


class _Pods(BaseModel):
    items: list[_Pod] = Field(default_factory=list, max_length=10_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedJob:
    """Whether a job is over, and what it waits for or why it ended."""

    over: bool
    words: str


def watched_job(api: KubernetesApi, name: str) -> WatchedJob:
    """Return the state of a job; one lost pod ends it, whatever the others do."""
    job = api.read(JOBS, name, _Job)
    if job is None:
        return WatchedJob(over=True, words="somebody deleted the job")
    pods = api.list(PODS, f"{LABEL}={name}", _Pods) or _Pods()
    # before the job's own conditions, which do not name the pod
    if lost := next(_lost(pods.items), ""):
        return WatchedJob(over=True, words=lost)
    ended = job.status.holding("Failed", "FailureTarget", "Complete", "SuccessCriteriaMet")
    if ended is not None:
        return WatchedJob(over=True, words=ended.words or f"the job is {ended.type.lower()}")
    if suspended := job.status.holding("Suspended"):
        return WatchedJob(over=False, words=suspended.words or "the job is suspended")
    return WatchedJob(over=False, words=next(_waiting(pods.items), ""))


def _lost(pods: list[_Pod]) -> Iterator[str]:
    for pod in pods:
        status = pod.status
        if disrupted := status.holding("DisruptionTarget"):
            yield f"{pod.called}: {disrupted.words}"
        for container in status.containerStatuses:
            waiting, ended = container.state.waiting, container.state.terminated
            if waiting is not None and waiting.reason in STUCK:
                yield f"{pod.called}: {waiting.reason}: {waiting.message}"
            if ended is not None and status.phase == "Failed":
                yield f"{pod.called}: {ended.reason or 'Error'}, exit code {ended.exitCode}"
        if status.phase == "Failed":
            words = ": ".join(filter(None, (status.reason, status.message)))
            yield f"{pod.called}: {words or 'it failed'}"


def _waiting(pods: list[_Pod]) -> Iterator[str]:
    for pod in pods:
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                yield f"{pod.called}: {condition.words}"
        for container in pod.status.containerStatuses:
            if container.state.waiting is not None:
                yield f"{pod.called}: {container.state.waiting.reason}"
