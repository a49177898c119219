"""Stand-ins for packages that an engine imports but its cache code does not use.

The wheels of SGLang and LMCache are installed without their dependencies, most of which are GPU code of several gigabytes.
A module that is not installed becomes a stand-in if the engine's own code imports it. Imports of other code fail as usual.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types


class _AnyAttribute(type):
    """Makes classes whose attributes are such classes again."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = make_class(name)
        setattr(cls, name, value)
        return value

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())


def make_class(name):
    """A class that can be called, inherited from, and used as a decorator."""

    def construct(self, *arguments, **named):
        pass

    def call(self, *arguments, **named):
        decorates = len(arguments) == 1 and callable(arguments[0]) and not named
        return arguments[0] if decorates else self

    def attribute(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return make_class(name)

    return _AnyAttribute(name, (), {"__init__": construct, "__call__": call, "__getattr__": attribute,
                                    "__init_subclass__": classmethod(lambda cls, **named: None)})


class StandIn(types.ModuleType):
    """An empty package. Each of its attributes is a class of make_class()."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = make_class(name)
        setattr(self, name, value)
        return value


class _Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def _spec(name):
    return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


class _Missing(importlib.abc.MetaPathFinder):
    """Asked last, so only for modules that are not installed."""

    def __init__(self, engine):
        self.engine = engine
        self.packages = set()

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == self.engine or (top not in self.packages and not self._imported_by_engine()):
            return None
        self.packages.add(top)
        return _spec(name)

    def _imported_by_engine(self):
        frame = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "") if frame is not None else ""
        return importer.partition(".")[0] == self.engine


class _Unused(importlib.abc.MetaPathFinder):
    """Asked first, for packages of the engine itself that its cache code does not use."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        unused = any(name == package or name.startswith(package + ".") for package in self.packages)
        return _spec(name) if unused else None


def install(engine, unused=()):
    """From now on, modules that `engine` imports without having them are stand-ins, and so are its `unused` packages."""
    sys.meta_path.append(_Missing(engine))
    sys.meta_path.insert(0, _Unused(tuple(unused)))


def skip_init(package):
    """The package's own __init__.py is not run, since it imports what the cache code does not use."""
    spec = importlib.util.find_spec(package)
    module = types.ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = spec
    sys.modules[package] = module
