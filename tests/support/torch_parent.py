"""A Python process that has imported torch, and forks a process for each script.

`torch_processes.py` runs it as `python -c`, with the number of the descriptor to answer on. It
takes one request at a time, in the form that `asked_for` reads. The forked process continues as if
Python had just been started for the script. All modules imported here are hidden from it, and come
back as the same objects when the script imports them. So the harness starts before torch is
imported and sees each import that it waits for, as in a fresh process.

This file imports only modules that Python itself loads at start: any other would already be loaded
when a script imports it.
"""

from __future__ import annotations

import builtins
import gc
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType, ModuleType
    from typing import Any

# modules that stay visible; the start-up hook `sitecustomize` is imported again for each script
AT_START = frozenset(sys.modules) - {"sitecustomize", "gc"}
# torch imports it with the first optimizer, which takes longer than importing torch itself
COMPILER = "torch._dynamo"
# PEP 538: Python sets this variable in a process whose locale is C
LOCALE = "LC_CTYPE"


class Imports:
    """Records which modules each module imported while it was imported itself."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, None]] = {}
        self._plain = builtins.__import__

    def __enter__(self) -> None:
        builtins.__import__ = self._import

    def __exit__(self, *_error: object) -> None:
        builtins.__import__ = self._plain

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the name that Python gives it
        locals: Mapping[str, object] | None = None,  # noqa: A002 - as above
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        within, wanted = globals, fromlist or ()
        found = self._plain(name, within, locals, wanted, level)
        spec = within.get("__spec__") if within else None
        # only while the module itself is initialised: a function called later imports by itself
        if within and getattr(spec, "_initializing", False):
            full = name
            if level:
                package = str(within["__package__"]).rsplit(".", level - 1)[0]
                full = f"{package}.{name}" if name else package
            asked = self.asked.setdefault(str(within["__name__"]), {})
            asked.update(dict.fromkeys((full, *(f"{full}.{each}" for each in wanted))))
        return found

    def bring(self, name: str) -> None:
        """Import a module, and record every module that became loaded as imported by it."""
        before = set(sys.modules)
        __import__(name)
        new = (each for each in sys.modules if each not in before)
        self.asked.setdefault(name, {}).update(dict.fromkeys(new))


class Hidden:
    """The loaded modules that are hidden, and the finder that returns them to imports."""

    def __init__(self, asked: dict[str, dict[str, None]]) -> None:
        self.modules = {
            name: sys.modules.pop(name) for name in list(sys.modules) if name not in AT_START
        }
        self._asked = asked
        # An import sets a module as an attribute of its package. Keep the attribute's present
        # value: the package may since have bound the name to something else.
        self._named: dict[tuple[str, str], Any] = {}
        for name in self.modules:
            package, _, child = name.rpartition(".")
            if package in self.modules and child in vars(self.modules[package]):
                self._named[package, child] = vars(self.modules[package])[child]
        for (package, child), value in self._named.items():
            full, names = f"{package}.{child}", vars(self.modules[package])
            # a package with a lazy `__getattr__` imports the module when the name is first used,
            # so the name must be missing again
            lazy = "__getattr__" in names and full not in asked.get(package, ())
            if lazy and value is self.modules[full]:
                del names[child]

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a hidden module, as `importlib.abc.MetaPathFinder` specifies."""
        module = self.modules.get(name)
        if not isinstance(module, type(sys)):
            return None
        # a separate loader for each module, since the harness's import hook modifies it
        loader: Any = Returning(self, module)
        return ModuleSpec(name, loader, is_package="__path__" in vars(module))

    def return_needed(self, name: str) -> None:
        """Import the modules that a module imported when it was first imported."""
        for needed in self._asked.get(name, ()):
            module = self.modules.get(needed)
            if module is None or needed in sys.modules:
                continue
            spec = getattr(module, "__dict__", {}).get("__spec__")
            if spec is None or spec.name != needed:
                # code put this entry into sys.modules without an import, so do the same
                sys.modules[needed] = module
            else:
                __import__(needed)
            self._name_again(needed)

    def _name_again(self, name: str) -> None:
        while name:
            name, _, child = name.rpartition(".")
            if (name, child) in self._named:
                vars(self.modules[name])[child] = self._named[name, child]


class Returning:
    """The loader of one hidden module."""

    def __init__(self, hidden: Hidden, module: ModuleType) -> None:
        self._hidden = hidden
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """Return the module that is loaded already."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Run none of the module's code again; only its own imports and side effects."""
        # through `vars`, because some of torch's modules refuse attributes to be set
        vars(module)["__spec__"] = self._spec
        self._hidden.return_needed(module.__name__)
        happen_again(module.__name__)


def happen_again(name: str) -> None:
    """Repeat what importing a module changes elsewhere, or reads from the process."""
    modules: Mapping[str, Any] = sys.modules
    if name == "multiprocessing":
        sys.modules["__mp_main__"] = sys.modules["__main__"]
    elif name == "multiprocessing.process":
        modules[name].ORIGINAL_DIR = os.getcwd()  # noqa: PTH109 - pathlib is for the script to import
    elif name == "tempfile":
        modules[name].tempdir = None
    elif name == COMPILER:
        modules["torch"].manual_seed = modules["torch"]._disable_dynamo(
            modules["torch"].manual_seed
        )


def asked_for(answers: int) -> dict[str, Any]:
    """Fork for each request; return the request, only in the forked process.

    A request is `{"folder", "words", "variables", "output"}`. `words` are the script, relative to
    the folder, and its arguments. The parent answers with the forked process's id, and then with
    its exit code.
    """
    while True:
        try:
            asked: dict[str, Any] = marshal.load(sys.stdin.buffer)  # noqa: S302 - from the tests themselves
        except EOFError:
            os._exit(0)
        process = os.fork()
        if process == 0:
            os.close(answers)
            return asked
        os.write(answers, b"%d\n" % process)
        status = os.waitpid(process, 0)[1]
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))


def begin(asked: dict[str, Any], hidden: Hidden) -> CodeType:
    """Turn this process into one that was started for the script; return the script's code."""
    for number, name in enumerate((os.devnull, *asked["output"])):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(asked["folder"])
    locale = os.environ.get(LOCALE)
    os.environ.clear()
    os.environ.update(asked["variables"])
    if locale is not None:
        os.environ.setdefault(LOCALE, locale)
    sys.argv[:] = asked["words"]
    sys.orig_argv[:] = [sys.executable, *asked["words"]]
    # drop the first entry of sys.path: it is the empty one of `-c`
    first = filter(None, asked["variables"].get("PYTHONPATH", "").split(":"))
    sys.path[:] = [*first, *sys.path[1:]]
    sys.meta_path.insert(0, hidden)
    main = sys.modules["__main__"] = type(sys)("__main__")
    # In a fresh process generators start from entropy, so reseed those of numpy and torch. Python
    # itself reseeds `random` after a fork.
    hidden.modules["numpy.random"].seed()
    hidden.modules["torch"].default_generator.seed()
    try:  # noqa: SIM105 - contextlib is for the script to import
        __import__("sitecustomize")
    except ModuleNotFoundError:
        pass
    path = f"{asked['folder']}/{asked['words'][0]}"
    sys.path.insert(0, path.rpartition("/")[0])
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __cached__=None, __loader__=loader, __builtins__=builtins)
    return compile(loader.get_data(path), path, "exec", dont_inherit=True)


def main() -> None:
    """Import torch, and run the script of each forked process."""
    imports = Imports()
    with imports:
        imports.bring("numpy")
        imports.bring("torch")
        torch: Any = sys.modules["torch"]
        plain = torch.manual_seed
        imports.bring(COMPILER)
    torch.manual_seed = plain
    del sys.modules["__mp_main__"]
    gc.collect()
    # frozen objects are not touched by the collector, so their pages stay shared with the forks
    gc.freeze()
    asked = asked_for(int(sys.argv[1]))
    try:
        exec(begin(asked, Hidden(imports.asked)), vars(sys.modules["__main__"]))  # noqa: S102 - as Python runs it
    except Exception as error:  # noqa: BLE001 - of the script
        # print the traceback as Python does, without the frames of this program
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
