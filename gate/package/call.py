"""The document `call.json`: which call of the gate a package is of, and what runs it again."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from gate.text.document import path_inside_project
from gate.text.records_document import Document, Timestamp

CALL_SCHEMA: Final = "repro-gate.call/1"
CALL_NAME: Final = "call.json"
Text = Annotated[str, Field(max_length=2000)]


class CallDocument(Document):
    """The file `call.json`.

    `config` is the settings file's path in the repository; `repository` is owner/name on GitHub and
    `run_url` the job's address, both empty where there was none. `settings_digest` covers every
    setting, defaults included. `source` says that the package holds the commit's files.
    """

    schema_version: Literal["repro-gate.call/1"] = CALL_SCHEMA
    commit: str = Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")
    # the training starts in its folder
    config: Annotated[Text, AfterValidator(path_inside_project)]
    settings_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    snapshot_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    created_at: Timestamp
    gate_version: Text
    repository: Text = ""
    run_url: Text = ""
    source: bool = False
