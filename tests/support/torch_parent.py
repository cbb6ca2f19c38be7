"""A Python process that has imported torch, and forks one process after the other from itself.

Run as `python -c` by `torch_processes.py`, with the number of the descriptor to answer on. It is
asked for one script at a time, as `asked_for` reads it. The forked process goes on as if Python had
just been started for that script: all that was imported here is out of its sight, and comes back,
as the same objects, where an import asks for it. So the harness starts before torch is there, and
sees each import that it waits for, as in a process of its own.

Only what Python itself starts with is imported here: the rest is for the scripts to import.
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

# the start-up hook comes again for each script
AT_START = frozenset(sys.modules) - {"sitecustomize", "gc"}
# it comes with the first optimizer, and takes longer than torch itself
COMPILER = "torch._dynamo"
# what Python itself adds to the variables of a process whose locale is C
LOCALE = "LC_CTYPE"


class Imports:
    """What each module asked for while it was imported here."""

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
        # a function that is called later asks for itself
        if within and getattr(spec, "_initializing", False):
            full = name
            if level:
                package = str(within["__package__"]).rsplit(".", level - 1)[0]
                full = f"{package}.{name}" if name else package
            asked = self.asked.setdefault(str(within["__name__"]), {})
            asked.update(dict.fromkeys((full, *(f"{full}.{each}" for each in wanted))))
        return found

    def bring(self, name: str) -> None:
        """Import a module; what it brought along in any way counts as asked for by it."""
        before = set(sys.modules)
        __import__(name)
        new = (each for each in sys.modules if each not in before)
        self.asked.setdefault(name, {}).update(dict.fromkeys(new))


class Hidden:
    """Modules that are loaded and not to be seen; the finder that lets imports find them."""

    def __init__(self, asked: dict[str, dict[str, None]]) -> None:
        self.modules = {
            name: sys.modules.pop(name) for name in list(sys.modules) if name not in AT_START
        }
        self._asked = asked
        # an import sets a module on its package, where the name may be something else's by now
        self._named: dict[tuple[str, str], Any] = {}
        for name in self.modules:
            package, _, child = name.rpartition(".")
            if package in self.modules and child in vars(self.modules[package]):
                self._named[package, child] = vars(self.modules[package])[child]
        for (package, child), value in self._named.items():
            full, names = f"{package}.{child}", vars(self.modules[package])
            # some packages import one when its name is first asked for
            lazy = "__getattr__" in names and full not in asked.get(package, ())
            if lazy and value is self.modules[full]:
                del names[child]

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the finders of Python."""
        module = self.modules.get(name)
        if not isinstance(module, type(sys)):
            return None
        # each has a loader of its own, since the harness's hook changes that
        loader: Any = Returning(self, module)
        return ModuleSpec(name, loader, is_package="__path__" in vars(module))

    def return_needed(self, name: str) -> None:
        """Import what a module asked for while it was imported first."""
        for needed in self._asked.get(name, ()):
            module = self.modules.get(needed)
            if module is None or needed in sys.modules:
                continue
            spec = getattr(module, "__dict__", {}).get("__spec__")
            if spec is None or spec.name != needed:
                # no import made it: code put it there
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
        """The module that has been there all the time."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing of it runs again."""
        # some of torch's modules refuse to be set something
        vars(module)["__spec__"] = self._spec
        self._hidden.return_needed(module.__name__)
        happen_again(module.__name__)


def happen_again(name: str) -> None:
    """What the import of a module does elsewhere, or finds out of the process."""
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
    """Fork for each request; what is asked for, in the forked process alone.

    A request is `{"folder", "words", "variables", "output"}`; `words` are the script, relative to
    the folder, and its arguments. The answers are the number of the forked process, and the code
    with which that ended.
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
    """Become a Python that was started for the script; the script's code."""
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
    # the first entry was the empty one of `-c`
    first = filter(None, asked["variables"].get("PYTHONPATH", "").split(":"))
    sys.path[:] = [*first, *sys.path[1:]]
    sys.meta_path.insert(0, hidden)
    main = sys.modules["__main__"] = type(sys)("__main__")
    # generators begin with entropy in each process; Python renews that of `random` at a fork
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
    # what is never looked at again is not written to, and so stays shared with the forked ones
    gc.freeze()
    asked = asked_for(int(sys.argv[1]))
    try:
        exec(begin(asked, Hidden(imports.asked)), vars(sys.modules["__main__"]))  # noqa: S102 - as Python runs it
    except Exception as error:  # noqa: BLE001 - of the script
        # told as Python does, without the frames of this program
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
