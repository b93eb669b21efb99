"""What a report says of the model itself."""

from dataclasses import asdict

from ase.data import chemical_symbols

from sigmaff.models import Ensemble, Model, MonteCarloDropout, Potential

FROM_RECORD = {"training", "fit", "head_training", "members", "date", "machine", "versions"}


def model_facts(model: Model) -> dict[str, object]:
    """Settings, sizes, calibrations and history of a model, for people."""
    calibrations = {"energy": model.energy_calibration, "forces": model.forces_calibration}
    return {
        **_made_of(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "elements": " ".join(chemical_symbols[number] for number in model.elements),
        "calibration": {
            name: {key: asdict(calibration)[key] for key in ("method", "scale", "n_samples")} if calibration else "none"
            for name, calibration in calibrations.items()
        },
        **model.record.model_dump(mode="json", include=FROM_RECORD),
    }


def _made_of(model: Model) -> dict[str, object]:
    if isinstance(model, Ensemble):
        return {"ensemble": f"{len(model.potentials)} members", **_made_of(model.potentials[0])}
    if isinstance(model, MonteCarloDropout):
        return {"sampling": model.config.model_dump(), **_made_of(model.potential)}
    assert isinstance(model, Potential)
    return {
        "backbone": model.config.backbone.model_dump(),
        "head": model.config.head.model_dump(),
        "training structures": model.statistics.n_structures,
    }
