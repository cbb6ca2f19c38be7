"""The start-up hook; the launcher copies `sitecustomize.py` alone, beside the harness's package."""
