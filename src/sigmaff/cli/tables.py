"""Tables that the commands print."""

from collections.abc import Sequence

from ase.data import chemical_symbols
from ase.units import GPa
from rich.table import Column, Table
from rich.text import Text

from sigmaff.backbones import BackboneConfig, HostConfig
from sigmaff.data.check import Finding
from sigmaff.evaluation import Summary
from sigmaff.models.file import Header
from sigmaff.models.prediction import QUANTITIES, Calibration
from sigmaff.models.record import AdoptedRecord
from sigmaff.runs.compare import MethodResult, comparison_differences, comparison_rows
from sigmaff.runs.methods import METHODS
from sigmaff.units import KCAL_PER_MOL

COLORS = {"error": "bold red", "warning": "yellow", "info": "default"}

MAIN_COLUMNS = ("method", "MAE", "calibration", "AUROC", "ms")

NO_UNITS = ("", "", "")
UNITS = ("eV", "eV/Å", "eV/Å³")
ROWS: tuple[tuple[str, str, tuple[str, str, str]], ...] = (  # label, measure, units of energies, forces and stress
    ("MAE", "mae", UNITS),
    ("", "mae", ("kcal/mol", "kcal/mol/Å", "GPa")),
    ("RMSE", "rmse", UNITS),
    ("calibration score", "calibration", NO_UNITS),
    ("  before calibration", "calibration_raw", NO_UNITS),
    ("  paper convention", "calibration_paper", NO_UNITS),
    ("    before calibration", "calibration_paper_raw", NO_UNITS),
    ("coverage of 68 %", "coverage_68", NO_UNITS),
    ("coverage of 95 %", "coverage_95", NO_UNITS),
    ("NLL", "nll", NO_UNITS),
    ("CRPS", "crps", UNITS),
    ("Spearman σ, |error|", "spearman", NO_UNITS),
    ("AUROC of the --ood set", "auroc", NO_UNITS),
    ("  trace of the covariance", "auroc_trace", NO_UNITS),
    ("  geometric mean of atoms", "auroc_geometric_mean", NO_UNITS),
    ("  largest of an atom", "auroc_largest_atom", NO_UNITS),
)


ADOPTED_ROWS = (
    ("energy, MAE", "energy_mae", "eV"),
    ("forces, MAE", "forces_mae", "eV/Å"),
    ("stress, MAE", "stress_mae", "eV/Å³"),
    ("energies within σ", "energy_coverage_68", ""),
    ("forces within σ", "forces_coverage_68", ""),
    ("forces within 1.96 σ", "forces_coverage_95", ""),
)
"""Label, key of a summary, unit."""


def plain_table(*columns: Column) -> Table:
    """A table without lines, and without a header if no columns are named."""
    return Table(*columns, show_header=bool(columns), box=None, padding=(0, 2, 0, 0))


def metrics_table(summary: Summary, title: str) -> Table:
    """The main metrics of an evaluation; the JSON file has all."""
    shown = [name for name in QUANTITIES if name != "stress" or summary.get("stress_mae") is not None]
    columns = [Column(""), *(Column(name, justify="right") for name in shown)]
    table = Table(*columns, title=Text(f"{title}: {summary['n_structures']} structures"), title_justify="left")
    for label, measure, units in ROWS:
        values = [summary.get(f"{quantity}_{measure}") for quantity in shown]
        if any(value is not None for value in values):
            table.add_row(label, *(_value(value, unit) for value, unit in zip(values, units, strict=False)))
    return table


def adopted_table(record: AdoptedRecord) -> Table:
    """Errors of an adopted network alone, with the reference energies of the labels, beside those of the model."""
    n = record.host["n_structures"]
    title = Text(f"{record.structures} structures: {n}")
    columns = (Column(""), Column("network alone", justify="right"), Column("adopted", justify="right"))
    table = Table(*columns, title=title, title_justify="left")
    for label, key, unit in ADOPTED_ROWS:
        values = [figures.get(key) for figures in (record.host, record.adopted)]
        if any(value is not None for value in values):
            table.add_row(label, *(_value(value, unit) for value in values))
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    table = plain_table()
    for finding in findings:
        severity = Text(finding.severity, style=COLORS[finding.severity])
        table.add_row(severity, Text(finding.code), Text(finding.message))
    return table


def info_table(header: Header, n_parameters: int) -> Table:
    """Summary of a model file."""
    table = plain_table()
    statistics, record = header.statistics, header.record
    rows = {
        **_sampling(header),
        **_backbone(header.config.backbone),
        "head": _settings(header.config.head.model_dump()),
        "parameters": f"{n_parameters:,}",
        "elements": " ".join(chemical_symbols[number] for number in statistics.elements),
        "reference energies": ", ".join(
            f"{chemical_symbols[number]} {energy:.6f} eV" for number, energy in statistics.reference_energies.items()
        ),
        "compositions": statistics.compositions,
        "trained on": f"{statistics.n_structures} structures",
        **{f"{name} σ": _calibration(found) for name, found in header.calibrations._asdict().items()},
        **({} if header.energy_force_std is None else {"force σ from energy σ": str(header.energy_force_std)}),
        "range of σ": "not recorded: sigmaff calibrate does" if header.std_range is None else str(header.std_range),
        "made": f"{record.date or 'date unknown,'} by sigmaff {header.library_version}",
    }
    metrics = record.metrics or {}
    for quantity, unit in (("energy", "eV"), ("forces", "eV/Å")):
        if metrics.get(f"{quantity}_mae") is not None:
            rows[f"test MAE, {quantity}"] = f"{metrics[f'{quantity}_mae']:.5g} {unit}"
    rows |= {} if record.adopted is None else _errors_beside(record.adopted)
    for name, text in rows.items():
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def methods_table(backbone: BackboneConfig) -> Table:
    """Every method with its cost, on this backbone, and the properties of its σ."""
    costs = [Column(name, justify="right", no_wrap=True) for name in ("trainings", "passes", "parameters")]
    table = plain_table(Column("method"), *costs, Column("σ of", no_wrap=True), Column("σ ∝", no_wrap=True))
    for name, method in METHODS.items():
        table.add_row(
            Text.assemble((name, "bold"), f"\n  {method.title}"),
            f"{method.n_trainings}",
            f"{method.n_passes}",
            f"{method.n_parameters(backbone):,}",
            " ".join({"energy": "E", "forces": "F"}.get(quantity, quantity) for quantity in method.std_of) or "–",
            method.growth if "energy" in method.std_of else "–",
        )
    table.caption = Text(
        f"trainings: of a backbone, from scratch; passes: through the network for energies, forces and energy σ; "
        f"parameters: with {backbone.name} and H, C, N, O; σ of: energies, forces, single atoms; "
        "σ ∝: growth of energy σ with the number n of distant copies of a structure",
        justify="left",
    )
    return table


def differences_table(results: Sequence[MethodResult]) -> Table | None:
    """Differences between methods with their intervals; ``None`` if there are none."""
    header, *rows = comparison_differences(results) or [[]]
    if not rows:
        return None
    columns = [Column(label, no_wrap=not label) for label in header]
    table = Table(*columns, title=Text("differences [95 % interval]"), title_justify="left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    table.caption = Text("intervals are of the test structures, for these trained models", justify="left")
    return table


def comparison_table(results: Sequence[MethodResult]) -> Table:
    """The main metrics of a comparison; its files have all."""
    rows = comparison_rows(results)
    labels = [label for label in rows[0] if label.startswith(MAIN_COLUMNS)]
    columns = [Column("method", no_wrap=True), *(Column(label, justify="right") for label in labels[1:])]
    table = Table(*columns, title="comparison", title_justify="left")
    for row in rows:
        table.add_row(*(row[label] for label in labels))
    return table


def _settings(settings: dict[str, object]) -> str:
    name = settings.pop("name")
    return f"{name} (" + ", ".join(f"{key} {value}" for key, value in settings.items()) + ")"


def _sampling(header: Header) -> dict[str, str]:
    if header.other_members:
        return {"ensemble": f"{len(header.parts)} members; the first is"}
    return {} if header.mc_dropout is None else {"Monte Carlo dropout": f"{header.mc_dropout.n_samples} samples of"}


def _calibration(calibration: Calibration | None) -> str:
    return "raw, not calibrated" if calibration is None else f"calibrated: {calibration}"


def _backbone(config: BackboneConfig) -> dict[str, str]:
    if not isinstance(config, HostConfig):
        return {"backbone": _settings(config.model_dump())}
    origin, size = config.origin, f"{config.n_features} features, cutoff {config.cutoff:g} Å"
    where = "in this file" if origin.weights == "copied" else f"in {origin.file} (sha256 {origin.sha256})"
    return {
        "backbone": f"adopted: {origin.source}, {size}",
        "needs": f"{origin.package} (adopted with version {origin.version})",
        "weights": where,
        "licence": origin.licence or "not known: ask whoever made the network",
    }


def _errors_beside(record: AdoptedRecord) -> dict[str, str]:
    """Errors of an adopted network, before and after."""
    where = f"{record.host['n_structures']} {record.structures} structures"
    return {
        label: f"{_value(record.adopted[key], unit)}; network alone {_value(record.host[key], unit)} ({where})"
        for label, key, unit in ADOPTED_ROWS
        if record.host.get(key) is not None
    }


def _value(value: object, unit: str) -> str:
    if not isinstance(value, float | int):
        return "–"
    size = {"kcal/mol": KCAL_PER_MOL, "kcal/mol/Å": KCAL_PER_MOL, "GPa": GPa}.get(unit, 1.0)
    return f"{value / size:.4g} {unit}" if unit else f"{value:.4f}"
