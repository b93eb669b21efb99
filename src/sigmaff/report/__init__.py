"""Reports: one HTML file, without network, that shows what a model's predictions and its σ are worth."""

from sigmaff.report.figures import readme_figure
from sigmaff.report.report import write_report

__all__ = ["readme_figure", "write_report"]
