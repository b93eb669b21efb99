"""Tables that the commands print."""

from collections.abc import Sequence

from ase.data import chemical_symbols
from rich.table import Table
from rich.text import Text

from sigmaff.backbones import BackboneConfig
from sigmaff.data.check import Finding
from sigmaff.evaluation import Summary
from sigmaff.models.file import Header
from sigmaff.models.prediction import Calibration
from sigmaff.runs.compare import MethodResult, columns
from sigmaff.runs.methods import METHODS
from sigmaff.units import KCAL_PER_MOL

COLORS = {"error": "bold red", "warning": "yellow", "info": "default"}

MAIN_COLUMNS = ("MAE", "calibration", "AUROC", "ms")

ROWS: tuple[tuple[str, str, str, str], ...] = (  # label, measure, unit of energies, unit of forces
    ("MAE", "mae", "eV", "eV/Å"),
    ("RMSE", "rmse", "eV", "eV/Å"),
    ("calibration score", "calibration", "", ""),
    ("  before calibration", "calibration_raw", "", ""),
    ("  paper convention", "calibration_paper", "", ""),
    ("coverage of 68 %", "coverage_68", "", ""),
    ("coverage of 95 %", "coverage_95", "", ""),
    ("NLL", "nll", "", ""),
    ("CRPS", "crps", "eV", "eV/Å"),
    ("Spearman σ, |error|", "spearman", "", ""),
    ("AUROC of the --ood set", "auroc", "", ""),
)


def metrics_table(summary: Summary, title: str) -> Table:
    """The main metrics of an evaluation; the JSON file has all."""
    table = Table(title=Text(f"{title}: {summary['n_structures']} structures"), title_justify="left")
    table.add_column("")
    table.add_column("energy", justify="right")
    table.add_column("forces", justify="right")
    for label, measure, energy_unit, forces_unit in ROWS:
        energy, forces = summary.get(f"energy_{measure}"), summary.get(f"forces_{measure}")
        if energy is not None or forces is not None:
            table.add_row(label, _value(energy, energy_unit), _value(forces, forces_unit))
        if measure == "mae":
            table.add_row("", _in_kcal(energy, "kcal/mol"), _in_kcal(forces, "kcal/mol/Å"))
    if summary.get("stress_mae") is not None:
        table.caption = (
            f"stress: MAE {_value(summary['stress_mae'], 'eV/Å³')}, RMSE {_value(summary['stress_rmse'], 'eV/Å³')}"
        )
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        severity = Text(finding.severity, style=COLORS[finding.severity])
        table.add_row(severity, Text(finding.code), Text(finding.message))
    return table


def info_table(header: Header, n_parameters: int) -> Table:
    """Summary of a model file."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    statistics, record = header.statistics, header.record
    rows = {
        **_sampling(header),
        "backbone": _settings(header.config.backbone.model_dump()),
        "head": _settings(header.config.head.model_dump()),
        "parameters": f"{n_parameters:,}",
        "elements": " ".join(chemical_symbols[number] for number in statistics.elements),
        "reference energies": ", ".join(
            f"{chemical_symbols[number]} {energy:.6f} eV" for number, energy in statistics.reference_energies.items()
        ),
        "trained on": f"{statistics.n_structures} structures",
        "energy σ": _calibration(header.energy_calibration),
        "forces σ": _calibration(header.forces_calibration),
        "made": f"{record.date or 'date unknown,'} by sigmaff {header.library_version}",
    }
    metrics = record.metrics or {}
    for quantity, unit in (("energy", "eV"), ("forces", "eV/Å")):
        if metrics.get(f"{quantity}_mae") is not None:
            rows[f"test MAE, {quantity}"] = f"{metrics[f'{quantity}_mae']:.5g} {unit}"
    for name, text in rows.items():
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def methods_table(backbone: BackboneConfig) -> Table:
    """Every method with its cost, on this backbone, and the properties of its σ."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("method")
    for column in ("trainings", "passes", "parameters"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("σ of", no_wrap=True)
    table.add_column("σ ∝", no_wrap=True)
    for name, method in METHODS.items():
        marks = (("E", method.has_energy_std), ("F", method.has_forces_std), ("atom", method.has_node_std))
        table.add_row(
            Text.assemble((name, "bold"), f"\n  {method.title}"),
            f"{method.n_trainings}",
            f"{method.n_passes}",
            f"{method.n_parameters(backbone):,}",
            " ".join(quantity for quantity, has_std in marks if has_std) or "–",
            method.growth if method.has_energy_std else "–",
        )
    table.caption = Text(
        f"trainings: of a backbone, from scratch; passes: through the network for energies, forces and energy σ; "
        f"parameters: with {backbone.name} and H, C, N, O; σ of: energies, forces, single atoms; "
        "σ ∝: growth of energy σ with the number n of distant copies of a structure",
        justify="left",
    )
    return table


def comparison_table(results: Sequence[MethodResult]) -> Table:
    """The main metrics of a comparison; its files have all."""
    measures = [column for column in columns(results) if column.label.startswith(MAIN_COLUMNS)]
    table = Table(title="comparison", title_justify="left")
    table.add_column("method", no_wrap=True)
    for column in measures:
        table.add_column(column.label, justify="right")
    for result in results:
        table.add_row(result.method, *(column.text(result) for column in measures))
    return table


def _settings(settings: dict[str, object]) -> str:
    name = settings.pop("name")
    return f"{name} (" + ", ".join(f"{key} {value}" for key, value in settings.items()) + ")"


def _sampling(header: Header) -> dict[str, str]:
    if header.other_members:
        return {"ensemble": f"{len(header.parts)} members; the first is"}
    return {} if header.mc_dropout is None else {"Monte Carlo dropout": f"{header.mc_dropout.n_samples} samples of"}


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return "raw, not calibrated"
    return f"calibrated ({calibration.method}, × {calibration.scale:.4g}, on {calibration.n_samples} errors)"


def _value(value: object, unit: str) -> str:
    if not isinstance(value, float | int):
        return "–"
    return f"{value:.4g} {unit}" if unit else f"{value:.4f}"


def _in_kcal(value: object, unit: str) -> str:
    return "–" if not isinstance(value, float | int) else f"{value / KCAL_PER_MOL:.4g} {unit}"
