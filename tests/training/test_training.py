"""The training loop and its parts, against closed forms, NumPy, and what training is for."""

import math
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import training_case as case
from sigmaff.data import GraphDataset, compute_statistics
from sigmaff.errors import ConfigError, DataError
from sigmaff.models import Potential
from sigmaff.progress import Listener
from sigmaff.training import CosineSchedule, ExponentialSchedule, TrainingConfig
from sigmaff.training.batches import epoch_batches
from sigmaff.training.checkpoint import read_checkpoint
from sigmaff.training.compiling import compile_step
from sigmaff.training.ema import WeightAverage
from sigmaff.training.loop import TrainingDivergedError, train
from sigmaff.training.objective import Batch, LossTerms, Objective, load_batch, mean_norm

DIFFERS = "the compiled loss differs from the loss itself: training continues without, slower"
DEPRECATION_WITHIN_TORCH = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


def changed(**settings: object) -> TrainingConfig:
    return case.CONFIG.model_copy(update=settings)


def test_exponential_schedule() -> None:
    schedule = ExponentialSchedule(warmup_steps=4, decay_steps=100, decay_rate=0.01)
    assert [schedule.factor(t, 0) / 0.01 ** (t / 100) for t in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert schedule.factor(100, 0) == pytest.approx(0.01)


def test_cosine_schedule() -> None:
    schedule = CosineSchedule(warmup_steps=2, final_fraction=0.1)
    assert schedule.factor(0, 100) == pytest.approx(0.5)
    assert schedule.factor(50, 100) == pytest.approx(0.55)
    assert schedule.factor(100, 100) == schedule.factor(101, 100) == pytest.approx(0.1)


def test_weight_average_is_the_recursion() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    average = WeightAverage({"weight": weight}, decay=0.6)
    expected = weight.detach().numpy().copy()
    for step in range(20):
        with torch.no_grad():
            weight.copy_(torch.sin(torch.arange(2.0) + step))
        decay = min(0.6, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach().numpy()
        average.update(step)
    np.testing.assert_allclose(average.values["weight"].numpy(), expected, rtol=1e-14)
    before = weight.detach().clone()
    with average.applied():
        assert torch.equal(weight, average.values["weight"])
    assert torch.equal(weight, before)


def test_norm_has_a_gradient_at_zero() -> None:
    error = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], requires_grad=True)
    loss = mean_norm(error)
    loss.backward()
    assert loss.item() == 2.5
    assert error.grad is not None
    torch.testing.assert_close(error.grad, torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.0, 0.4]]))


@pytest.mark.parametrize("forces_weight", [0.0, 0.7, 1.0])
def test_loss_is_the_formula(forces_weight: float) -> None:
    """Against the public predictions in eV and Å, and the labels."""
    model, data, config = case.potential(), case.train_set(), changed(forces_weight=forces_weight)
    objective = Objective(model, config, len(data))
    loss = objective.total(objective(load_batch(model, data, torch.arange(6), config)))
    graph, _ = data.batch(range(6))
    prediction, labels = model.predict(graph), data.structures.subset(range(6))
    assert labels.energy is not None
    assert labels.forces is not None
    energy = np.abs(prediction.energy.numpy() - labels.energy).mean()
    forces = np.linalg.norm(prediction.forces.numpy() - np.concatenate(labels.forces), axis=1).mean()
    expected = ((1 - forces_weight) * energy + forces_weight * forces) / model.statistics.scale
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_epochs_are_shuffled_into_equal_batches() -> None:
    epochs = []
    for epoch in range(3):
        torch.manual_seed(epoch)  # which must not matter
        batches = epoch_batches(23, 3, seed=5, epoch=epoch)
        assert [len(batch) for batch in batches] == [8, 8, 7]
        epochs.append(torch.cat(batches).tolist())
        assert sorted(epochs[-1]) == list(range(23))
    assert epochs[0] != epochs[1] != epochs[2]
    torch.manual_seed(99)
    assert torch.cat(epoch_batches(23, 3, seed=5, epoch=1)).tolist() == epochs[1]
    assert torch.cat(epoch_batches(23, 3, seed=6, epoch=1)).tolist() != epochs[1]


def test_training_learns_and_keeps_the_best(tmp_path: Path) -> None:
    model, data = case.potential(), case.validation_set()
    spread = np.abs(np.concatenate(data.structures.forces or ())).mean()
    result = case.run(model, changed(max_epochs=60), tmp_path)
    best = result.history[result.best_epoch - 1]
    assert result.stopped_because == "max_epochs"
    assert result.best_validation_loss == min(record.validation_loss or math.inf for record in result.history)
    assert best.forces_mae is not None
    assert best.forces_mae < 0.3 * spread
    graph, labels = data.batch(range(len(data)))
    prediction = model.predict(graph)
    assert labels.energy is not None
    assert labels.forces is not None
    assert best.forces_mae == pytest.approx((prediction.forces - labels.forces).abs().mean().item(), rel=1e-4)
    assert best.energy_mae == pytest.approx((prediction.energy - labels.energy).abs().mean().item(), rel=1e-4)


def test_energies_alone(tmp_path: Path) -> None:
    structures = [replace(case.labelled_structures(20, seed), forces=None) for seed in (1, 2)]
    data, held_out = (GraphDataset(item, case.CUTOFF) for item in structures)
    torch.manual_seed(0)
    model = Potential(case.potential().config, compute_statistics(data))
    with pytest.raises(DataError, match=r"morse-1: .* needs forces; .* set forces_weight to 0"):
        train(model, data, held_out, case.CONFIG, tmp_path, seed=0)
    config = changed(forces_weight=0.0, max_epochs=60, learning_rate=0.02)
    result = train(model, data, held_out, config, tmp_path, seed=0)
    first, best = result.history[0], result.history[result.best_epoch - 1]
    assert best.forces_mae is None
    assert (best.energy_mae or math.inf) < 0.7 * (first.energy_mae or 0.0)


def test_missing_energies(tmp_path: Path) -> None:
    data = GraphDataset(replace(case.labelled_structures(4, seed=3), energy=None), case.CUTOFF)
    with pytest.raises(DataError, match="morse-3: training needs energies"):
        train(case.potential(), case.train_set(), data, case.CONFIG, tmp_path, seed=0)


def test_frozen_backbone(tmp_path: Path) -> None:
    model, start = case.potential(dropout=0.5), case.potential(dropout=0.5)
    case.run(model, changed(freeze_backbone=True), tmp_path)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, start.get_parameter(name)) == name.startswith("backbone."), name
        assert weight.requires_grad


def test_a_head_that_only_gets_worse_stays_as_it_began(tmp_path: Path) -> None:
    """Epoch 0 counts where the backbone is frozen, and only there."""
    model = case.potential()
    case.run(model, changed(max_epochs=20), tmp_path / "first")
    before = case.weights(model).clone()
    result = case.run(model, changed(freeze_backbone=True, learning_rate=0.3), tmp_path / "frozen")
    assert result.best_epoch == 0
    assert result.best_validation_loss < min(record.validation_loss or math.inf for record in result.history)
    assert torch.equal(case.weights(model), before)
    assert case.run(model, changed(learning_rate=0.3), tmp_path / "all").best_epoch > 0


def test_without_dropout_from_an_epoch_on(tmp_path: Path) -> None:
    def losses(share: float, dropout: float = 0.5) -> list[float]:
        config = changed(max_epochs=4, without_dropout=share)
        history = case.run(case.potential(dropout), config, tmp_path / f"{share}-{dropout}").history
        return [record.train_loss for record in history]

    always, later, never, no_dropout = losses(0.0), losses(0.5), losses(1.0), losses(0.0, dropout=0.0)
    assert later[:2] == always[:2]
    assert later[2] < 0.9 * always[2]
    assert never == no_dropout


def test_resume_without_dropout(tmp_path: Path) -> None:
    config = changed(max_epochs=4, without_dropout=0.5)
    unbroken, broken = case.potential(dropout=0.5), case.potential(dropout=0.5)
    case.run(unbroken, config, tmp_path / "unbroken")
    with pytest.raises(ZeroDivisionError):
        case.run(broken, config, tmp_path / "broken", case.Reporter(at_epoch=3))
    case.run(broken, config, tmp_path / "broken")
    assert torch.equal(case.weights(broken), case.weights(unbroken))
    with pytest.raises(ConfigError, match="max_epochs: was 4, now 8"):
        case.run(case.potential(dropout=0.5), changed(max_epochs=8, without_dropout=0.5), tmp_path / "broken")


def test_learning_rates_of_backbone_and_head(tmp_path: Path) -> None:
    """The first step of Adam moves every weight by its learning rate, whatever the gradient."""
    model, start = case.potential(), case.potential()
    config = changed(
        batch_size=100,
        max_epochs=1,
        learning_rate=1e-4,
        head_learning_rate=3e-3,
        ema_decay=0.0,
        schedule=ExponentialSchedule(warmup_steps=0),
    )
    case.run(model, config, tmp_path)
    for part, rate in (("backbone", 1e-4), ("head", 3e-3)):
        new, old = model.get_submodule(part), start.get_submodule(part)
        moved = max((new.get_parameter(n) - p).abs().max().item() for n, p in old.named_parameters())
        assert moved == pytest.approx(rate, rel=1e-2)


@pytest.mark.parametrize("limit", [None, 1e-3])
def test_gradient_clipping(tmp_path: Path, limit: float | None) -> None:
    """After one step Adam's first moment is a tenth of the gradient that it was given."""
    model = case.potential()
    config = changed(batch_size=100, max_epochs=1, gradient_clip=limit, schedule=ExponentialSchedule(warmup_steps=0))
    batch = load_batch(model, case.train_set(), torch.arange(21), config)
    objective = Objective(model, config, 21)
    objective.total(objective(batch)).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()
    case.run(case.potential(), config, tmp_path)
    moments = read_checkpoint(tmp_path / "checkpoint.safetensors")[0]["moments"]
    norm = 10 * torch.cat([value.flatten() for name, value in moments.items() if name.endswith("exp_avg")]).norm()
    assert gradient > 1e-3
    assert norm.item() == pytest.approx(gradient if limit is None else limit, rel=1e-4)


def test_patience(tmp_path: Path) -> None:
    """At a learning rate of nearly zero nothing gets better, beyond rounding, after the first epochs."""
    config = changed(max_epochs=100, patience=4, validate_every=2, learning_rate=1e-30)
    result = case.run(case.potential(), config, tmp_path)
    assert result.stopped_because == "patience"
    assert (result.best_epoch, result.history[-1].epoch) == (2, 6)
    assert [record.epoch for record in result.history if record.validation_loss is not None] == [2, 4, 6]


def test_time_limit_ends_within_an_epoch(tmp_path: Path) -> None:
    result = case.run(case.potential(), changed(time_limit_minutes=1e-9), tmp_path)
    assert result.stopped_because == "time_limit"
    assert [record.step for record in result.history] == [1]
    assert result.history[0].validation_loss == result.best_validation_loss


def test_metrics_table_and_events(tmp_path: Path) -> None:
    result = case.run(case.potential(), changed(tensorboard=True, max_epochs=2), tmp_path)
    result = case.run(case.potential(), changed(tensorboard=True), tmp_path)
    table = np.genfromtxt(tmp_path / "metrics.csv", delimiter=",", names=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name in ("train_loss", "validation_loss", "energy_mae", "forces_mae", "learning_rate", "seconds"):
        expected = [getattr(record, name) for record in result.history]
        assert table[name].tolist() == expected
        assert [event.value for event in events.Scalars(name)] == pytest.approx(expected, rel=1e-6)
        assert [event.step for event in events.Scalars(name)] == [5, 10, 15]


def test_divergence_names_the_frames(tmp_path: Path) -> None:
    structures = case.labelled_structures(6, seed=1)
    assert structures.forces is not None
    huge = (*structures.forces[:4], np.full_like(structures.forces[4], 1e30), structures.forces[5])
    data = GraphDataset(replace(structures, forces=huge), case.CUTOFF)
    model, start = case.potential(), case.potential()
    with pytest.raises(TrainingDivergedError, match=r"epoch 1, step .* the loss is inf.*104.* of morse-1"):
        train(model, data, case.validation_set(), changed(batch_size=3), tmp_path, seed=0)
    assert torch.equal(case.weights(model), case.weights(start))


def test_a_warmup_longer_than_the_training_is_shortened_and_told(tmp_path: Path) -> None:
    told = Telling()
    long, short = (changed(schedule=ExponentialSchedule(warmup_steps=steps), max_epochs=2) for steps in (1000, 1))
    models = case.potential(), case.potential()
    for model, config, name in zip(models, (long, short), "ab", strict=True):
        train(model, case.train_set(), case.validation_set(), config, tmp_path / name, seed=7, listener=told)
    assert told.texts == ["warm-up: 1 steps instead of 1000, as the training has 10"]
    assert torch.equal(*map(case.weights, models))


class Telling(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def tell(self, text: str) -> None:
        self.texts.append(text)

    def warn(self, text: str) -> None:
        self.texts.append(text)


def test_surroundings_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    model = case.potential(dropout=0.1)
    schedule = ExponentialSchedule(warmup_steps=0)
    config = changed(threads=threads + 1, batch_size=100, max_epochs=1, schedule=schedule)
    case.run(model, config, tmp_path)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_num_threads() == threads
    assert not model.training


def test_trains_in_a_thread(tmp_path: Path) -> None:
    """Signals can be handled in the main thread alone; training elsewhere does without."""
    results = []
    thread = threading.Thread(target=lambda: results.append(case.run(case.potential(), case.CONFIG, tmp_path)))
    thread.start()
    thread.join()
    assert results[0].stopped_because == "max_epochs"


def test_fabric_is_imported_for_training_only() -> None:
    check = "import sys, sigmaff.training.objective; sys.exit('lightning_fabric' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@DEPRECATION_WITHIN_TORCH
def test_without_a_compiler_training_goes_on() -> None:
    model, data, config = case.potential(), case.train_set(), changed(compile=True)
    batch = load_batch(model, data, torch.arange(5), config)
    expected = Objective(model, case.CONFIG, 21)(batch)
    objective = Objective(model, config, 21)
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}):
        listener = Telling()
        objective.warn = listener.warn
        terms = objective(batch)
        (text,) = listener.texts
        assert "the loss cannot be compiled" in text
        assert "training continues without" in text
        assert objective(batch) == terms == expected


@pytest.mark.parametrize("factor", [1.0 + 1e-6, 1.01])
def test_a_compiled_loss_must_have_the_gradient_of_the_loss(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def miscompile(objective: Objective) -> None:
        def compiled(batch: Batch) -> LossTerms:
            terms = objective._terms(batch)
            loss = terms.forces_loss
            return terms._replace(forces_loss=factor * loss - (factor - 1.0) * loss.detach())  # the value is right

        objective._compiled = compiled

    monkeypatch.setattr(Objective, "_compile", miscompile)
    model, listener = case.potential(), Telling()
    objective = Objective(model, case.CONFIG, 21)
    objective.warn = listener.warn
    objective.compile_for(load_batch(model, case.train_set(), torch.arange(5), case.CONFIG))
    assert objective.is_compiled == (factor < 1.001)
    assert listener.texts == ([] if objective.is_compiled else [DIFFERS])


def test_long_trainings_are_compiled_after_steps_that_pay_for_it() -> None:
    data = case.train_set()
    n_pairs = sum(len(atoms) * (len(atoms) - 1) // 2 for atoms in data.structures.structures)  # all within the cutoff
    assert data.n_pairs.sum() <= n_pairs
    assert compile_step(case.potential(), data, n_batches=5) == 2000
    large = replace_pairs(data, 10_000)
    assert compile_step(case.potential(), large, n_batches=1) == math.ceil(3_000_000 / (21 * 10_000))
    assert compile_step(case.potential(dropout=0.1), data, n_batches=5) is None


def replace_pairs(data: GraphDataset, n_pairs: int) -> GraphDataset:
    """The same, as if every structure had so many pairs."""
    data.n_pairs = torch.full_like(data.n_pairs, n_pairs)
    return data


@pytest.mark.slow
@DEPRECATION_WITHIN_TORCH
def test_compiled_loss_equals_eager() -> None:
    """Value and gradient, for batches of several sizes, one of which has force errors of exactly zero."""
    model, data = case.potential(), case.train_set()
    eager, compiled = (Objective(model, changed(compile=how), 21) for how in (False, True))
    for n in (5, 5, 3, 4):
        batch = load_batch(model, data, torch.arange(n), case.CONFIG)
        if n == 4:
            batch = _first_structure_apart(batch)
        results = []
        for objective in (eager, compiled):
            model.zero_grad()
            terms = objective(batch)
            objective.total(terms).backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            results.append((torch.stack([term for term in terms if term is not None]), gradient))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def _first_structure_apart(batch: Batch) -> Batch:
    """The atoms of the first structure see nobody: forces of exactly zero, as are their labels now."""
    assert batch.forces is not None
    graph = batch.graph
    kept = graph.structure_index[graph.pair_index[0]] > 0
    graph = replace(graph, pair_index=graph.pair_index[:, kept], pair_shift=graph.pair_shift[kept])
    return batch._replace(graph=graph, forces=batch.forces * (graph.structure_index > 0).unsqueeze(1))
