"""Our potential in torch-sim, which moves many molecules at once."""

from collections.abc import Callable

import torch
from ase import Atoms
from torch import Tensor

from sigmaff.graph import batch_graphs, build_graph
from sigmaff.models import Potential


def torch_sim_steps(
    model: Potential, start: Atoms, temperature: float, n_steps: int, n: int, time_step: float
) -> Callable[[], object]:
    """Some steps of torch-sim's Langevin dynamics of n copies, without files.

    All atoms stay neighbours of all others: pairs are found once, which torch-sim's own models do in every step.

    Arguments:
        model: energies and forces, and σ of energies, which torch-sim has no use for.
        temperature: K.
        time_step: fs.
    """
    import torch_sim
    from torch_sim.models.interface import ModelInterface

    pairs = batch_graphs([build_graph(start, model.cutoff)] * n)

    class Model(ModelInterface):
        def __init__(self) -> None:
            super().__init__()
            self._device, self._dtype = torch.device("cpu"), torch.float64
            self._compute_stress, self._compute_forces = False, True

        def forward(self, state: "torch_sim.SimState") -> dict[str, Tensor]:
            found = model.predict(pairs.with_positions(state.positions), forces_std="none", stress_std=False)
            return {"energy": found.energy, "forces": found.forces.double()}

    wrapped, copies = Model(), [start.copy() for _ in range(n)]

    def run() -> object:
        return torch_sim.integrate(
            system=copies,
            model=wrapped,
            integrator=torch_sim.nvt_langevin,
            n_steps=n_steps,
            temperature=temperature,
            timestep=1e-3 * time_step,  # ps
        )

    return run
