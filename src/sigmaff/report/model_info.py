"""What a report says about the model itself."""

from dataclasses import asdict

from ase.data import chemical_symbols

from sigmaff.models import Model, MonteCarloDropout

FROM_RECORD = {"training", "fit", "head_training", "members", "date", "machine", "versions"}


def model_facts(model: Model) -> dict[str, object]:
    """Settings, sizes, calibrations and history of a model, for people."""
    first, n_members = model.potentials[0], len(model.potentials)
    calibrations = {"energy": model.energy_calibration, "forces": model.forces_calibration}
    return {
        **({"ensemble": f"{n_members} members"} if n_members > 1 else {}),
        **({"sampling": model.config.model_dump()} if isinstance(model, MonteCarloDropout) else {}),
        "backbone": first.config.backbone.model_dump(),
        "head": first.config.head.model_dump(),
        "training structures": first.statistics.n_structures,
        "parameters": model.n_parameters,
        "elements": " ".join(chemical_symbols[number] for number in model.elements),
        "calibration": {
            name: {key: asdict(calibration)[key] for key in ("method", "scale", "n_samples")} if calibration else "none"
            for name, calibration in calibrations.items()
        },
        **model.record.model_dump(mode="json", include=FROM_RECORD),
    }
