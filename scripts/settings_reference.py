"""Write docs/settings.md, with every key of `repro-gate.yml` and its description in the schema.

Also writes docs/repro-gate.schema.json. The first line of a settings file names that schema, so
that editors can complete and check the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gate.commands.schema import schema_text
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
SCHEMA: Final = PAGE.with_name("repro-gate.schema.json")
PLAIN_TYPES: Final = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "boolean",
}
Schema = Mapping[str, Any]

HEAD: Final = f"""\
<!-- Written by `make settings-reference` from the schema: change the sentences there. -->

# Settings

`repro-gate.yml` contains the settings of one gate. Three keys are required, and enough to start:

```yaml
{MINIMAL_FILE}```

- On a pull request, the base commit's file applies.
- An unknown or duplicate key is an error.
- Editors complete and check the file: its first line, which `repro-gate init` writes, names the
  JSON Schema. `repro-gate schema` prints it.

Each section below ends with an example to copy.
"""
# An example for each section, for readers to copy. A test parses each.
EXAMPLES: Final = {
    "train": """\
train:
  command: [python, train.py, --config, "configs/smoke test.yaml"]
  max_steps: 50
  workdir: training
  env: {TOKENIZERS_PARALLELISM: "false"}
  metrics:
    file: out/metrics.jsonl
  checkpoint: out/last
  checkpoint_exclude:
    - pattern: /callbacks/Timer/**
      reason: measured times
  device: cuda
""",
    "data": """\
data:
  - path: /srv/mini                  # read from $REPRO_GATE_DATA/mini
  - {path: /srv/labels-2026.csv, as: labels.csv, verify: cached}
  - dvc: data/train.dvc              # found at data/train
  - {dvc: dvc.lock, stage: tokenize}
  - lfs: data/*.bin
  - url: https://data.example.org/weights.pt
    sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
""",
    "fetch": """\
fetch:
  cache: /srv/cache/repro-gate
  max_bytes: 53687091200
  timeout_seconds: 600
""",
    "preprocess": """\
preprocess:
  command: python prepare.py --small
  out: data/prepared
""",
    "determinism": """\
determinism:
  threads: 4
  allow_operators: [put_]
  knobs:
    cudnn_benchmark: keep
  on_override: fail
""",
    "compare": """\
compare:
  tolerances:
    - metric: "*accuracy"      # counted, so it moves in steps
      absolute: 0.002
      steps: final
    - metric: "*accuracy"      # the steps before the last
      absolute: 0.01
    - metric: "*loss"          # what the first pattern does not match
      absolute: 0.00094        # written by `repro-gate baseline calibrate`
      steps: 1-10
      derived: {runs: 5, factor: 5.094, spread: 0.00013, confidence: 0.95}
    - metric: "*loss"          # the steps after those
      relative: 1.0e-5
      ulp: 4
  tensors: {relative: 0.01}
  allow_not_finite:
    - pattern: state/model/*/mask
      reason: a mask of minus infinity
  comparable_environment: [cpu, cpu_capability, os, packages, python]
""",
    "environment": """\
environment:
  ignore: [tqdm, "opentelemetry-*"]
  locks: [locks/train.txt]
""",
    "baseline": """\
baseline:
  path: .repro-gate/baseline
  stale_after_days: 30
  quarantine:
    - reason: the new nodes have another CPU
      since: "2026-08-17"
      until: "2026-09-05"
      environment: {cpu: AMD EPYC*}
""",
    "policy": """\
policy:
  allow_baseline_change: false
  level: functional
  thresholds:
    file.accuracy: {min: 0.9}
    file.test_loss: {max: 0.4}
""",
    "record": """\
record:
  overhead_budget: 0.05
  free_seconds: 10.0
""",
    "resume": """\
resume:
  command: python train.py --resume checkpoints/last.pt
  checkpoint: checkpoints/last.pt
  at_step: 10
""",
    "runs": """\
runs:
  parallel: 4
""",
    "cluster": """\
cluster:
  engine: slurm
  nodes: 2
  options: {partition: gpu, exclusive: true}
  folder: /shared/repro-gate
  run_seconds: 900
""",
    "cost": """\
cost:
  when: nightly
  rounds: 5
  warmup_steps: 10
  budget_percent: 15.0
""",
    "diagnosis": """\
diagnosis:
  budget_seconds: 600
""",
    "noise": """\
noise:
  runs: 10
""",
    "isolation": f"""\
isolation:
  mode: container
  minimum: uid
  image: team/trainer@sha256:{"0" * 64}
  gpus: ["0", "1"]
  shm_bytes: 8589934592
""",
    "signing": """\
signing:
  trusted_keys: .repro-gate/trusted-keys.json
""",
    "package": """\
package:
  source: true
""",
    "publish": """\
publish:
  oci: registry.example.org/team/runs
  mlflow:
    uri: https://mlflow.example.org
    experiment: smoke training
    registered_model: language-model
""",
    "slo": """\
slo:
  window_days: 28
  targets: {M1: 0.97, M10: 0.9}
  gates:
    nightly:
      silent_hours: 30
""",
    "report": """\
report:
  gate_id: language-model
""",
}


def page_text() -> str:
    """Return the whole page: single keys first, then the sections in the order of the schema."""
    schema = GateSettings.model_json_schema()
    definitions: Schema = schema["$defs"]
    single, sections = [], []
    for name, value in schema["properties"].items():
        entry = _below(value.get("items", {}), definitions)
        below = entry or _below(value, definitions)
        if below is None:
            required = name in schema["required"]
            single.append(_row(name, value, definitions, required=required))
        else:
            table = _table(_rows(below, definitions, ""))
            listed = "" if entry is None else " A list; the keys of an entry:"
            sentence = f"{value['description']}{listed}"
            example = f"```yaml\n{EXAMPLES[name]}```"
            sections.append(f"## {name}\n\n{sentence}\n\n{table}\n\n{example}\n")
    return "\n".join([HEAD, "## Single keys\n", _table(single) + "\n", *sections])


def _table(rows: list[str]) -> str:
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _rows(model: Schema, definitions: Schema, prefix: str) -> list[str]:
    """Return a row for each key of a model, and below it the rows of the model that it contains.

    Such rows have the key as a prefix: `a.b`, or `a[].b` for the entries of a list.
    """
    rows = []
    for name, value in model["properties"].items():
        required = name in model.get("required", ())
        rows.append(_row(f"{prefix}{name}", value, definitions, required=required))
        below = _below(value, definitions)
        if below is not None:
            rows += _rows(below, definitions, f"{prefix}{name}.")
        entry = _below(value.get("items", {}), definitions)
        if entry is not None:
            rows += _rows(entry, definitions, f"{prefix}{name}[].")
    return rows


def _below(value: Schema, definitions: Schema) -> Schema | None:
    """Return the schema of the model that a key contains, or None for a plain value."""
    # pydantic writes an optional model as `anyOf` of the model and null
    kinds = value.get("anyOf", (value,))
    names = (str(kind.get("$ref", "")).rpartition("/")[2] for kind in kinds)
    models = (definitions.get(name, {}) for name in names)
    return next((model for model in models if "properties" in model), None)


def _row(name: str, value: Schema, definitions: Schema, *, required: bool) -> str:
    default = "required" if required else _default(value)
    meaning = re.sub(r"docs/([a-z-]+)\.md", r"[\1.md](\1.md)", value["description"])
    cells = (f"`{name}`", _type(value, definitions), default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: Schema) -> str:
    default = value.get("default")
    if default in ([], {}) or (default is None and value.get("type") == "object"):
        return "empty"
    if default in (None, ""):
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _type(value: Schema, definitions: Schema) -> str:
    """Return a type in words, with its bounds, such as `whole number, 1 to 1,024`."""
    if "anyOf" in value:
        kinds = [_type(one, definitions) for one in value["anyOf"] if one.get("type") != "null"]
        return " or ".join(kinds)
    words = value.get("enum", [value["const"]] if "const" in value else [])
    if words:
        return ", ".join(f"`{word}`" for word in words)
    if "$ref" in value:
        definition = definitions[value["$ref"].rpartition("/")[2]]
        return "mapping" if "properties" in definition else _type(definition, definitions)
    return _plain_type(value, definitions)


def _plain_type(value: Schema, definitions: Schema) -> str:
    if value["type"] == "array":
        kind, _, bounds = _type(value["items"], definitions).partition(", ")
        return f"list of {kind}s" + (f", each {bounds}" if bounds else "")
    if value["type"] == "object":
        # a mapping whose names must match a pattern has its value type under `patternProperties`
        values = value.get("patternProperties", {"": value.get("additionalProperties")})
        return f"mapping of names to {_type(next(iter(values.values())), definitions)}"
    return ", ".join((PLAIN_TYPES[value["type"]], *_bounds(value)))


def _bounds(value: Schema) -> Iterator[str]:
    low, high = value.get("minimum"), value.get("maximum")
    if "exclusiveMinimum" in value:
        yield f"above {value['exclusiveMinimum']:,}"
    if low is not None and high is not None:
        yield f"{low:,} to {high:,}"
    elif low is not None:
        yield f"at least {low:,}"
    elif high is not None:
        yield f"at most {high:,}"
    if "exclusiveMaximum" in value:
        yield f"below {value['exclusiveMaximum']:,}"


if __name__ == "__main__":
    PAGE.write_text(page_text(), "utf-8")
    SCHEMA.write_text(schema_text(), "utf-8")
