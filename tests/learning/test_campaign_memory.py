"""Memory of a campaign: later rounds need what the first ones need."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
WATCHED = """
import json, sys
from collections import Counter
from pathlib import Path
from campaign_case import settings
from sigmaff.data import GraphDataset
from sigmaff.learning import learn
from sigmaff.progress import Listener
from storm.here import without_dask

class Watch(Listener):
    current, loaded, largest = "", {}, Counter()

    def stage(self, text):
        self.current = text
        self.loaded.setdefault(text, set(sys.modules))

    def batch(self, dataset, indices):
        self.largest[self.current] = max(self.largest[self.current], len(indices))
        return whole(dataset, indices)

without_dask()
watch, whole = Watch(), GraphDataset.batch
GraphDataset.batch = lambda dataset, indices: watch.batch(dataset, indices)
learn(settings(Path(sys.argv[1]), start={"n_labels": 36}, hold_out_every=2), watch)
late = sorted(set(sys.modules) - watch.loaded["round 1: exploring"])
print(json.dumps({"late": late, "largest": [watch.largest[f"round {number}: exploring"] for number in (1, 2)]}))
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A campaign in a new process. With the second round 20 structures are held out: enough to calibrate σ."""
    words = [sys.executable, "-c", WATCHED, str(tmp_path_factory.mktemp("watched"))]
    done = subprocess.run(words, capture_output=True, text=True, cwd=TESTS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_large_package_is_loaded_after_the_first_model(watched: dict[str, Any]) -> None:
    assert not {"matplotlib", "scipy.stats"} & set(watched["late"])
    assert len(watched["late"]) < 20


def test_a_larger_data_set_is_predicted_in_batches_of_the_same_size(watched: dict[str, Any]) -> None:
    first, second = watched["largest"]
    assert first == second > 0
