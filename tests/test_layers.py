"""Imports point one way: a room imports only from rooms below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import uvd

SOURCE = Path(uvd.__file__).parent
# From the ground up. Rooms of one floor do not import each other.
FLOORS = [
    {"core"}, {"tasks"}, {"collect"}, {"demos", "runs"}, {"agents"}, {"settings"},
    {"training", "actor"},
    {"api"}, {"recording"}, {"study"}, {"experiments"}, {"cli"},
]  # fmt: skip
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
# What a worker process imports.
NO_JAX = [
    "core.episode", "core.errors", "core.config", "core.normalize", "core.policy",
    "tasks.env", "tasks.flatten", "collect.exploration", "collect.worker", "collect.workers",
    "collect.video",
]  # fmt: skip
MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """A module's name without the package's: `core.nets`."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports(path: Path) -> Iterator[str]:
    """The names of all modules that a module imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = str(node.module)
            yield module
            if module.split(".")[0] == "uvd":
                inner = [f"{module}.{alias.name}" for alias in node.names]
                yield from (name for name in inner if is_module(name.removeprefix("uvd.")))


def own_imports(path: Path) -> set[str]:
    """Modules of this package that a module imports, without the package's own name."""
    return {name.removeprefix("uvd.") for name in imports(path) if name.startswith("uvd.")}


def test_every_room_has_its_floor():
    rooms = {name_of(path).split(".")[0] for path in MODULES} - {""}
    assert rooms == LEVEL.keys()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_down(path):
    room = name_of(path).split(".")[0]
    for other in own_imports(path):
        below = other.split(".")[0]
        if below != room and room:
            assert LEVEL[below] < LEVEL[room], f"{name_of(path)} imports {other}"


def test_core_and_algorithms_know_no_task():
    for path in MODULES:
        if name_of(path).startswith(("core", "agents")):
            known = {name for name in own_imports(path) if name.startswith("tasks")}
            assert not known, f"{name_of(path)} imports {known}"


@pytest.mark.parametrize("name", NO_JAX)
def test_worker_processes_import_no_jax(name):
    """Neither by themselves nor through what they import."""
    todo, seen = [name], set()
    while todo:
        module = todo.pop()
        seen.add(module)
        path = SOURCE.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        others = set(imports(path))
        assert not {n for n in others if n.split(".")[0] in ("jax", "jaxlib", "optax")}, module
        todo += list(own_imports(path) - seen)
