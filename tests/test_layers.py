"""Layers: docs/architecture.md holds the table of parts, and the imports follow it. Heavy imports stay where needed."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sigmaff
from sigmaff.extras import PACKAGES

ROOT = Path(sigmaff.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")


TREE = PAGE.partition("\n## The tree\n")[2].partition("\n## ")[0]
LAYERS = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in TREE.splitlines() if line.startswith("| `")]
"""The rows of the table. A part imports only from rows above its own: parts of one row do not import each other."""
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def imported_names(path: Path) -> set[str]:
    """The modules that a module imports by an import statement, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: relative import"
            below = {f"sigmaff.{alias.name}" for alias in node.names}
            names |= below if node.module == "sigmaff" else {node.module or ""}
    return names


def imported_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_names(path) if name.startswith("sigmaff.")}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def module_name(path: Path) -> str:
    return ".".join(("sigmaff", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def test_the_architecture_page_shows_the_package():
    """Exactly its modules and packages, each once."""
    listed = [part for parts in LAYERS for part in parts]
    assert sorted(listed) == sorted({part_of(path) for path in MODULES} - {"__main__"})


def test_the_architecture_page_names_files_that_exist():
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", PAGE))
    assert len(named) > 15
    assert not sorted(name for name in named if not (ROOT / name).exists() and not (REPOSITORY / name).exists())


@pytest.mark.parametrize("part", sorted({part_of(path) for path in MODULES} & set(RANK)))
def test_a_part_imports_only_from_rows_above(part: str):
    for path in MODULES:
        if part_of(path) == part:
            imported = imported_parts(path) - {part, "__version__"}
            wrong = {other for other in imported if RANK[other] >= RANK[part]}
            assert not wrong, f"{module_name(path)} imports {sorted(wrong)}, which stand not above {part}"


def test_nothing_imports_the_paper():
    for path in [*MODULES, ROOT / "__init__.py"]:
        wrong = {name for name in imported_names(path) if name.split(".")[0] == "sigmaff_paper"}
        assert not wrong, f"{module_name(path)} imports {sorted(wrong)}"


def test_nobody_changes_the_default_dtype():
    for path in MODULES:
        named = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert "set_default_dtype" not in named, module_name(path)


def test_importing_the_package_is_cheap():
    loaded = in_new_process("import sys, sigmaff; print(*sorted(sys.modules))").split()
    assert not {"torch", "lightning_fabric", "numpy", "ase", "pydantic", "importlib.metadata"} & set(loaded)


def test_a_calculator_needs_no_files_and_no_searches():
    """Nothing that only other commands need is imported with it."""
    loaded = in_new_process("import sys; from sigmaff import Calculator; print(*sorted(sys.modules))").split()
    assert "torch" in loaded
    heavy = {"ase.io", "ase.db", "ase.md", "ase.optimize", "ase.mep", "scipy.optimize", "scipy.sparse", "sympy"}
    assert not {*heavy, "torch._dynamo"} & set(loaded)


def test_packages_of_extras_and_slow_ones_are_imported_where_they_are_used():
    """Only modules of pages and figures bring some with them: models load fast, and in a core install."""
    pages = {"sigmaff.audit.page", "sigmaff.learning.report"}
    names = [module_name(path) for path in MODULES if part_of(path) not in ("report", "__main__")]
    imports = "\n".join(f"import {name}" for name in names if name not in pages)
    loaded = in_new_process(f"import sys\n{imports}\nprint(*sys.modules)").split()
    assert {"torch", "scipy"} <= set(loaded)
    assert sorted({*PACKAGES, "e3nn", "scipy.stats"} & set(loaded)) == []
