"""Starts the harness before the user's first line, in every process that inherits PYTHONPATH.

Python imports this file at its start. Most of those processes never import torch (pip, git hooks,
launchers). So only `os` and `sys` are imported here, and the harness itself waits for the imports
that matter to it.
"""

import os
import sys


def _start_harness() -> None:
    """Start the harness; if that fails, nothing is attested, which the gate calls an error."""
    try:
        # the package exists only in the folder that the launcher creates, never in this tree
        from repro_gate_harness.lifecycle.start import start  # type: ignore[import-not-found]

        start(os.environ)
    except Exception as error:
        sys.stderr.write(f"repro-gate: the harness did not start: {error}\n")


def _run_hidden_sitecustomize() -> None:
    """Run the `sitecustomize` that this file hides, as `site` would have done.

    Its errors are not caught: `site` reports them in its usual way.
    """
    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - pathlib is slow to import
    rest = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", rest)
        if spec is not None and spec.loader is not None:
            module = type(sys)(spec.name)
            module.__spec__ = spec
            module.__loader__ = spec.loader
            module.__file__ = spec.origin
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return


if "REPRO_GATE_OUT" in os.environ:
    _start_harness()
_run_hidden_sitecustomize()
