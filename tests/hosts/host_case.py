"""What holds for every adapter of another program's network. Each host's test class adds files and structures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator
from safetensors.torch import load_file, save_file
from scipy.spatial.transform import Rotation
from torch import Tensor

from sigmaff.backbones.hosts import PACKAGES, describe_host
from sigmaff.backbones.hosts.base import Host, HostConfig, Reading
from sigmaff.errors import ConfigError, DataError
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph


def built(kind: type[Host], reading: Reading, dtype: torch.dtype = torch.float64) -> Host:
    """The backbone as a model file brings it back."""
    backbone = kind(reading.config)
    backbone.load_state_dict(reading.tensors)
    return backbone.to(dtype).eval()


def summed_energy(backbone: Host, reading: Reading, graph: AtomicGraph) -> Tensor:
    references = sum(reading.references[z] for z in graph.atomic_numbers.tolist())
    return backbone(graph)[:, -1].double().sum() + references


def derivatives(backbone: Host, reading: Reading, atoms: Atoms, dtype: torch.dtype) -> tuple[float, Tensor, Tensor]:
    """Energy (eV), forces (eV/Å) and the derivative of the energy by strain (eV)."""
    graph = build_graph(atoms, backbone.cutoff, dtype)
    positions = graph.positions.requires_grad_()
    strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    deformation = torch.eye(3, dtype=torch.float64) + 0.5 * (strain + strain.T)
    moved = replace(graph, positions=positions @ deformation, pair_shift=graph.pair_shift @ deformation)
    energy = summed_energy(backbone, reading, moved)
    gradient, virial = torch.autograd.grad(energy, [positions, strain])
    return energy.item(), -gradient, virial


def rattled(atoms: Atoms, amount: float = 0.08, seed: int = 3) -> Atoms:
    atoms = atoms.copy()
    atoms.positions += np.random.default_rng(seed).normal(scale=amount, size=atoms.positions.shape)
    return atoms


class HostCase:
    """Tests of one adapter. A subclass says which, and gives ``source``, ``calculator`` and structures."""

    kind: type[Host]
    energy_tolerance = 2e-4  # eV; hosts that sum in float32 round
    force_tolerance = 1e-4  # eV/Å
    stress_tolerance = 1e-6  # eV/Å³
    periodic = True
    invariant = True  # under rotation, by construction
    dtype = torch.float64  # that the host computes in
    needs_trust = True  # whether reading ``source`` does

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def calculator(cls, source: str) -> Calculator:
        """The host's own, of the same weights."""
        raise NotImplementedError

    def molecule(self) -> Atoms:
        raise NotImplementedError

    def crystal(self) -> Atoms:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def reading(cls, source: str) -> Reading:
        return cls.kind.read(source, trust=cls.needs_trust)

    @pytest.fixture(scope="class")
    @classmethod
    def backbone(cls, reading: Reading) -> Host:
        return built(cls.kind, reading)

    def structures(self) -> list[Atoms]:
        return [self.molecule(), self.crystal()] if self.periodic else [self.molecule()]

    @pytest.mark.filterwarnings("ignore")  # of the host's own calculator
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_energy_forces_and_stress_are_those_of_the_calculator_of_the_host(self, reading, calculator, dtype):
        backbone = built(self.kind, reading, dtype)
        for atoms in self.structures():
            energy, forces, virial = derivatives(backbone, reading, atoms, dtype)
            atoms.calc = calculator
            assert abs(energy - atoms.get_potential_energy()) < self.energy_tolerance
            assert np.abs(forces.numpy() - atoms.get_forces()).max() < self.force_tolerance
            if atoms.pbc.all():
                stress = virial.numpy() / atoms.get_volume()
                assert np.abs(stress - atoms.get_stress(voigt=False)).max() < self.stress_tolerance

    @pytest.mark.filterwarnings("ignore")  # of the host's own calculator
    def test_a_calculator_in_memory_is_described_and_not_changed(self, reading, calculator):
        if self.kind.__name__.lower() not in PACKAGES.values():
            with pytest.raises(ConfigError, match="name the source"):
                self.kind.describe(calculator)
            return
        atoms = self.structures()[-1]
        atoms.calc = calculator
        before = atoms.get_potential_energy()
        found = describe_host(calculator)
        calculator.reset()
        assert atoms.get_potential_energy() == before
        assert found.references == pytest.approx(reading.references)
        graph = build_graph(atoms, found.config.cutoff, torch.float64)
        own, read = (built(self.kind, one)(graph) for one in (found, reading))
        torch.testing.assert_close(own, read, atol=1e-5, rtol=1e-5)

    def test_shape_and_precision(self, backbone, reading):
        graph = build_graph(self.molecule(), backbone.cutoff, torch.float64)
        features = backbone(graph)
        assert features.shape == (graph.n_atoms, backbone.embedding.n_features + 1)
        assert features.dtype == torch.float64
        single = built(self.kind, reading, torch.float32)(graph.to(dtype=torch.float32))
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), features, atol=2e-3, rtol=2e-3)

    def test_batch_is_single(self, backbone):
        graphs = [build_graph(atoms, backbone.cutoff, torch.float64) for atoms in self.structures()]
        graphs.append(build_graph(self.molecule()[[0, 1]], backbone.cutoff, torch.float64))
        apart = torch.cat([backbone(graph) for graph in graphs])
        exactly = 1e-9 if self.dtype == torch.float64 else 1e-4
        torch.testing.assert_close(backbone(batch_graphs(graphs)), apart, atol=exactly, rtol=exactly)

    def test_an_atom_alone_has_features(self, backbone):
        alone = build_graph(self.molecule()[[0]], backbone.cutoff, torch.float64)
        assert backbone(alone).isfinite().all()

    def test_an_element_that_the_host_does_not_know_is_named(self, backbone):
        atoms = self.molecule()
        atoms.symbols[0] = "Og"
        with pytest.raises(DataError, match="does not know Og"):
            backbone(build_graph(atoms, backbone.cutoff, torch.float64))

    def test_rotated_moved_and_permuted(self, backbone):
        for atoms in self.structures():
            features = backbone(build_graph(atoms, backbone.cutoff, torch.float64))
            order = np.random.default_rng(0).permutation(len(atoms))
            other = atoms[order]
            other.positions += [0.3, -1.0, 2.0]
            turn = Rotation.random(random_state=1).as_matrix() if self.invariant else np.eye(3)
            other.set_positions(other.positions @ turn.T)
            other.set_cell(other.cell.array @ turn.T)
            turned = backbone(build_graph(other, backbone.cutoff, torch.float64))
            near = 1e-5 if self.dtype == torch.float64 else 2e-4
            torch.testing.assert_close(turned, features[order], atol=near, rtol=near)

    def test_copied_weights_come_back_to_the_bit_without_the_file_of_the_host(self, reading, backbone, tmp_path):
        if reading.config.origin.weights == "referenced":
            pytest.skip("the weights stay in the file of the host")
        save_file({name: value.contiguous() for name, value in reading.tensors.items()}, tmp_path / "w.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(reading.config.model_dump(), allow_nan=False))
        config = HostConfig(**json.loads((tmp_path / "config.json").read_text()))
        again = replace(reading, config=config, tensors=load_file(tmp_path / "w.safetensors"))
        graph = build_graph(self.molecule(), backbone.cutoff, torch.float64)
        assert torch.equal(built(self.kind, again)(graph), backbone(graph))

    def test_reading_asks_for_trust(self, source, tmp_path: Path):
        if not self.needs_trust:
            assert self.kind.read(source, trust=False).tensors
            source = str(tmp_path / "any.model")
            Path(source).touch()
        with pytest.raises(ConfigError, match=r"can run programs.*--trust"):
            self.kind.read(source, trust=False)

    def test_a_missing_file_is_named(self, tmp_path: Path):
        with pytest.raises(ConfigError, match=r"nothing\.model"):
            self.kind.read(str(tmp_path / "nothing.model"), trust=True)

    def test_derivatives_of_features_are_slopes(self, backbone):
        """Of features along displacements and along a strain, as predictions take them, against central differences."""
        graph = build_graph(self.structures()[-1], backbone.cutoff, torch.float64)
        generator = torch.Generator().manual_seed(0)
        strain = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        moves = torch.randn(2, graph.n_atoms, 3, generator=generator, dtype=torch.float64)
        steps = torch.cat([moves, (graph.positions @ strain)[None]])
        shift_steps = torch.stack([torch.zeros_like(graph.pair_shift)] * 2 + [graph.pair_shift @ strain])
        tangents = backbone.linear_response(graph).push_forward(steps, shift_steps)
        size, share = (1e-4, 2e-4) if self.dtype == torch.float64 else (3e-3, 5e-3)

        def moved(by: float, step: Tensor, shift_step: Tensor) -> Tensor:
            positions, shifts = graph.positions + by * step, graph.pair_shift + by * shift_step
            return backbone(replace(graph, positions=positions, pair_shift=shifts)).detach()

        for step, shift_step, tangent in zip(steps, shift_steps, tangents, strict=True):
            slope = (moved(size, step, shift_step) - moved(-size, step, shift_step)) / (2 * size)
            torch.testing.assert_close(tangent, slope, atol=share * float(slope.abs().max()), rtol=1e-3)

    def test_many_predictions_in_a_row(self, reading):
        """TorchScript writes derivatives of its own after some calls, through which batches of ours must go too."""
        backbone = built(self.kind, reading, torch.float32)
        for seed in range(4):
            graph = build_graph(rattled(self.molecule(), 0.05, seed), backbone.cutoff, torch.float32)
            response = backbone.linear_response(graph)
            steps = torch.ones(4, graph.n_atoms, 3, dtype=torch.float64)
            moved = response.push_forward(steps, steps.new_zeros(4, *graph.pair_shift.shape))
            pulled, _ = response.pull_back(torch.ones(17, graph.n_atoms, moved.shape[-1]))
            assert moved.abs().max() < 1e-3 * pulled.abs().max()  # all atoms moved alike
