"""Errors, σ and calibration of a model on labelled structures. Measures are in ``sigmaff.evaluation.metrics``."""

from sigmaff.evaluation.calibrate import calibrate_evaluation
from sigmaff.evaluation.calibration import CALIBRATION_METHODS, CalibrationMethod, fit_calibration
from sigmaff.evaluation.evaluate import Evaluation, LabelledGraphs, evaluate, evaluate_predictor
from sigmaff.evaluation.groups import full_summary, group_summaries
from sigmaff.evaluation.samples import Sample
from sigmaff.evaluation.summary import Summary, summarize
