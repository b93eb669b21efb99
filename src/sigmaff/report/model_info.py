"""What a report says about the model itself."""

from ase.data import chemical_symbols

from sigmaff.models import Model, MonteCarloDropout

FROM_RECORD = {"training", "fit", "head_training", "uncalibrated", "members", "date", "machine", "versions"}


def model_facts(model: Model) -> dict[str, object]:
    """Settings, sizes, calibrations and history of a model, for people."""
    first, n_members = model.potentials[0], len(model.potentials)
    return {
        **({"ensemble": f"{n_members} members"} if n_members > 1 else {}),
        **({"sampling": model.config.model_dump()} if isinstance(model, MonteCarloDropout) else {}),
        "backbone": first.config.backbone.model_dump(),
        "head": first.config.head.model_dump(),
        "training structures": first.statistics.n_structures,
        "parameters": model.n_parameters,
        "elements": " ".join(chemical_symbols[number] for number in model.elements),
        "compositions": first.statistics.compositions,
        "charge and spin": str(model.electrons),
        "calibration": {
            name: "none: σ is raw" if calibration is None else str(calibration)
            for name, calibration in model.calibrations._asdict().items()
        },
        **model.record.model_dump(mode="json", include=FROM_RECORD),
    }
