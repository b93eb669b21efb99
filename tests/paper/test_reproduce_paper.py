"""The paper's numbers as typed: they agree with each other, but for slips that are known and told."""

import numpy as np
import pytest

from sigmaff_paper.tables import md17 as paper_md17
from sigmaff_paper.tables import qm7x as paper_qm7x
from sigmaff_paper.tables.table import CALIBRATION, CALIBRATION_RANGE, PaperTable


def decimals(number: float) -> int:
    return len(repr(number).partition(".")[2])


def averages(table: PaperTable, column: str, measure: str) -> tuple[float, int]:
    """Mean over molecules, and of how many."""
    values = [table.value((molecule, measure), column) for molecule in paper_md17.MOLECULES]
    present = [value for value in values if value is not None]
    return float(np.mean(present)), len(present)


def test_averages_of_the_paper_are_those_of_its_molecules_but_for_known_slips():
    names = {"Dropout": ("MCD", "MCD (N=5)"), "fixed-LNK": ("fixed-LNK", "LNK")}
    tables = {"DimeNet++": paper_md17.DIMENET_ALL, "SchNet": paper_md17.SCHNET, "NequIP": paper_md17.NEQUIP_ALL}
    wrong, incomplete = set(), set()
    for (backbone, measure), numbers in paper_md17.AVERAGE.rows.items():
        for column, printed in zip(paper_md17.AVERAGE.columns, numbers, strict=True):
            table = tables[backbone]
            own = next(name for name in names.get(column, (column,)) if name in table.columns)
            mean, n_molecules = averages(table, own, measure)
            if abs(mean - printed) > 0.5 * 10.0 ** -decimals(printed) + 1e-9:
                wrong.add(((backbone, measure), column))
            if n_molecules < 7:
                incomplete.add(((backbone, measure), column))
    assert wrong == {
        (("DimeNet++", "Energy"), "fixed-LNK"),
        (("DimeNet++", "Forces"), "fixed-LNK"),
        (("SchNet", "Energy"), "fixed-LNK"),
        (("SchNet", "Forces"), "fixed-LNK"),
    }
    assert incomplete == {(("NequIP", "Energy"), "fixed-LNK"), (("NequIP", "Forces"), "fixed-LNK")}
    assert set(paper_md17.AVERAGE.slips) == wrong | incomplete


def test_what_slips_say_is_what_tables_have():
    dimenet = {measure: averages(paper_md17.DIMENET_ALL, "LNK", measure)[0] for measure in ("Energy", "Forces")}
    assert dimenet == pytest.approx({"Energy": 0.109, "Forces": 0.235}, abs=5e-4)
    assert averages(paper_md17.DIMENET_ALL, "Evidential", "Forces")[0] == pytest.approx(0.197, abs=5e-4)
    for measure, of_fixed, of_lnk in (("Energy", 0.143, 0.134), ("Forces", 0.430, 0.423)):
        assert averages(paper_md17.SCHNET, "fixed-LNK", measure)[0] == pytest.approx(of_fixed, abs=5e-4)
        assert averages(paper_md17.SCHNET_ALL, "LNK", measure)[0] == pytest.approx(of_lnk, abs=5e-4)


def test_numbers_that_the_paper_prints_twice_agree():
    for row in paper_md17.SCHNET.rows:
        for column, other in (("MCD", "MCD (N=5)"), ("Evidential", "Evidential"), ("Backbone", "Backbone")):
            assert paper_md17.SCHNET.value(row, column) == paper_md17.SCHNET_ALL.value(row, other)
        if row[1] != CALIBRATION:
            assert paper_md17.SCHNET.value(row, "fixed-LNK") == paper_md17.GMDN.value(row, "LNK")
            assert paper_md17.SCHNET.value(row, "Ensemble") == paper_md17.SCHNET_ALL.value(row, "Ensemble")
    for rate in ("1 %", "5 %", "10 %", "20 %"):
        for measure, of_force in (("Energy ID", "Energy MAE"), ("Forces ID", "Forces MAE")):
            value = paper_qm7x.DROPOUT_DIMENET.value((measure,), rate)
            assert value == paper_qm7x.FORCE.value(("MCD", of_force), rate)
    for measure in ("Energy ID", "Forces ID", "Energy OOD", "Forces OOD", CALIBRATION, "AUC-ROC energy"):
        for table, column in ((paper_qm7x.DROPOUT_SCHNET, "MCD, SchNet"), (paper_qm7x.DROPOUT_DIMENET, "MCD 20 %")):
            other = paper_qm7x.OTHER_BACKBONES if "SchNet" in column else paper_qm7x.DIMENET_ALL
            assert table.value((measure,), "20 %") == other.value((measure,), column)
    assert paper_qm7x.DETECTION.rows["AUC-ROC",][-1] == paper_qm7x.FORCE.value(("Ensemble", "AUC-ROC energy"), "0 %")


def test_impossible_calibration_scores_are_marked():
    assert paper_md17.SCHNET_ALL.slip(("ethanol", CALIBRATION), "Ensemble") is not None  # 2.538
    assert paper_md17.DIMENET_ALL.slip(("aspirin", CALIBRATION), "Evidential") is not None  # 0.480
    assert paper_md17.DIMENET_ALL.slip(("uracil", CALIBRATION), "LNK") is None  # 1.688
    levels = np.arange(1, 10) / 10
    scores = [np.sqrt(sum((p - (p >= rank)) ** 2 for p in levels)) for rank in np.linspace(0.05, 0.95, 10)]
    assert (round(min(scores), 3), round(max(scores), 3)) == CALIBRATION_RANGE
