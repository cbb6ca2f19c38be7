"""Varies, in a run that asks for it, one thing that a result must not depend on."""
