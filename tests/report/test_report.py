"""The HTML report: what it shows is what the numbers say, and it stands alone."""

import json
import os
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from ase.build import molecule
from scipy.stats import norm

from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.summary import summarize
from sigmaff.models.force_growth import ForceGrowth
from sigmaff.models.prediction import (
    COVARIANCES,
    FORCE_STD_SOURCES,
    STD_KINDS,
    Calibration,
    Covariance,
    ForceStdSource,
    Provenance,
    StdKind,
)
from sigmaff.report import figures, readme_figure, write_report
from sigmaff.report.tables import meaning_of_std, verdict
from sigmaff.report.viewer import bonds, choose_frames, face_on, viewer_data

VOID = {"meta", "br", "link", "img", "input", "hr"}


def make_evaluation(name: str, formula: str, *, n: int = 40, std: float = 0.04, seed: int = 0) -> Evaluation:
    """Structures of one molecule with Gaussian errors of known σ; the calibrated σ is that one."""
    rng = np.random.default_rng(seed)
    atoms = molecule(formula)
    shape = (n * len(atoms), 3)
    forces_std = std * np.exp(0.4 * rng.normal(size=shape))
    energy_std = 0.2 * std * np.exp(0.4 * rng.normal(size=n))
    forces, energy = rng.normal(size=shape), -4200 + 0.2 * rng.normal(size=n)
    return Evaluation(
        name=name,
        structure_index=np.repeat(np.arange(n), len(atoms)),
        atomic_numbers=np.tile(atoms.numbers, n),
        positions=np.tile(atoms.positions, (n, 1)) + 0.03 * rng.normal(size=shape),
        energy=energy,
        energy_predicted=energy + energy_std * rng.normal(size=n),
        energy_std_raw=energy_std / 2.0,
        forces=forces,
        forces_predicted=forces + forces_std * rng.normal(size=shape),
        forces_std_raw=forces_std / 0.5,
        node_energy_std_raw=None,
        energy_calibration=Calibration(method="quantile", scale=2.0, n_samples=50),
        forces_calibration=Calibration(method="quantile", scale=0.5, n_samples=900),
        provenance=Provenance(method="lnk", kind="epistemic", covariance="full", forces_std="exact"),
        seconds_per_structure=0.0042,
    )


@pytest.fixture(scope="module")
def ethanol() -> Evaluation:
    return make_evaluation("ethanol", "CH3CH2OH")


@pytest.fixture(scope="module")
def ether() -> Evaluation:
    return make_evaluation("dimethyl ether", "CH3OCH3", n=30, std=0.2, seed=1)


@pytest.fixture(scope="module")
def bare(ethanol) -> Evaluation:
    """Neither labels nor σ: no figures, so its report is written fast."""
    return replace(ethanol, energy=None, forces=None, energy_std_raw=None, forces_std_raw=None)


class Page(HTMLParser):
    """The elements and the visible text of a page; fails where tags do not nest."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def text(self, *tags: str) -> str:
        return " ".join(" ".join(self.texts.get(tag, [])) for tag in tags)

    def count(self, tag: str) -> int:
        return Counter(name for name, _ in self.elements)[tag]


def written(folder: Path, evaluation: Evaluation, ood: Evaluation | None = None, **options: Any) -> Page:
    settings = {"title": "A report", "model_info": {}} | options
    write_report(folder / "report.html", evaluation, ood, **settings)
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def full_path(tmp_path_factory, ethanol, ether) -> Path:
    path = tmp_path_factory.mktemp("full") / "report.html"
    write_report(path, ethanol, ether, title="A report", model_info={})
    return path


def pairwise_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    difference = outside[:, None] - inside[None, :]
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


# --- the file


def test_page_stands_alone(full_path):
    page = Page(full_path)
    references = [
        value
        for _, attributes in page.elements
        for key, value in attributes.items()
        if key in ("src", "href", "xlink:href", "action", "data", "poster", "srcset")
    ]
    assert references
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in references)
    assert not {"link", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    style_and_script = page.text("style", "script")
    assert "@import" not in style_and_script
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(", style_and_script)


def test_ids_are_unique_and_references_resolve(full_path):
    page = Page(full_path)
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert max(ids.values()) == 1
    text = full_path.read_text(encoding="utf-8")
    referenced = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert referenced <= set(ids)


def test_an_existing_file_is_kept_unless_forced(tmp_path, bare):
    path = tmp_path / "report.html"
    path.write_text("precious")
    with pytest.raises(SigmaffError, match=r"report\.html exists already; use --force"):
        written(tmp_path, bare)
    assert path.read_text() == "precious"
    assert "A report" in written(tmp_path, bare, force=True).text("h1")


def test_replacing_never_touches_the_old_file_and_leaves_nothing_behind(tmp_path, bare):
    path, second_name = tmp_path / "report.html", tmp_path / "old.html"
    path.write_text("precious")
    os.link(path, second_name)
    written(tmp_path, bare, force=True)
    assert second_name.read_text() == "precious"
    assert {entry.name for entry in tmp_path.iterdir()} == {"report.html", "old.html"}


def test_a_failure_leaves_the_old_file(tmp_path, ethanol):
    path = tmp_path / "report.html"
    path.write_text("precious")
    broken = replace(ethanol, forces_predicted=ethanol.forces_predicted[:-1])
    with pytest.raises(ValueError, match="shape"):
        written(tmp_path, broken, force=True)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_made_and_an_impossible_place_is_named(tmp_path, bare):
    write_report(tmp_path / "missing" / "a.html", bare, title="", model_info={})
    assert (tmp_path / "missing" / "a.html").is_file()
    with pytest.raises(SigmaffError, match="it is a folder"):
        write_report(tmp_path, bare, title="", model_info={}, force=True)


def test_the_same_evaluation_gives_the_same_bytes(tmp_path, full_path, ethanol, ether):
    written(tmp_path, ethanol, ether)
    assert (tmp_path / "report.html").read_bytes() == full_path.read_bytes()


def test_large_sets_give_light_files(tmp_path):
    written(tmp_path, make_evaluation("many", "CH3CH2OH", n=3000), make_evaluation("others", "C6H6", n=1000))
    assert (tmp_path / "report.html").stat().st_size < 1.5e6


def test_matplotlib_is_left_as_it_was(ethanol, ether):
    before = dict(matplotlib.rcParams)
    figures.to_svg(readme_figure(ethanol, ether), "readme")
    assert dict(matplotlib.rcParams) == before


# --- what it says


def test_numbers_are_those_of_the_arrays(full_path, ethanol, ether):
    page = Page(full_path)
    table, sentence = page.text("td"), page.text("p")
    for evaluation in (ethanol, ether):
        for error in (evaluation.energy_error, evaluation.forces_error):
            assert f"{np.abs(error).mean():#.3g}" in table
            assert f"{np.sqrt((error**2).mean()):#.3g}" in table
        z = np.abs(evaluation.forces_error) / (0.5 * evaluation.forces_std_raw)
        assert f"{100 * np.mean(z <= norm.ppf(0.975)):.1f}" in table
    assert f"force error is {np.abs(ethanol.forces_error).mean():#.3g} eV/Å" in sentence
    inside, outside = (np.sqrt((e.forces_std_raw.reshape(e.n_structures, -1) ** 2).mean(1)) for e in (ethanol, ether))
    assert f"σ tells them apart well (AUROC {pairwise_auroc(inside, outside):.3f})" in sentence


def test_verdict_says_what_is_wrong(ethanol, ether):
    def words_on(inside: Evaluation, outside: Evaluation | None = None) -> str:
        other = None if outside is None else summarize(outside)
        return verdict(summarize(inside, outside), "ethanol", other, None if outside is None else "ether")

    fine = words_on(ethanol)
    assert fine.startswith("On 40 structures of ethanol the typical force error is 0.0")
    assert "(as wide as they should be)" in fine
    for factor, words in ((0.2, "(too narrow)"), (5.0, "(too wide)")):
        calibration = replace(ethanol.forces_calibration, scale=factor * 0.5)
        assert words in words_on(replace(ethanol, forces_calibration=calibration))
    assert "apart hardly (AUROC 0.500)" in words_on(ethanol, ethanol)


def test_the_headline_tells_that_error_bars_fail_elsewhere(ethanol, ether):
    """σ of half the size: 68 % intervals hold Φ(½) − Φ(−½) of the errors."""
    narrow = replace(ether, forces_calibration=replace(ether.forces_calibration, scale=0.25))
    said = verdict(summarize(ethanol, narrow), "ethanol", summarize(narrow), "ether")
    inside, outside = said.split("On 30 structures of ether")
    assert re.search(r"of force errors[^(]*\(as wide as they should be\)", inside)
    assert re.search(r"of energy errors[^(]*\(off by no more than chance with 40 structures\)", inside)
    share = float(re.search(r"([\d.]+) % of force errors", outside)[1])
    assert share == pytest.approx(100 * (2 * norm.cdf(0.5) - 1), abs=4)
    assert re.search(r"of force errors[^(]*\(too narrow\)", outside)
    assert re.search(r"of energy errors[^(]*\((as wide|off by no more)", outside)
    assert "σ tells them apart well (AUROC" in outside


def test_text_of_users_is_only_text(tmp_path, ethanol, ether):
    hostile = "</title></script><script>alert('σ & τ')</script><img src=x onerror=alert(2)>"
    page = written(
        tmp_path,
        replace(ethanol, name=hostile),
        replace(ether, name=hostile),
        title=hostile,
        model_info={hostile: {hostile: [hostile, 1]}},
        timings={hostile: 1.0},
    )
    assert page.text("title") == page.text("h1") == hostile
    assert page.count("script") == 2
    assert page.count("img") == 0
    assert json.loads(page.texts["script"][0])["sets"][0]["name"] == hostile


def test_model_info_timings_and_meaning_are_shown(tmp_path, bare):
    info = {
        "backbone": {"name": "schnet", "cutoff": 5.0},
        "elements": (1, 6, 8),
        "resumed": False,
        "note": None,
    }
    page = written(tmp_path, bare, model_info=info, timings={"Training": 95.25, "Fit": 301.0, "Step": 2e-5})
    assert "1, 6, 8" in re.sub(r"\s+", " ", page.text("td"))
    for words in ("schnet", "95.2 s", "5.02 min", "20 µs", "4.2 ms", "epistemic", "raw σ × 0.5 (quantile, 900 errors)"):
        assert words in page.text("td")


def test_stress_is_shown_where_it_has_labels_and_std(tmp_path, ethanol):
    rng = np.random.default_rng(8)
    std = rng.uniform(0.01, 0.03, (ethanol.n_structures, 6))
    stress = rng.normal(size=std.shape)
    crystals = replace(
        ethanol,
        stress=stress,
        stress_predicted=stress + 3.0 * std * rng.normal(size=std.shape),
        stress_std_raw=std,
    )
    raw = written(tmp_path, crystals)
    assert "Calibration of the stress σ" in raw.text("th")
    assert "none: σ is raw, not calibrated" in raw.text("td")
    assert raw.count("figure") == written(tmp_path, ethanol, force=True).count("figure") + 2
    factor = Calibration(method="scalar", scale=3.0, n_samples=240, n_structures=40, scale_error=0.2)
    page = written(tmp_path, replace(crystals, stress_calibration=factor), force=True)
    assert "raw σ × 3 ± 0.2 (scalar, 40 structures)" in page.text("td")
    z = np.abs(crystals.stress_error) / (3.0 * std)
    assert f"{100 * np.mean(z <= norm.ppf(0.975)):.1f}" in page.text("td")
    unlabelled = written(tmp_path, replace(crystals, stress=None), force=True)
    assert "Not shown for stress" in unlabelled.text("p")


# --- what is not there


@pytest.mark.parametrize(
    ("missing", "n_figures", "remark"),
    [
        (("forces",), 6, "no force labels"),
        (("energy",), 6, "no energy labels"),
        (("forces_std_raw",), 6, "no force σ to colour the atoms"),
        (("energy_std_raw",), 6, "Not shown for energies"),
        (("energy_std_raw", "forces_std_raw"), 2, "the model states no error bars"),
        (("energy", "forces"), 2, "there are no labels to compare with"),
        (("energy", "forces", "energy_std_raw", "forces_std_raw"), 0, "Not shown for energies and forces"),
    ],
)
def test_sections_vanish_with_a_remark(tmp_path, ethanol, ether, missing, n_figures, remark):
    nothing: dict[str, Any] = dict.fromkeys(missing)
    page = written(tmp_path, replace(ethanol, **nothing), replace(ether, **nothing))
    assert page.count("figure") == page.count("svg") == n_figures
    assert remark in page.text("p")
    assert page.count("canvas") == (0 if "forces_std_raw" in missing else 2)


def test_without_an_ood_set(tmp_path, ethanol):
    page = written(tmp_path, ethanol)
    assert "No out-of-distribution set was given" in page.text("p")
    assert "AUROC" not in page.text("th", "td", "text")
    assert page.count("canvas") == 1


def test_unlabelled_ood_structures_are_told_apart(tmp_path, ethanol, ether):
    other = replace(ether, energy=None, forces=None)
    page, summary = written(tmp_path, ethanol, other), summarize(ethanol, other)
    for key, words in (
        ("forces_auroc", "AUROC of the force σ, root mean square"),
        ("forces_auroc_geometric_mean", "AUROC of the force σ, geometric mean over atoms"),
        ("forces_auroc_largest_atom", "AUROC of the force σ, largest of an atom"),
    ):
        assert words in page.text("th")
        low, high = summary[f"{key}_ci"]
        assert f"{low:#.3g} to {high:#.3g}" in page.text("span"), key
    assert page.count("figure") == 10


def test_one_structure_of_one_atom(tmp_path):
    atom = make_evaluation("hydrogen", "H", n=1)
    assert written(tmp_path, atom, atom).count("figure") == 10


def test_constant_and_vanishing_std(tmp_path, ethanol):
    n = ethanol.n_structures
    zeros = np.zeros_like(ethanol.forces)
    page = written(tmp_path, replace(ethanol, energy_std_raw=np.full(n, 0.1), forces_std_raw=zeros))
    assert page.count("figure") == 7  # of the force σ only the histogram, all at zero
    assert "Not shown for forces" in page.text("p")


# --- figures


def test_calibration_curves_count_errors_within_intervals(ethanol):
    sample = ethanol.samples["forces"]
    figure = figures.new_figure(partial(figures.draw_calibration, sample=sample))
    ideal, raw, calibrated = figure.axes[0].get_lines()
    for line, scale in ((raw, 1.0), (calibrated, 0.5)):
        z = np.abs(ethanol.forces_error / (scale * ethanol.forces_std_raw))
        expected, observed = line.get_data()
        brute = [np.mean(z <= norm.ppf(0.5 + 0.5 * p)) for p in expected]
        np.testing.assert_allclose(observed, brute)
    np.testing.assert_array_equal(ideal.get_xdata(), ideal.get_ydata())


def test_rms_error_follows_sigma_where_sigma_is_right():
    many = make_evaluation("many", "CH3CH2OH", n=2000)
    sample = many.samples["forces"]
    figure = figures.new_figure(partial(figures.draw_std_versus_error, sample=sample, ood=None))
    binned = next(line for line in figure.axes[0].get_lines() if line.get_label() == "rms error, in distribution")
    std, error = binned.get_data()
    assert std.size == figures.N_BINS
    np.testing.assert_allclose(error, std, rtol=0.08)  # 4,500 samples a bin: 1 % expected, and σ varies in a bin


def test_points_are_thinned_always_alike():
    assert figures.subsample(4999).size == 4999
    chosen = figures.subsample(100_000)
    assert np.unique(chosen).size == figures.MAX_POINTS
    np.testing.assert_array_equal(chosen, figures.subsample(100_000))
    figure = figures.new_figure(partial(figures.draw_force_parity, evaluation=make_evaluation("e", "C6H6", n=300)))
    assert len(figure.axes[0].collections[0].get_offsets()) == figures.MAX_POINTS


def test_energies_of_unlike_structures_are_compared_per_atom(ethanol):
    both = replace(ethanol, structure_index=np.concatenate([np.zeros(8, dtype=np.int64), ethanol.structure_index[8:]]))
    both.structure_index[8] = 1  # the first structure loses an atom to the second
    for evaluation, unit in ((ethanol, "(eV)"), (both, "(eV/atom)")):
        figure = figures.new_figure(partial(figures.draw_energy_parity, evaluation=evaluation))
        assert unit in figure.axes[0].get_xlabel()


def test_svg_is_xml_with_its_own_ids(ethanol):
    figure = figures.new_figure(partial(figures.draw_force_parity, evaluation=ethanol))
    root = ElementTree.fromstring(figures.to_svg(figure, "parity"))
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert ids
    assert all(name.startswith("parity-") for name in ids)


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("kind", StdKind, STD_KINDS),
        ("covariance", Covariance, COVARIANCES),
        ("forces_std", ForceStdSource, FORCE_STD_SOURCES),
    ],
)
def test_every_origin_of_std_is_described(tmp_path, bare, field, values, words):
    assert set(words) == {*get_args(values), None}
    for value, description in words.items():
        evaluation = replace(bare, provenance=Provenance(**{"method": "any", field: value}))
        assert description in written(tmp_path, evaluation, force=True).text("td")


def test_readme_figure(tmp_path, ethanol, ether):
    figure = readme_figure(ethanol, ether)
    parity, calibration, histogram = figure.axes
    assert "force component" in parity.get_xlabel()
    assert "coverage" in calibration.get_xlabel()
    assert "AUROC" in histogram.get_title(loc="left")
    figure.savefig(tmp_path / "readme.png")
    with pytest.raises(DataError, match="force σ"):
        readme_figure(replace(ethanol, forces_std_raw=None), ether)


# --- the viewer


def test_bonds_of_ethanol_are_the_textbook_ones():
    atoms = molecule("CH3CH2OH")
    pairs = bonds(atoms.positions, np.where(atoms.numbers == 1, 0.31, np.where(atoms.numbers == 6, 0.76, 0.66)))
    names = Counter("".join(sorted(atoms.symbols[list(pair)])) for pair in pairs)
    assert names == {"CC": 1, "CO": 1, "CH": 5, "HO": 1}


def test_turning_keeps_distances_and_handedness():
    positions = np.random.default_rng(3).normal(size=(6, 3))
    turned = face_on(positions)
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(turned[:, None] - turned[None], axis=-1), distance)
    volume = [np.linalg.det(p[1:4] - p[0]) for p in (positions, turned)]
    assert volume[0] == pytest.approx(volume[1])
    spread = turned.std(axis=0)
    assert spread[0] >= spread[1] >= spread[2]


def test_viewer_shows_lowest_median_and_highest_std(ethanol, ether):
    data: Any = viewer_data(ethanol, ether)
    rms = np.sqrt((0.25 * ethanol.forces_std_raw.reshape(40, -1) ** 2).mean(axis=1))
    order = np.argsort(rms)
    assert choose_frames(ethanol) == [order[0], order[20], order[-1]]
    frame = data["sets"][0]["frames"][2]
    assert (frame["label"], frame["index"]) == ("highest σ", order[-1])
    atoms = ethanol.structure_index == order[-1]
    sigma = np.sqrt((0.25 * ethanol.forces_std_raw[atoms] ** 2).mean(axis=1))
    error = np.sqrt((ethanol.forces_error[atoms] ** 2).mean(axis=1))
    np.testing.assert_allclose(frame["std"], sigma, rtol=1e-3)
    np.testing.assert_allclose(frame["error"], error, rtol=1e-3)
    assert data["low"] <= min(frame["std"])
    assert data["high"] >= max(frame["std"])
    assert [item["ood"] for item in data["sets"]] == [False, True]
    assert data["surroundings"] is frame["surroundings"] is None  # this model does not say


def test_viewer_colours_atoms_by_their_surroundings(ethanol):
    unusual = np.linspace(0.01, 0.5, ethanol.n_atoms)
    data: Any = viewer_data(replace(ethanol, node_energy_std_raw=unusual), None)
    frame = data["sets"][0]["frames"][0]
    np.testing.assert_allclose(frame["surroundings"], unusual[ethanol.structure_index == frame["index"]], rtol=1e-6)
    shown = [value for one in data["sets"][0]["frames"] for value in one["surroundings"]]
    assert (data["surroundings"]["low"], data["surroundings"]["high"]) == pytest.approx((min(shown), max(shown)))


def test_growth_of_force_std_is_drawn_and_told() -> None:
    """In distribution the σ without growth has the rms error/σ of that with growth."""
    plain, growth = make_evaluation("test", "CH4"), ForceGrowth(isotropy=0.5, exponent=0.8, typical=0.002)
    evaluation = replace(
        plain,
        component_std_raw=0.002
        * np.exp(np.random.default_rng(0).normal(size=plain.n_structures))[plain.structure_index],
        forces_calibration=replace(plain.forces_calibration, growth=growth),
    )
    sample = evaluation.samples["forces"]
    axes = figures.new_figure(partial(figures.draw_growth, sample=sample, ood=sample)).axes[0]
    before, after = axes.get_lines()[:2]
    z = np.sqrt(np.mean(np.square(sample.errors / sample.std)))
    factor = np.sqrt(np.mean(np.square(sample.errors / sample.std_raw))) / z
    for line, std in ((before, factor * sample.std_raw), (after, sample.std)):
        drawn = np.asarray(line.get_xdata())
        assert np.sqrt(np.mean(drawn**2)) == pytest.approx(np.sqrt(np.mean(std**2)), rel=0.01)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.split(", ")[-1] for label in labels[:4]] == ["without growth", "with growth"] * 2
    assert "isotropy 0.5, growth with energy σ: exponent 0.8" in meaning_of_std(evaluation)["Calibration of forces"]
