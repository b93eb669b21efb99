"""Costs of methods and growth of their σ: Tables 6 and 11, and Figure 2 according to the text."""

from sigmaff_paper.tables.table import PaperTable

SPEED = PaperTable(
    number="Table 6",
    caption="time of a prediction with DimeNet++ on QM7-X (ms), and trainings",
    columns=("LNK", "Evidential", "MCD", "Ensemble"),
    rows={("Runtime [ms]",): (59.3, 58.8, 229, 274), ("#Trainings",): (1, 1, 1, 5)},
)

PARAMETERS = PaperTable(
    number="Table 11",
    caption="numbers of parameters",
    columns=("DimeNet++", "SchNet", "NequIP"),
    rows={
        ("MCD",): (1_885_830, 455_809, 189_080),
        ("Evidential",): (1_889_670, 456_004, 189_128),
        ("LNK",): (1_920_150, 468_263, 197_567),
        ("Ensemble",): (9_429_150, 2_279_045, 1_119_800),
    },
    slips={
        (("LNK",), "DimeNet++"): "without the 100 means and the 3 scalars of the process: 1,920,253 with them",
        (("Ensemble",), "NequIP"): "five networks for six elements: 945,400 for the four elements of the other rows",
    },
)

LOCALITY = PaperTable(
    number="Figure 2",
    caption="growth of energy σ with the number of distant copies of a molecule: slope of log σ over log n",
    columns=("slope",),
    rows={("Ensemble",): (1.0,), ("LNK",): (1.0,)},
    slips={
        (("LNK",), "slope"): "the figure shows the variance of the LNK and the standard deviations of the others; the "
        "slope of its σ is 0.5",
    },
)
"""The text: linear with slope 1 for ensembles and LNK, for MCD in expectation; SVGP-DKL and evidential regression rise
too steeply, and stop after three molecules."""
