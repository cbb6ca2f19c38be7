"""Which settings a pull request must not choose itself, because they reach outside its own tree.

If the base commit has no settings file, the gate takes head's, which nobody with a say has read.
Those may decide how the training inside their own tree runs and is judged. Every key that reaches
out of the tree (the machine, its network, its secrets, other services) is refused before anything
is started. The tables below classify every key of the schema. A test fails for a new key without a
class, and an unknown key is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from gate.errors import SettingsError
from gate.isolation.modes import IsolationMode
from gate.settings.gate_settings import GateSettings
from gate.text.document import Document

_DATA: Final = "shows the training what is not in its commit, with the gate's own access and logins"
_FETCH: Final = "decides what is fetched to this machine, and what is removed to make room"
_CONTAINER: Final = "decides what the training gets of this machine"
_CLUSTER: Final = "takes nodes of a cluster in the name of the gate's account"
_SIGNING: Final = "decides whose seals are trusted, and which services the gate shows its identity"
_PUBLISH: Final = "sends packages out with the gate's credentials"
_IMAGE: Final = "has the container engine start an image that nobody approved"

# what a key reaches, as the rest of a sentence that begins with its name
REACHES_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "train.pass_env": "hands variables of the gate's own environment to the training",
        **dict.fromkeys(("data.path", "data.dvc", "data.lfs", "data.url"), _DATA),
        "fetch.cache": "has the gate make and empty folders on this machine",
        **dict.fromkeys(("fetch.max_bytes", "fetch.timeout_seconds"), _FETCH),
        **dict.fromkeys(("isolation.image", "policy.images"), _IMAGE),
        **dict.fromkeys(
            (
                "isolation.gpus",
                "isolation.shm_bytes",
                "isolation.memory_bytes",
                "isolation.pids",
            ),
            _CONTAINER,
        ),
        "isolation.mode": "asks for weaker isolation than the default",
        "isolation.network": "opens the network to the training",
        **dict.fromkeys(
            (
                "signing.trusted_keys",
                "signing.fulcio_url",
                "signing.rekor_url",
                "signing.trusted_root",
            ),
            _SIGNING,
        ),
        **dict.fromkeys(
            (
                "publish.oci",
                "publish.mlflow.uri",
                "publish.mlflow.experiment",
                "publish.mlflow.registered_model",
                "publish.mlflow.when",
            ),
            _PUBLISH,
        ),
        **dict.fromkeys(
            (
                "cluster.engine",
                "cluster.nodes",
                "cluster.tasks_per_node",
                "cluster.options",
                "cluster.programs.submit",
                "cluster.programs.wait",
                "cluster.programs.cancel",
                "cluster.pod.image",
                "cluster.pod.volume_claim",
                "cluster.pod.namespace",
                "cluster.pod.resources",
                "cluster.pod.node_selector",
                "cluster.pod.tolerations",
                "cluster.pod.labels",
                "cluster.folder",
                "cluster.queue_seconds",
                "cluster.run_seconds",
                "cluster.allocations",
            ),
            _CLUSTER,
        ),
        "publish.history": "writes a line of every verdict with the gate's credentials",
        "publish.pushgateway": "has the gate send metrics to a service",
        "report.history": "reads and writes a branch of the repository",
    }
)
# keys about the commit's own training, files and verdict: files are read from the commit, and
# commands run isolated
INSIDE: Final = frozenset(
    (
        "version",
        "train.command",
        "train.max_steps",
        "train.workdir",
        "train.seed",
        "train.timeout_seconds",
        "train.output_limit_bytes",
        "train.env",
        "train.metrics.file",
        "train.metrics.stdout_pattern",
        "train.metrics.tensorboard",
        "train.metrics.tensorboard_tags",
        "train.metrics.trackio",
        "train.metrics.trackio_keys",
        "train.metrics.wandb",
        "train.metrics.wandb_keys",
        "train.checkpoint",
        # only leaves out files of its own commit
        "train.files",
        "train.checkpoint_exclude.pattern",
        "train.checkpoint_exclude.reason",
        # only a GPU that the machine offers anyway; `isolation.gpus` selects those of a container
        "train.device",
        "determinism.threads",
        "determinism.fill_uninitialized_memory",
        "determinism.allow_operators",
        "determinism.profile",
        "determinism.knobs",
        "determinism.on_override",
        "compare.tolerances.metric",
        "compare.tolerances.absolute",
        "compare.tolerances.relative",
        "compare.tolerances.ulp",
        "compare.tolerances.steps",
        "compare.tolerances.better_is",
        "compare.tolerances.improvement",
        "compare.tolerances.derived.runs",
        "compare.tolerances.derived.factor",
        "compare.tolerances.derived.spread",
        "compare.tolerances.derived.confidence",
        "compare.tensors.relative",
        "compare.allow_not_finite.pattern",
        "compare.allow_not_finite.reason",
        "compare.comparable_environment",
        "environment.ignore",
        "environment.locks",
        "baseline.path",
        "baseline.stale_after_days",
        "baseline.record_repeats",
        "baseline.quarantine.reason",
        "baseline.quarantine.since",
        "baseline.quarantine.until",
        "baseline.quarantine.environment",
        "baseline.quarantine.metrics",
        "policy.level",
        "policy.thresholds",
        "policy.equivalence",
        "policy.ranking.metric",
        "policy.ranking.better_is",
        "policy.require_bitwise",
        "policy.allow_baseline_change",
        "policy.run_base_on_drift",
        "policy.environment_drift",
        "policy.data_drift",
        "policy.resume",
        "repeats",
        # the training's own command, which runs isolated like the training
        "resume.command",
        "resume.checkpoint",
        "resume.at_step",
        "resume.kill_while_saving",
        "resume.when",
        "runs.parallel",
        "runs.when_reproduced",
        "runs.unaffected",
        # without effect unless a place in the table above is set too
        "data.stage",
        "data.sha256",
        "data.as",
        "data.at",
        "data.verify",
        "preprocess.command",
        "preprocess.out",
        "preprocess.timeout_seconds",
        "preprocess.max_bytes",
        "seeds",
        "variants",
        "record.overhead_budget",
        "record.free_seconds",
        "diagnosis.escalate",
        "diagnosis.budget_seconds",
        "cost.when",
        "cost.rounds",
        "cost.warmup_steps",
        "cost.min_steps",
        "cost.budget_percent",
        "operator_audit",
        "noise.runs",
        # a lower bound: no value of it is weaker than the default
        "isolation.minimum",
        "package.source",
        "package.checkpoint",
        # only `repro-gate slo` reads these
        "slo.targets",
        "slo.spread",
        "slo.step_deviation",
        "slo.seconds",
        "slo.silent_hours",
        "slo.window_days",
        "slo.gates",
        "report.gate_id",
        "report.comment",
    )
)
# values besides the default with which a key of the table requests nothing
_HARMLESS: Final[Mapping[str, frozenset[object]]] = MappingProxyType(
    {"isolation.mode": frozenset(IsolationMode) - {IsolationMode.NONE}}
)
_UNKNOWN: Final = "is not known to stay inside the tree"


def refuse_reach(settings: GateSettings, source: str) -> None:
    """Raise `SettingsError` with a line for each key of head's settings that reaches out."""
    reach = reaching(settings)
    if not reach:
        return
    keys = f"{len(reach)} keys" if len(reach) > 1 else "a key"
    raise SettingsError(
        f"{source} comes with this pull request, and {keys} in it would reach outside its files: "
        f"{', '.join(reach)}",
        hint=f"The base branch has no {source} yet, so nobody has approved these keys. Merge the "
        "settings file first, in a pull request without the workflow: they apply from then on. Or "
        "remove them here.",
        details=tuple(f"{key}: {reason}" for key, reason in reach.items()),
    )


def reaching(settings: GateSettings) -> dict[str, str]:
    """Return the keys that reach outside the tree, each with what it would do."""
    return dict(_asked(settings, ""))


def _asked(section: Document, path: str) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        # the alias is the key in the file, which may be no valid name in Python
        key = f"{path}{field.alias or name}"
        value = getattr(section, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if key in INSIDE or value == default or value in _HARMLESS.get(key, ()):
            continue
        parts = value if isinstance(value, tuple) else (value,)
        below = [part for part in parts if isinstance(part, Document)]
        if key in REACHES_OUT or not below:
            yield key, REACHES_OUT.get(key, _UNKNOWN)
            continue
        for part in below:
            yield from _asked(part, f"{key}.")
