"""A module imports only from layers below its own; what is heavy is imported only where it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sigmaff

LAYERS = [
    {"errors"},
    {"units", "files", "allocator", "tasks", "config", "progress"},
    {"graph"},
    {"data"},
    {"backbones"},
    {"heads"},
    {"models"},
    {"training"},
    {"evaluation"},
    {"report"},
    {"runs"},
    {"simulation"},
    {"learning"},
    {"audit"},
    {"cli"},
]
"""From the bottom up. A part imports from lower rows alone, so the parts of one row do not import each other."""

RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
ROOT = Path(sigmaff.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported_parts(tree: ast.AST) -> set[str]:
    """The parts of sigmaff that a module imports, anywhere in it; "" for the package itself."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            below = {f"sigmaff.{alias.name}" for alias in node.names}
            names |= below if node.module == "sigmaff" else {node.module or ""}
    return {name.split(".")[1] for name in names if name.startswith("sigmaff.")}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def module_name(path: Path) -> str:
    return ".".join(("sigmaff", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def test_every_part_has_a_layer():
    unknown = {part_of(path) for path in MODULES} - set(RANK) - {"__main__"}
    assert not unknown, f"give {sorted(unknown)} a row in LAYERS"


@pytest.mark.parametrize("part", sorted({part_of(path) for path in MODULES} & set(RANK)))
def test_a_part_imports_from_below_alone(part: str):
    for path in MODULES:
        if part_of(path) == part:
            imported = imported_parts(ast.parse(path.read_text())) - {part}
            wrong = {other for other in imported if other != "__version__" and RANK[other] >= RANK[part]}
            assert not wrong, f"{module_name(path)} imports {sorted(wrong)}, which is not below {part}"


def test_nobody_changes_the_default_dtype():
    for path in MODULES:
        named = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert "set_default_dtype" not in named, module_name(path)


def test_importing_the_package_is_cheap():
    loaded = in_new_process("import sys, sigmaff; print(*sorted(sys.modules))").split()
    assert not {"torch", "lightning_fabric", "numpy", "ase"} & set(loaded)


def test_only_training_brings_fabric():
    """Nor does all of training: its settings can be read without it."""
    names = [module_name(path) for path in MODULES if part_of(path) not in ("training", "__main__")]
    imports = "\n".join(f"import {name}" for name in names)
    assert in_new_process(f"import sys\n{imports}\nprint('lightning_fabric' in sys.modules)") == "False"
