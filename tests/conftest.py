from __future__ import annotations

import os

from hypothesis import settings

# A required check must answer the same for the same commit; new examples are for developers.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
