"""The house: floors, where each library may be used, and the budgets that keep code readable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autoplan"
FILES = sorted(PACKAGE.rglob("*.py"))

FLOORS = {
    "ir": 0, "errors": 0, "units": 0,
    "ops": 1, "boxing": 1, "pipeline": 1, "files": 1,
    "frontends": 2, "cost": 2, "presets": 2, "describe": 2,
    "lower": 3, "rehearsal": 3,
    "simulate": 4, "runtime": 4,
    "search": 5,
    "validate": 6,
    "report": 7, "export": 7,
    "workflow": 8,
    "cli": 9, "launch": 9, "__main__": 9,
}  # fmt: skip
SAME_FLOOR = {
    ("ir", "errors"), ("ir", "units"),  # the ground floor is one
    ("boxing", "ops"),  # routes are derived from the same signatures
    ("describe", "presets"),  # one is the inverse of the other
    ("__main__", "cli"),
}  # fmt: skip
"""Who may use whom on one floor."""

HOMES = {
    "torch": ("runtime/", "validate/measure/"),
    "pydantic": ("files/",),
    "typer": ("cli/",),
    "rich": ("cli/", "report/"),
    "numpy": ("boxing/", "cost/", "simulate/", "search/", "validate/"),
    "scipy": ("search/", "validate/"),
    "networkx": ("search/", "lower/"),
}
"""Library -> the only places that import it."""
LAZY = ("scipy", "networkx", "huggingface_hub")
"""Libraries that are imported where they are used, never at the top of a module."""
LOCAL_IMPORTS = ("cli/", "workflow/running.py")
"""Places whose functions import: `--help` is instant, and planning never loads torch."""

MOST_FUNCTION_LINES, MOST_FILE_LINES, MOST_PARAMETERS = 60, 400, 6
MOST_P90_FUNCTION_LINES = 40


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    return name_of(path).split("/")[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool, ast.stmt]]:
    """(module, whether at the top or for type checking only, node) of every import."""
    local = {
        id(node)
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name_of(path)}: relative import"
            yield node.module, id(node) not in local, node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in local, node


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                yield f"{name_of(path)}:{node.name}", node


def test_imports_go_strictly_downward():
    wrong = []
    for path in FILES:
        here = part_of(path)
        for module, _, _ in imports(path):
            parts = module.split(".")
            if parts[0] != "autoplan" or len(parts) == 1 or here in ("__init__", parts[1]):
                continue
            if FLOORS[parts[1]] >= FLOORS[here] and (here, parts[1]) not in SAME_FLOOR:
                wrong.append(f"{name_of(path)} imports {module}")
    assert not wrong


def test_every_part_has_a_floor():
    assert {part_of(path) for path in FILES} - {"__init__"} <= FLOORS.keys()


@pytest.mark.parametrize("library", HOMES)
def test_libraries_stay_at_home(library):
    wrong = [
        name_of(path)
        for path in FILES
        for module, _, _ in imports(path)
        if module.split(".")[0] == library and not name_of(path).startswith(HOMES[library])
    ]
    assert not wrong


def test_lazy_libraries_are_imported_where_used():
    wrong = [
        name_of(path)
        for path in FILES
        for module, top, _ in imports(path)
        if top and module.split(".")[0] in LAZY
    ]
    assert not wrong


def test_imports_stand_at_the_top():
    wrong = [
        f"{name_of(path)}: {module}"
        for path in FILES
        for module, top, _ in imports(path)
        if not top
        and module.split(".")[0] not in LAZY
        and not name_of(path).startswith(LOCAL_IMPORTS)
    ]
    assert not wrong


def test_no_import_cycle():
    """Between modules, imports for type checking included."""
    modules = {module_name(path): path for path in FILES}
    edges = {
        name: sorted({target for target in targets(path, modules) if target != name})
        for name, path in modules.items()
    }
    done: set[str] = set()
    for start in edges:
        visit(start, edges, [], done)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def targets(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Modules that an import executes, but for the packages above a module imported by name."""
    for module, top, node in imports(path):
        if not top or module not in modules:
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        inside = [f"{module}.{name}" for name in names if f"{module}.{name}" in modules]
        yield from inside or [module]


def visit(name: str, edges: dict[str, list[str]], trail: list[str], done: set[str]) -> None:
    assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
    if name in done:
        return
    for target in edges[name]:
        visit(target, edges, [*trail, name], done)
    done.add(name)


def test_files_are_short():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: n for name, n in lengths.items() if n > MOST_FILE_LINES}


def test_functions_are_short():
    lengths = {
        name: (node.end_lineno or node.lineno) - node.lineno + 1 for name, node in functions()
    }
    assert not {name: n for name, n in lengths.items() if n > MOST_FUNCTION_LINES}
    assert sorted(lengths.values())[len(lengths) * 9 // 10] <= MOST_P90_FUNCTION_LINES


def test_functions_take_few_parameters():
    wrong = []
    for name, node in functions():
        arguments = node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        count = len([a for a in given if a.arg not in ("self", "cls")])
        if count > MOST_PARAMETERS:
            wrong.append(f"{name}: {count}")
    assert not wrong


def test_packages_export_what_they_have():
    """`__all__` of a package names what its `__init__` imports or defines: constants, types, verbs,
    each in order."""
    for path in FILES:
        body = tree(path).body if path.name == "__init__.py" else []
        imported = [n for n in body if isinstance(n, ast.ImportFrom)]
        known = {alias.asname or alias.name for node in imported for alias in node.names}
        known |= {n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        known |= {ast.unparse(n.targets[0]) for n in body if isinstance(n, ast.Assign)}
        known |= {ast.unparse(n.target) for n in body if isinstance(n, ast.AnnAssign)}
        for node in body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                listed = ast.literal_eval(node.value)
                assert set(listed) <= known, name_of(path)
                assert listed == sorted(listed, key=kind_then_name), name_of(path)


def kind_then_name(name: str) -> tuple[bool, bool, str]:
    return not name.isupper(), name[0].islower(), name


def test_every_package_is_introduced():
    for path in FILES:
        if path.name == "__init__.py":
            assert ast.get_docstring(tree(path)), name_of(path)


def test_only_the_launcher_reads_the_environment():
    """No settings by environment variable, but torchrun's own, NO_COLOR, which rich reads, and
    where the Hugging Face hub's cache lies.
    """
    readers = {name_of(path) for path in FILES if "os.environ" in path.read_text()}
    readers |= {name_of(path) for path in FILES if "getenv" in path.read_text()}
    assert readers <= {"runtime/distributed.py", "files/hub.py"}
