"""Tables that the commands print."""

from collections.abc import Iterator, Mapping, Sequence

from ase.data import chemical_symbols
from ase.units import GPa
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from sigmaff.backbones import BackboneConfig, HostConfig
from sigmaff.data.check import Finding
from sigmaff.evaluation import Summary
from sigmaff.models.header import Header
from sigmaff.models.prediction import QUANTITIES, Calibration
from sigmaff.models.record import AdoptedRecord, Figures, RunRecord
from sigmaff.runs.compare import MethodResult, comparison_sections
from sigmaff.runs.methods import METHODS
from sigmaff.units import KCAL_PER_MOL

COLORS = {"error": "bold red", "warning": "yellow", "info": "default"}

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
    ("rms error / σ", "rms_z", NO_UNITS),
    ("NLL", "nll", NO_UNITS),
    ("CRPS", "crps", UNITS),
    ("Spearman σ, |error|", "spearman", NO_UNITS),
)
OOD_ROWS: tuple[tuple[str, str, tuple[str, str, str]], ...] = (  # label, key with {} for the quantity, units
    ("MAE", "ood_{}_mae", UNITS),
    ("RMSE", "ood_{}_rmse", UNITS),
    ("coverage of 68 %", "ood_{}_coverage_68", NO_UNITS),
    ("coverage of 95 %", "ood_{}_coverage_95", NO_UNITS),
    ("rms error / σ", "ood_{}_rms_z", NO_UNITS),
    ("AUROC", "{}_auroc", NO_UNITS),
    ("  trace of the covariance", "{}_auroc_trace", NO_UNITS),
    ("  geometric mean of atoms", "{}_auroc_geometric_mean", NO_UNITS),
    ("  largest of an atom", "{}_auroc_largest_atom", NO_UNITS),
)
MOST_GROUPS = 20
"""Groups that a table shows."""


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
        _add_row(table, label, [summary.get(f"{quantity}_{measure}") for quantity in shown], units)
    return table


def ood_table(figures: Summary, name: str) -> Table:
    """Errors of a model on an out-of-distribution set, whether σ covers them, and whether it tells the set apart."""
    columns = [Column(""), Column("energy", justify="right"), Column("forces", justify="right")]
    title = Text(f"out of distribution, {name}: {figures['ood_n_structures']} structures")
    table = Table(*columns, title=title, title_justify="left")
    for label, key, units in OOD_ROWS:
        _add_row(table, label, [figures.get(key.format(quantity)) for quantity in ("energy", "forces")], units)
    return table


def groups_table(groups: Mapping[str, Summary]) -> Table:
    """Errors and coverage of each group; energies / forces."""
    labels = ("structures", "MAE (eV, eV/Å)", "68 % covers", "95 % covers", "rms error / σ")
    columns = [Column("group"), *(Column(label, justify="right") for label in labels)]
    table = Table(*columns, title="groups: energies / forces", title_justify="left")
    for name, figures in list(groups.items())[:MOST_GROUPS]:
        pairs = [
            " / ".join(_number(figures.get(f"{quantity}_{key}"), digits) for quantity in ("energy", "forces"))
            for key, digits in (("mae", ".3g"), ("coverage_68", ".3f"), ("coverage_95", ".3f"), ("rms_z", ".2f"))
        ]
        table.add_row(Text(name), str(figures["n_structures"]), *pairs)
    if len(groups) > MOST_GROUPS:
        table.caption = Text(f"and {len(groups) - MOST_GROUPS} smaller groups, in the JSON file", justify="left")
    return table


def result_tables(record: RunRecord) -> Iterator[Table]:
    """Tables of all that a run was tested on."""
    if record.metrics is not None:
        yield metrics_table(record.metrics, title="test structures")
    if record.groups:
        yield groups_table(record.groups)
    yield from (ood_table(figures, name) for name, figures in record.ood.items() if figures)


def _add_row(table: Table, label: str, values: Sequence[object], units: Sequence[str]) -> None:
    """Add a row, if it has a value."""
    if any(value is not None for value in values):
        table.add_row(label, *(_value(value, unit) for value, unit in zip(values, units, strict=False)))


def _number(value: object, digits: str) -> str:
    return f"{value:{digits}}" if isinstance(value, float | int) else "–"


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
        "charge and spin": str(statistics.electrons),
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
    rows |= {f"on {name}": _ood_words(figures) for name, figures in record.ood.items() if figures}
    rows |= {f"test MAE, {name}": _group_words(figures) for name, figures in record.groups.items()}
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


def comparison_tables(results: Sequence[MethodResult], width: int) -> Iterator[Table | Padding]:
    """Tables with explanations that fit into ``width`` columns of text; a table that is wider is continued below."""
    for section in comparison_sections(results):
        for number, rows in enumerate(_fitting(section.rows, width)):
            sizes = zip(rows[0], _widths(rows), strict=True)
            columns = [Column(label, justify="right", width=size) for label, size in sizes]
            columns[0].justify = "left"
            table = plain_table(*columns)
            table.title, table.title_justify = Text(section.title + (", continued" if number else "")), "left"
            for row in rows[1:]:
                table.add_row(*(Text(cell, no_wrap=True) for cell in row))
            yield table
        yield Padding(Text(section.lead, style="dim"), (0, 0, 1, 0))


def _fitting(rows: Sequence[Sequence[str]], width: int) -> Iterator[list[list[str]]]:
    """The columns in groups that fit, each with the columns that name its rows: the first, and one without label."""
    widths = _widths(rows)
    names = [index for index, label in enumerate(rows[0]) if index == 0 or not label]
    groups: list[list[int]] = [[]]
    for index in range(len(names), len(widths)):
        if groups[-1] and sum(widths[i] + 2 for i in (*names, *groups[-1], index)) > width:
            groups.append([])
        groups[-1].append(index)
    for group in groups:
        yield [[row[i] for i in (*names, *group)] for row in rows if {row[i] for i in group} != {"–"}]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Of each column: of its widest cell, or of the longest word of its label."""
    return [max(map(len, (*label.split(" "), *cells))) for label, *cells in zip(*rows, strict=True)]


def _ood_words(figures: Figures) -> str:
    """Errors on an out-of-distribution set, what σ covers of them, and whether it tells the set apart."""
    found = []
    for quantity, unit in (("energy", "eV"), ("forces", "eV/Å")):
        if (mae := figures.get(f"ood_{quantity}_mae")) is not None:
            shares = [figures.get(f"ood_{quantity}_coverage_{level}") for level in (68, 95)]
            covered = f" (68 % covers {shares[0]:.1%}, 95 % covers {shares[1]:.1%})" if None not in shares else ""
            found.append(f"{quantity} MAE {mae:.5g} {unit}{covered}")
        if (auroc := figures.get(f"{quantity}_auroc")) is not None:
            found.append(f"{quantity} AUROC {auroc:.3f}")
    return ", ".join([f"{figures['ood_n_structures']} structures", *found])


def _group_words(figures: Figures) -> str:
    units = {"energy": "eV", "forces": "eV/Å"}
    known = {quantity: figures.get(f"{quantity}_mae") for quantity in units}
    return ", ".join(f"{name} {mae:.5g} {units[name]}" for name, mae in known.items() if mae is not None)


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
