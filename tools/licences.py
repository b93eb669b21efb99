"""Write docs/licences.md: the licence of every package that sigmaff installs, by its own metadata.

python tools/licences.py

A package that is not installed here keeps the row that it has. ``tests/test_package.py`` compares the table with what
is installed.
"""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "licences.md"
EXTRAS = ("train", "label", "formats", "report", "generate", "pyscf", "slurm")
"""Of users; wandb and mlflow bring dozens of packages of their own."""
ROW = re.compile(r"^\| ([\w.-]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
LONGEST = 60
"""Characters of a licence's name; a longer text is the licence itself."""
COPYLEFT = ("GPL", "Lesser General Public", "MPL", "Mozilla")
TEXT = """# Licences

sigmaff has the [MIT licence](../LICENSE). It copies no code of the packages that it imports. This is what `pip`
installs with it, and the licence that each package names in its metadata. `python tools/licences.py` writes this table;
a test compares it with what is installed. torch for graphics cards brings libraries of NVIDIA, which are not listed.

Packages whose licence asks for more than a notice if you change and distribute *them*: {copyleft}. sigmaff imports
them as they are.

| package | licence | with |
|---|---|---|
{rows}
"""


def direct_requirements() -> dict[str, list[Requirement]]:
    """Of pyproject.toml: without an extra ("core") and with each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = {"core": project["dependencies"]}
    lists |= {extra: project["optional-dependencies"][extra] for extra in EXTRAS}
    own = {extra: [Requirement(text) for text in texts] for extra, texts in lists.items()}
    return {extra: [one for one in found if one.name != "sigmaff"] for extra, found in own.items()}


def installed(names: list[Requirement], seen: dict[str, Distribution]) -> Iterator[Distribution]:
    """These packages and all that they need; each once. What is not installed is left out."""
    for requirement in names:
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
        ):
            continue
        name = canonicalize_name(requirement.name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if name in seen:
            continue
        seen[name] = found
        yield found
        yield from installed([Requirement(text) for text in found.requires or []], seen)


def licence(package: Distribution) -> str:
    """As the metadata name it: an expression, classifiers, or a short text."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [text.split(" :: ")[-1] for text in metadata.get_all("Classifier") or [] if "License ::" in text]
    named = [text for text in classifiers if text != "OSI Approved"]
    first = str(metadata.get("License") or "").strip().split("\n")[0]
    return ", ".join(named) or (first if first and len(first) <= LONGEST else "see its files")


def rows() -> dict[str, tuple[str, str]]:
    """Of each installed package: its licence, and what brings it first."""
    seen: dict[str, Distribution] = {}
    found = {}
    for extra, names in direct_requirements().items():
        for package in installed(names, seen):
            found[canonicalize_name(package.metadata["Name"])] = (licence(package), extra)
    return found


def written() -> dict[str, tuple[str, str]]:
    """What the committed table says."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    return {name: (terms, extra) for name, terms, extra in ROW.findall(text) if name != "package"}


def main() -> None:
    found = written() | rows()
    copyleft = [name for name, (terms, _) in sorted(found.items()) if any(word in terms for word in COPYLEFT)]
    lines = [f"| {name} | {terms} | {extra} |" for name, (terms, extra) in sorted(found.items())]
    TABLE.write_text(TEXT.format(copyleft=", ".join(copyleft), rows="\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
