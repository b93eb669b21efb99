"""Data: read labelled structures, check and split them, and build their graphs."""

from sigmaff.data.check import Finding, check_structures
from sigmaff.data.dataset import GraphDataset
from sigmaff.data.electrons import ElectronicState, common_state, other_state, require_state
from sigmaff.data.elements import require_elements, symbols, unknown_element
from sigmaff.data.files import DataFiles, join_structures, overlap_warnings, read_parts, split_parts
from sigmaff.data.overlap import find_overlap
from sigmaff.data.read import label_structures, read_structures, with_ase_names
from sigmaff.data.source import DataSource
from sigmaff.data.splits import Split, SplitConfig, make_split, split_structures
from sigmaff.data.statistics import DatasetStatistics, ReferenceEnergies, compute_statistics, reference_energies
from sigmaff.data.structures import LabelledStructures
