"""The house stands: arrows point one way, the core is pure, each file has its twin, names are exact."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import harken

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "harken"
FILES = sorted(SOURCE.rglob("*.py"))

CORE = frozenset({"core", "errors", "version"})
MIDDLE = CORE | {"observe", "brokers", "server", "client"}
UPPER = MIDDLE | {"sources", "integrations"}

# part of the house → the parts that it may name, besides itself
ARROWS: dict[str, frozenset[str]] = {
    "version": frozenset(),
    "errors": frozenset(),
    "core": frozenset({"errors"}),
    "observe": CORE,
    "brokers": CORE | {"observe"},
    "server": CORE | {"observe", "brokers"},
    "client": CORE | {"observe"},
    "sources": MIDDLE,
    "integrations": MIDDLE,
    "testing": UPPER,
    "check": UPPER,
    "gateway": UPPER,
    "cli": UPPER | {"check", "gateway"},
    "__main__": frozenset({"cli"}),
    "": MIDDLE | {"sources", "integrations"},  # harken/__init__.py, which nobody below may name
}

# fmt: off
IMPURE = frozenset({
    "anyio", "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib",
    "queue", "random", "sched", "selectors", "signal", "socket", "ssl", "subprocess", "threading", "time",
})
# fmt: on

EXTRAS = (
    "click",
    "granian",
    "httptools",
    "httpx2",
    "mcp",
    "rich",
    "starlette",
    "uvicorn",
    "uvloop",
    "watchfiles",
)


def name_of(path: Path) -> str:
    """harken/core/events.py → harken.core.events; harken/core/__init__.py → harken.core."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """harken.core.events → core; harken → the empty name."""
    return module.partition(".")[2].partition(".")[0]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that the code imports, at any depth of nesting; `from a import b` is a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from (
                {module, *(f"{module}.{alias.name}" for alias in node.names)}
                if module == "harken"
                else [module]
            )


def wrong_arrows(importer: str, tree: ast.AST) -> list[str]:
    """The imports of `harken…` that the importing module may not have."""
    part = part_of(importer)
    allowed = ARROWS[part] | {part}
    named = {module for module in imports(tree) if module.split(".")[0] == "harken"}
    if any(module != "harken" for module in named):
        named.discard("harken")  # `from harken import core` is an arrow to harken.core
    return sorted(f"{importer} → {module}" for module in named if part_of(module) not in allowed)


def impurities(tree: ast.AST) -> list[str]:
    """The imports that the core may not have."""
    outside = {module for module in imports(tree) if module.split(".")[0] != "harken"}
    stray = {
        module for module in outside if module.split(".")[0] not in sys.stdlib_module_names | {"msgspec"}
    }
    return sorted(stray | {module for module in outside if module.split(".")[0] in IMPURE})


def has_code(tree: ast.Module) -> bool:
    """Whether a file defines anything, or only gathers names."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in ast.walk(tree)
    )


def twin_of(path: Path) -> Path:
    """Where the tests of a source file are. A package's own code is tested in test_<package>.py inside it."""
    folder = path.relative_to(SOURCE).parent
    name = folder.name or "harken" if path.stem == "__init__" else path.stem.strip("_")
    return ROOT / "tests" / folder / f"test_{name}.py"


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@pytest.mark.parametrize("name", sorted(name_of(path) for path in FILES if path.name != "__main__.py"))
def test_every_module_can_be_imported(name: str) -> None:
    importlib.import_module(name)


def test_every_file_is_part_of_the_package() -> None:
    found = {module.name for module in pkgutil.walk_packages(harken.__path__, "harken.")} | {"harken"}
    assert {name_of(path) for path in FILES} == found, "a folder lacks its __init__.py"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_arrows_point_one_way(path: Path) -> None:
    assert wrong_arrows(name_of(path), parse(path)) == []


@pytest.mark.parametrize("path", sorted((SOURCE / "core").rglob("*.py")), ids=name_of)
def test_the_core_has_no_io_clock_task_or_log(path: Path) -> None:
    assert impurities(parse(path)) == []


@pytest.mark.parametrize(
    ("importer", "code", "wrong"),
    [
        ("harken.core.wire", "from harken.server.hub import Hub", ["harken.core.wire → harken.server.hub"]),
        ("harken.core.wire", "import harken.client", ["harken.core.wire → harken.client"]),
        ("harken.core.wire", "def f():\n from harken import Hub", ["harken.core.wire → harken.Hub"]),
        ("harken.core.wire", "import harken", ["harken.core.wire → harken"]),
        ("harken.client.http", "import harken.server.http", ["harken.client.http → harken.server.http"]),
        ("harken.server.hub", "import harken.brokers.memory, harken.core.wire, harken.server.http", []),
        ("harken.server.hub", "from harken import core", []),
        ("harken.cli.serve", "from harken.sources.folder import Folder\nimport harken.gateway.app", []),
    ],
)
def test_a_wrong_arrow_is_seen(importer: str, code: str, wrong: list[str]) -> None:
    assert wrong_arrows(importer, ast.parse(code)) == wrong


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import asyncio", ["asyncio"]),
        ("def f():\n from time import monotonic", ["time"]),
        ("import httpx2", ["httpx2"]),
        ("import os.path", ["os.path"]),
        ("import enum, msgspec.json\nfrom harken.errors import HarkenError", []),
    ],
)
def test_an_impure_core_is_seen(code: str, found: list[str]) -> None:
    assert impurities(ast.parse(code)) == found


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem != "__init__" or has_code(parse(path))], ids=name_of
)
def test_every_source_file_has_its_twin(path: Path) -> None:
    twin = twin_of(path)
    assert twin.exists(), f"{path.relative_to(ROOT)} needs its tests in {twin.relative_to(ROOT)}"


def test_all_is_exact() -> None:
    public = {
        name
        for name, value in vars(harken).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert set(harken.__all__) == public | {"__version__"}


def test_all_is_sorted() -> None:
    """Constants, then classes, then the rest, each by name."""

    def order(name: str) -> tuple[bool, bool, str]:
        return not name.isupper(), not name[0].isupper(), name

    assert harken.__all__ == sorted(harken.__all__, key=order)


def test_the_public_names_need_no_extra() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))"
    code = f"{blocked}; import harken; [getattr(harken, name) for name in harken.__all__]"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=30)
