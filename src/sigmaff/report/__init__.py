"""Reports: one HTML file, without network, that shows what a model's predictions and its σ are worth."""

from sigmaff.extras import require

require("a page or figure", "jinja2", "matplotlib")  # every module of this package needs them

from sigmaff.report.figures import readme_figure
from sigmaff.report.model_info import model_facts
from sigmaff.report.page import write_table_page
from sigmaff.report.path import EnergyPath, follow_path, path_figure
from sigmaff.report.report import write_report
