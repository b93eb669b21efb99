"""The integrator that settings ask for."""

from collections.abc import Sequence

import numpy as np

from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.md.config import MotionConfig
from sigmaff.simulation.md.integrator import Bussi, Integrator, Langevin, VelocityVerlet
from sigmaff.simulation.md.nose_hoover import FullBarostat, IsotropicBarostat, NoseHoover
from sigmaff.simulation.md.state import System


def build_integrator(
    system: System, config: MotionConfig, temperature: FloatArray, generators: Sequence[np.random.Generator]
) -> Integrator:
    """
    temperature: (n_replicas,) K; not used at constant energy.
    generators: of random numbers, one for each replica.
    """
    if config.ensemble == "nve":
        return VelocityVerlet(system, config, temperature)
    if config.ensemble == "npt":
        kind = IsotropicBarostat if config.cell == "isotropic" else FullBarostat
        return kind(system, config, temperature)
    if config.chosen_thermostat == "nose-hoover":
        return NoseHoover(system, config, temperature)
    random = Bussi if config.chosen_thermostat == "bussi" else Langevin
    return random(system, config, temperature, generators)
