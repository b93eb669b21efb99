"""QM7-X: Tables 4, 5, 7 and 17 to 22. eV and eV/Å."""

from sigmaff_paper.tables.table import CALIBRATION, Labels, Numbers, PaperTable

_MEASURES = (
    "Energy ID",
    "Forces ID",
    "Energy OOD",
    "Forces OOD",
    CALIBRATION,
    "AUC-ROC energy",
    "AUC-ROC forces (trace)",
)
_RATES = ("1 %", "5 %", "10 %", "15 %", "20 %")


def _by_measure(*numbers: Numbers) -> dict[Labels, Numbers]:
    return {(measure,): row for measure, row in zip(_MEASURES, numbers, strict=True)}


PREDICTIVE = PaperTable(
    number="Table 4",
    caption="MAE of DimeNet++ trained on QM7-X equilibrium structures (eV, eV/Å)",
    columns=("MCD 20 %", "MCD 1 %", "Evidential", "fixed-LNK", "LNK", "Ensemble"),
    rows={
        ("Energy",): (0.24, 0.09, 0.02, 0.046, 0.0208, 0.0523),
        ("Forces",): (0.0087, 0.0043, 0.0225, 0.047, 0.0046, 0.0034),
        (CALIBRATION,): (1.279, 1.285, 1.629, 1.293, 1.339, 2.597),
    },
)

DETECTION = PaperTable(
    number="Table 5",
    caption="detection of non-equilibrium structures by the energy σ of DimeNet++ on QM7-X",
    columns=("MCD 20 %", "MCD 1 %", "Evidential", "fixed-LNK", "LNK", "Ensemble"),
    rows={("AUC-ROC",): (0.511, 0.504, 0.587, 0.742, 0.803, 0.947)},
)

FORCE = PaperTable(
    number="Table 7",
    caption="ensemble, MCD and LNK on QM7-X with DimeNet++ by rate of dropout (eV, eV/Å)",
    columns=("0 %", "1 %", "5 %", "10 %", "20 %"),
    rows={
        ("MCD", "Energy MAE"): (None, 0.09, 0.134, 0.259, 0.24),
        ("MCD", "Forces MAE"): (None, 0.004, 0.005, 0.012, 0.009),
        ("MCD", "AUC-ROC energy"): (None, 0.504, 0.511, 0.55, 0.511),
        ("MCD", "AUC-ROC forces (trace)"): (None, 0.86, 0.87, 0.89, 0.91),
        ("MCD-LNK", "Energy MAE"): (None, 0.059, 0.024, 0.039, 0.036),
        ("MCD-LNK", "Forces MAE"): (None, 0.007, 0.004, 0.006, 0.007),
        ("MCD-LNK", "AUC-ROC energy"): (None, 0.6, 0.69, 0.72, 0.72),
        ("MCD-LNK", "AUC-ROC forces (trace)"): (None, 0.79, 0.82, 0.84, 0.9),
        ("Ensemble", "Energy MAE"): (0.052, None, None, None, None),
        ("Ensemble", "Forces MAE"): (0.003, None, None, None, None),
        ("Ensemble", "AUC-ROC energy"): (0.947, None, None, None, None),
        ("Ensemble", "AUC-ROC forces (trace)"): (0.996, None, None, None, None),
    },
)

DIMENET_ALL = PaperTable(
    number="Table 17",
    caption="DimeNet++ trained on QM7-X equilibrium structures, 5 samples (eV, eV/Å)",
    columns=("MCD 20 %", "MCD 1 %", "Evidential", "LNK", "LNK + Drop 5 %"),
    rows=_by_measure(
        (0.24, 0.09, 0.02, 0.049, 0.0209),
        (0.009, 0.004, 0.023, 0.047, 0.0045),
        (5.242, 5.277, 5.172, 5.53, 5.23),
        (1.266, 1.282, 1.367, 1.361, 1.293),
        (1.279, 1.285, 1.629, 2.596, 2.596),
        (0.511, 0.504, 0.587, 0.795, 0.7913),
        (0.905, 0.858, None, 0.729, 0.8278),
    ),
)

DIMENET_69 = PaperTable(
    number="Table 18",
    caption="DimeNet++ trained on QM7-X equilibrium structures, 69 samples (eV, eV/Å)",
    columns=("MCD 20 %", "MCD 1 %", "Evidential", "LNK", "LNK + Drop 1 %"),
    rows=_by_measure(
        (0.165, 0.077, 0.02, 0.049, 0.0265),
        (0.007, 0.004, 0.023, 0.047, 0.0061),
        (5.022, 5.063, 5.172, 5.53, 5.23),
        (1.27, 1.271, 1.367, 1.361, 1.293),
        (1.367, 1.296, 1.629, 2.596, 2.596),
        (0.513, 0.521, 0.587, 0.795, 0.74),
        (0.911, 0.865, None, 0.729, 0.854),
    ),
)

OTHER_BACKBONES = PaperTable(
    number="Table 19",
    caption="SchNet and NequIP trained on QM7-X equilibrium structures, 5 samples (eV, eV/Å)",
    columns=("MCD, SchNet", "MCD, NequIP", "Evidential, SchNet", "Evidential, NequIP"),
    rows=_by_measure(
        (0.44, 0.158, 0.027, 0.019),
        (0.025, 0.019, 0.027, 0.009),
        (5.292, 37.751, 5.322, 21.24),
        (1.271, 26.139, 1.319, 84.441),
        (1.346, 1.272, 1.67, 1.549),
        (0.501, 0.627, 0.741, 0.746),
        (0.8, 0.988, None, None),
    ),
    slips={((row,), "MCD, NequIP"): "without 7 of its 1537 test molecules" for row in ("Energy OOD", "Forces OOD")},
)

OTHER_BACKBONES_69 = PaperTable(
    number="Table 20",
    caption="SchNet and NequIP trained on QM7-X equilibrium structures, 69 samples (eV, eV/Å)",
    columns=OTHER_BACKBONES.columns,
    rows=_by_measure(
        (0.423, 0.109, 0.027, 0.019),
        (0.023, 0.017, 0.027, 0.009),
        (5.291, 36.253, 5.322, 21.24),
        (1.271, 25.937, 1.319, 84.441),
        (1.274, 1.329, 1.67, 1.549),
        (0.478, 0.68, 0.741, 0.746),
        (0.81, 0.992, None, None),
    ),
    slips=OTHER_BACKBONES.slips,
)

DROPOUT_DIMENET = PaperTable(
    number="Table 21",
    caption="MCD of DimeNet++ on QM7-X by rate of dropout, 5 samples (eV, eV/Å)",
    columns=_RATES,
    rows=_by_measure(
        (0.09, 0.134, 0.259, 0.206, 0.24),
        (0.004, 0.005, 0.012, 0.008, 0.009),
        (5.277, 5.319, 4.978, 5.245, 5.242),
        (1.282, 1.288, 1.675, 1.273, 1.266),
        (1.285, 1.275, 1.273, 1.271, 1.279),
        (0.504, 0.511, 0.55, 0.517, 0.511),
        (0.858, 0.872, 0.886, 0.904, 0.905),
    ),
)

DROPOUT_SCHNET = PaperTable(
    number="Table 22",
    caption="MCD of SchNet on QM7-X by rate of dropout, 5 samples (eV, eV/Å)",
    columns=_RATES,
    rows=_by_measure(
        (0.177, 0.256, 0.359, 0.43, 0.44),
        (0.012, 0.015, 0.019, 0.022, 0.025),
        (5.126, 5.135, 5.036, 5.235, 5.292),
        (1.255, 1.262, 1.26, 1.26, 1.271),
        (1.318, 1.328, 1.347, 1.332, 1.346),
        (0.492, 0.493, 0.496, 0.484, 0.501),
        (0.816, 0.845, 0.826, 0.811, 0.8),
    ),
)
