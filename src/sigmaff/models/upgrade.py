"""Model files of former formats: the settings and tensors that they do not have."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigmaff.errors import ModelFileError
from sigmaff.heads import HEADS, LLPRConfig, LNKConfig
from sigmaff.heads.base import SampledHeadSettings
from sigmaff.heads.lnk.head import KERNELS
from sigmaff.models.header import Header, member_prefix

SAMPLED = [name for name, kind in HEADS.items() if issubclass(kind.Config, SampledHeadSettings)]
"""Names of heads whose settings say how the samples behind force σ are drawn."""


def completed(content: Any) -> Any:
    """With the settings of heads that a file does not name.

    Draws behind sampled force σ are then independent. Stationary kernels compare embeddings before their activation.
    Heads up to format 4 do not look at surroundings.
    """
    if not isinstance(content, dict):
        return content
    others = content.get("other_members")
    for part in (content, *(others if isinstance(others, list) else ())):
        config = part.get("config") if isinstance(part, dict) else None
        head = config.get("head") if isinstance(config, dict) else None
        if isinstance(head, dict) and head.get("name") in SAMPLED:
            if head.get("covariance") != "diagonal":  # whose forces are not sampled
                head.setdefault("draws", "independent")
            if head["name"] == "svgp" or (head["name"] == "lnk" and head.get("kernel") != "linear"):
                head.setdefault("embedding", "pre_activation")
            if head["name"] == "lnk" and content.get("format_version") in range(5):
                head["distance_aware"] = False
    return content


def upgraded(path: Path, header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as this version has them."""
    if header.format_version < 3:
        tensors = tensors | _label_noise(header, tensors)
    if header.format_version < 4:
        tensors = tensors | _linear_kernels(path, header, tensors)
    return tensors if header.format_version > 4 else tensors | _slope_factors(header, tensors)


def _slope_factors(header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Up to format 4 energies and slopes have one factor and one scale."""
    added = {}
    for number, part in enumerate(header.parts):
        head, prefix = part.config.head, f"{member_prefix(number)}head."
        if isinstance(head, LLPRConfig) or (isinstance(head, LNKConfig) and head.fit == "closed_form"):
            added[f"{prefix}slope_scale"] = torch.ones((), dtype=torch.float64)
            if head.variance_labels == "energy+forces" and f"{prefix}weight_cholesky" in tensors:
                added[f"{prefix}slope_cholesky"] = tensors[f"{prefix}weight_cholesky"].clone()
    return added


def _linear_kernels(path: Path, header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Linear parts of kernels up to format 3 are not centred, and all their constants are free."""
    added, none = {}, torch.empty(0)
    for number, part in enumerate(header.parts):
        head, prefix = part.config.head, f"{member_prefix(number)}head."
        if not isinstance(head, LNKConfig) or not KERNELS[head.kernel][1]:
            continue
        if part.config.backbone.name == "dimenet++":
            raise ModelFileError(
                f"{path}: written by sigmaff {header.library_version}, whose linear kernel did not act on what the "
                "readout of DimeNet++ acts on, so that its σ was wrong; solve for the head again: "
                "sigmaff train with backbone_from: the backbone.sigmaff of its run"
            )
        if not head.by_element:
            continue
        n_elements = len(part.statistics.elements)
        points, weights = (tensors.get(f"{prefix}{name}", none) for name in ("kernel.inducing_points", "weight_mean"))
        n_inducing, n_weights = len(torch.atleast_1d(points)), len(torch.atleast_1d(weights))
        n_linear = max((n_weights - n_inducing) // n_elements - 1, 0)
        center = torch.zeros(n_elements + 1, n_linear, dtype=torch.float64)
        added[f"{prefix}kernel.linear_center"] = center
        added[f"{prefix}kernel.composition_projector"] = torch.eye(n_elements, dtype=torch.float64)
    return added


def _label_noise(header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The noise of labels in closed-form heads, which files up to format 2 have in their record; 0 if it is missing."""
    recorded = {} if header.record.fit is None else header.record.fit.model_dump()
    fit = {name: value for name, value in recorded.items() if isinstance(value, int | float)}
    added = {}
    for number, part in enumerate(header.parts):
        head, prefix = part.config.head, f"{member_prefix(number)}head."
        if isinstance(head, LLPRConfig) or (isinstance(head, LNKConfig) and head.fit == "closed_form"):
            log_scale = tensors.get(f"{prefix}kernel.log_scale", torch.zeros((), dtype=torch.float64))
            added[f"{prefix}energy_noise"] = torch.exp(2.0 * log_scale.double()) * fit.get("noise", 0.0)
            added[f"{prefix}force_weight"] = torch.tensor(fit.get("force_weight", 0.0), dtype=torch.float64)
    return added
