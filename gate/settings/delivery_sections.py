"""The settings about package, signing and publishing."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, field_validator

from gate.text.document import (
    Document,
    RelativePath,
    SaysSomething,
    ServiceAddress,
    path_inside_project,
)
from gate.text.trackers import TRACKERS, TrackerNames


class PackageSettings(Document):
    """What the package holds beside the verdict and its evidence."""

    source: bool = Field(
        default=False,
        description="Pack the commit's files too, so that the package can be run again without a "
        "clone. Whoever has the package then has the code.",
    )
    checkpoint: bool = Field(
        default=True,
        description="Pack what the script itself saved (train.checkpoint), in addition to the "
        "captured state. Without it the package is smaller and contains only the file's digest.",
    )


# OCI distribution specification 1.1, "Pulling manifests": the name after a host. The part before
# the first slash is a host only if it has a dot or a port, as for every registry client.
_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_HOST: Final = (
    r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:))(?::[0-9]{1,5})?"
)
REPOSITORY: Final = re.compile(rf"{_HOST}(?:/{_PART})+\Z")


def check_repository(value: str) -> str:
    """Raise `ValueError` for a text that is no repository, or that adds a tag or digest."""
    if not REPOSITORY.match(value):
        message = (
            "must be a registry and a name in it, in lower case and without scheme, tag or digest, "
            "for example registry.example.org/team/runs"
        )
        raise ValueError(message)
    return value


S3: Final = "s3://"
OCI: Final = "oci://"


def check_history(value: str) -> str:
    """Raise `ValueError` unless the text is s3://…, oci://… or an absolute folder."""
    if value.startswith(OCI):
        check_repository(value.removeprefix(OCI))
    elif not value.startswith((S3, "/")) or not value.isprintable():
        message = (
            "must be s3://BUCKET/PREFIX, oci://registry.example.org/team/history or an absolute "
            "folder"
        )
        raise ValueError(message)
    return value


# plain http is allowed, because a Pushgateway inside a cluster has no TLS and gets no secret
PUSHGATEWAY: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?\Z")


def check_pushgateway(value: str) -> str:
    """Raise `ValueError` for an invalid address, or one that contains a login."""
    if not PUSHGATEWAY.match(value):
        message = "must be an address without a login, for example http://pushgateway:9091"
        raise ValueError(message)
    return value


RegistryName = Annotated[str, Field(max_length=200), AfterValidator(check_repository)]
# the server would read a name with a control character as another name
_NAME: Final = r"^[^\x00-\x1f\x7f]+$"


class MlflowSettings(Document):
    """An MLflow server that gets a run for each sealed pass, or for every verdict."""

    uri: ServiceAddress = Field(
        description="Address of an MLflow tracking server, which gets parameters, metrics, "
        "package and seals. It must store artifacts itself, as `mlflow server` does by default."
    )
    experiment: Annotated[str, SaysSomething] = Field(
        default="repro-gate",
        min_length=1,
        max_length=200,
        pattern=_NAME,
        description="The experiment that the runs belong to. It is created if it does not exist.",
    )
    registered_model: Annotated[str, SaysSomething] | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        # no slash or colon: the server puts the name into paths of its own addresses
        pattern=r"^[^/:\x00-\x1f\x7f]+$",
        description="A name in the model registry: each sealed pass becomes a version of it. "
        "Without it no model is registered.",
    )
    when: Literal["passes", "always"] = Field(
        default="passes",
        description="Which calls log a run: `passes` those with a sealed pass, `always` every "
        "call with a verdict, without the package if it is not sealed. Pull requests from forks "
        "log none.",
    )


# becomes a union as soon as there are more trackers
TrackerSettings = MlflowSettings


class ConfiguredTracker(NamedTuple):
    """The configured tracker, with its names and settings."""

    names: TrackerNames
    settings: TrackerSettings


class PublishSettings(Document):
    """Where a sealed package goes beside the output folder, and a line of every verdict."""

    oci: RegistryName | None = Field(
        default=None,
        description="A registry and a name in it. The gate pushes package and seals there under "
        "the tag `commit-SHA`, and `repro-gate fetch SHA` downloads them.",
    )
    mlflow: MlflowSettings | None = Field(
        default=None, description="A tracking server: parameters, metrics, package and seals."
    )
    history: Annotated[str, Field(max_length=300), AfterValidator(check_history)] | None = Field(
        default=None,
        description="Where a line of every verdict goes, pass or not: `s3://BUCKET/PREFIX`, "
        "`oci://registry.example.org/team/history` or an absolute folder.",
    )
    pushgateway: Annotated[str, Field(max_length=300), AfterValidator(check_pushgateway)] | None = (
        Field(
            default=None,
            description="A Prometheus Pushgateway that gets the metrics of every verdict.",
        )
    )

    @property
    def tracker(self) -> ConfiguredTracker | None:
        """The tracker that gets runs; None if none is configured."""
        for names in TRACKERS:
            settings = getattr(self, names.key)
            if settings is not None:
                return ConfiguredTracker(names, settings)
        return None


Publishing = Annotated[
    PublishSettings,
    Field(
        description="Where sealed packages go. On a pull request this section is read from the "
        "base commit."
    ),
]


class SigningSettings(Document):
    """Which keys count, and where a seal without a key comes from."""

    trusted_keys: RelativePath = Field(
        default=".repro-gate/trusted-keys.json",
        description="The file of public keys, relative to repro-gate.yml.",
    )
    fulcio_url: ServiceAddress = Field(
        default="https://fulcio.sigstore.dev",
        description="With `sign: sigstore`: who certifies the job's identity (Fulcio).",
    )
    rekor_url: ServiceAddress = Field(
        default="https://rekor.sigstore.dev",
        description="With `sign: sigstore`: the log that every seal is entered in (Rekor).",
    )
    trusted_root: RelativePath | None = Field(
        default=None,
        description="With `sign: sigstore`: the file with the certificates and log keys of these "
        "services, relative to repro-gate.yml. Default: the root of the public services in the "
        "installed sigstore "
        "package.",
    )

    @field_validator("trusted_keys", "trusted_root")
    @classmethod
    def _stays_inside(cls, value: str | None) -> str | None:
        return None if value is None else path_inside_project(value)
