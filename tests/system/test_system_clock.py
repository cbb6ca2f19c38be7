"""The clock: UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gate.system.clock import SystemClock


def test_now_is_in_utc_and_whole_seconds() -> None:
    now = SystemClock().now()
    assert now.tzinfo is UTC
    assert now.microsecond == 0
    assert timedelta(0) <= datetime.now(UTC) - now < timedelta(seconds=60)
