"""What a report says of the model itself."""

from dataclasses import asdict

from ase.data import chemical_symbols

from sigmaff.potential import Potential

FROM_RECORD = ("training", "closed_form", "head_training", "date", "machine", "versions")


def model_facts(potential: Potential) -> dict[str, object]:
    """Settings, sizes, calibrations and history of a potential, for people."""
    calibrations = {"energy": potential.energy_calibration, "forces": potential.forces_calibration}
    return {
        "backbone": potential.config.backbone.model_dump(),
        "head": potential.config.head.model_dump(),
        "parameters": sum(parameter.numel() for parameter in potential.parameters()),
        "elements": " ".join(chemical_symbols[number] for number in potential.statistics.elements),
        "training structures": potential.statistics.n_structures,
        "calibration": {
            name: {key: asdict(calibration)[key] for key in ("method", "scale", "n_samples")} if calibration else "none"
            for name, calibration in calibrations.items()
        },
        **{key: potential.record[key] for key in FROM_RECORD if key in potential.record},
    }
