"""What `signing:` in `repro-gate.yml` may say."""

from __future__ import annotations

from pydantic import Field, field_validator

from gate.text.document import RelativePath, ServiceAddress, path_inside_project
from gate.text.records_document import Document


class SigningSettings(Document):
    """Which keys count, and where a seal without a key comes from."""

    trusted_keys: RelativePath = Field(
        default=".repro-gate/trusted-keys.json",
        description="The file of public keys, relative to repro-gate.yml. The verify command of a "
        "sealed pass names it, and the comment shows what a pull request changes in it.",
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
        "services, relative to repro-gate.yml; the comment shows what a pull request changes in "
        "it. Without one it is that of the public services, as the installed sigstore package has "
        "it.",
    )

    @field_validator("trusted_root")
    @classmethod
    def _stays_inside(cls, value: str | None) -> str | None:
        return None if value is None else path_inside_project(value)
