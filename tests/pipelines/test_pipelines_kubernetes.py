"""Runs in pods of an Indexed Job, by an API that kmock emulates; no cluster ever ran them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cluster_bench import SECRET, SETTINGS, ClusterBench
from each_row import each_row
from kubernetes_cluster import FORBIDDEN, IMAGE, TOKEN, KubernetesCluster
from played_training import WITH_RANKS, Project

from gate.errors import RunError, SettingsError
from gate.settings.load import parse_settings
from gate.settings.reach import refuse_reach
from gate.verdict.verdict import Outcome

TOLD = (
    "import os\n"
    "os.write(1, (repr(dict(os.environ)) + '\\n').encode())\n"
    "os.write(1, f\"{os.environ['RANK']} at {os.environ['MASTER_ADDR']}\\n\".encode())\n"
)
POD = {"image": IMAGE, "volume_claim": "repro-gate"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubernetesCluster]:
    made = KubernetesCluster(tmp_path / "cluster")
    yield made
    made.close()


@pytest.fixture
def bench(project: Project, tmp_path: Path, cluster: KubernetesCluster) -> ClusterBench:
    made = ClusterBench(project, tmp_path / "out", cluster)
    made.settings()
    return made


def test_pods_on_two_nodes_are_judged_and_leave_nothing(
    bench: ClusterBench, cluster: KubernetesCluster, project: Project
) -> None:
    project.write("train.py", TOLD + WITH_RANKS)
    bench.settings(allocations=2)
    gated = bench.gate()
    assert gated.verdict.outcome is Outcome.NO_BASELINE
    assert gated.verdict.isolation.described.startswith("job user (none on the gate's machine")
    nodes = [{node.name for node in run.nodes} for run in gated.evidence.runs]
    assert nodes == [{"n1", "n2"}, {"n3", "n4"}]
    name = cluster.created[1]["metadata"]["name"]
    printed = (bench.out / "evidence/strict-1/output.txt").read_text()
    # pods reach each other by the names that the service gives
    assert f"0 at {name}-0.{name}" in printed.splitlines()
    assert SECRET not in printed
    assert TOKEN not in printed
    assert list(cluster.shared.iterdir()) == []
    assert all(held.deleted for held in cluster.emulator.objects.values())


def test_what_is_created_fits_the_schemas_and_says_what_the_settings_say(
    bench: ClusterBench, cluster: KubernetesCluster, project: Project
) -> None:
    pod = {
        **POD,
        "namespace": "team",
        "resources": {"nvidia.com/gpu": 8, "memory": "64Gi"},
        "node_selector": {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
        "tolerations": ["nvidia.com/gpu"],
        "labels": {"kueue.x-k8s.io/queue-name": "research"},
    }
    bench.settings(pod=pod)
    project.play(exit=7)
    with pytest.raises(RunError, match="exited with 7"):
        bench.gate()
    validate: Any = import_module("kubernetes_validate")
    service, job = cluster.created
    for document in (service, job):
        validate.validate(document, validate.latest_version(), strict=True)
        assert document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == IMAGE
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}}
    assert spec["nodeSelector"] == pod["node_selector"]
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "repro-gate"}
    # a job begins before its pods have nodes: noise.runs and four more runs, and five minutes
    assert job["spec"]["activeDeadlineSeconds"] == 1200 + 9 * 1800 + 300
    # nothing of the cluster's own, and no second try, which would be another run
    assert spec["automountServiceAccountToken"] is False
    assert (spec["restartPolicy"], job["spec"]["backoffLimit"]) == ("Never", 0)
    assert TOKEN not in json.dumps(job)


NO_GPU = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def test_a_job_that_finds_no_nodes_is_told_in_the_words_of_the_scheduler(
    bench: ClusterBench, cluster: KubernetesCluster
) -> None:
    bench.settings(queue_seconds=8)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    cluster.instead[1] = {"phase": "Pending", "conditions": [{**condition, "message": NO_GPU}]}
    with pytest.raises(RunError) as caught:
        bench.gate()
    assert "waited 8 s for 2 nodes: job repro-gate-" in caught.value.message
    assert NO_GPU in caught.value.message
    assert list(cluster.shared.iterdir()) == []


@each_row(
    ("status", "told"),
    [
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {
                        "state": {
                            "waiting": {"reason": "ImagePullBackOff", "message": "no such image"}
                        }
                    }
                ],
            },
            "node 1 (n2): ImagePullBackOff: no such image",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                ],
            },
            "node 1 (n2): OOMKilled, exit code 137",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"},
            "node 1 (n2): Evicted: low on resource: memory",
        ),
    ],
)
def test_a_pod_that_cannot_run_ends_the_job_at_once(
    bench: ClusterBench, cluster: KubernetesCluster, status: dict[str, Any], told: str
) -> None:
    cluster.instead[1] = status
    with pytest.raises(RunError, match=r"the cluster ended job repro-gate-\w+") as caught:
        bench.gate()
    assert told in caught.value.message


def test_a_pod_that_is_taken_away_while_a_run_trains_is_never_a_difference(
    bench: ClusterBench, cluster: KubernetesCluster, project: Project, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    waits = f"import os, time\nos.environ['RANK'] == '1' and open({str(begun)!r}, 'w')\n"
    project.write("train.py", f"{waits}time.sleep(300)\n{WITH_RANKS}")
    project.commit()

    def evict() -> None:
        cluster.wait_for(begun)
        cluster.evict(1, "a pod with a higher priority needs the node")

    other = threading.Thread(target=evict)
    other.start()
    with pytest.raises(RunError) as caught:
        bench.gate()
    other.join()
    words = "node 1 (n2): PreemptionByScheduler: a pod with a higher priority needs the node"
    assert words in caught.value.message


def test_a_file_of_kubectls_may_be_named_from_here(
    bench: ClusterBench,
    cluster: KubernetesCluster,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = (cluster.home / ".kube" / "config").rename(project.path.parent / "config")
    monkeypatch.setenv("KUBECONFIG", os.path.relpath(config))
    cluster.forbid_jobs()
    with pytest.raises(RunError, match="the submission to Kubernetes exited with 1") as caught:
        bench.gate()
    assert FORBIDDEN[:100] in " ".join(caught.value.details)


def test_an_account_without_the_right_is_told_by_the_api(
    bench: ClusterBench, cluster: KubernetesCluster
) -> None:
    cluster.forbid_jobs()
    with pytest.raises(RunError, match="the submission to Kubernetes exited with 1") as caught:
        bench.gate()
    assert FORBIDDEN[:100] in " ".join(caught.value.details)
    assert "docs/cluster.md has the rights" in caught.value.hint
    # the service that was created before is gone too
    assert all(held.deleted for held in cluster.emulator.objects.values())


SECTION = f"cluster: {{engine: kubernetes, folder: /s, pod: {json.dumps(POD)}}}"


@each_row(
    ("section", "told"),
    [
        ("cluster: {engine: kubernetes, folder: /s}", "pod and engine: kubernetes need each other"),
        (
            SECTION.replace("folder: /s", "folder: /s, options: {partition: a}"),
            "options are those of sbatch",
        ),
        (SECTION.replace(IMAGE, "training:latest"), "must name an image by its digest"),
        (SECTION.replace("registry.example/", "../"), "cluster.pod.image"),
        (SECTION.replace("repro-gate", "a b"), "'a b' is not a word of Kubernetes"),
    ],
)
def test_settings_that_no_pod_can_have_are_refused(section: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"{SETTINGS}{section}\n".encode(), "repro-gate.yml")
    assert told in str(caught.value)


def test_a_pull_request_cannot_name_an_image() -> None:
    with pytest.raises(SettingsError, match=r"cluster\.pod\.image"):
        refuse_reach(parse_settings(f"{SETTINGS}{SECTION}\n".encode(), "a.yml"), "a.yml")
