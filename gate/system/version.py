"""The version of this program; pyproject.toml takes it from here, installed or not."""

from __future__ import annotations

VERSION = "1.0.0"
