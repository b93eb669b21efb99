"""Configurations: what is wrong is said of each key, with what it got and the nearest that would do."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_case import fail, succeed, write_config
from sigmaff.config import print_defaults, read_config, with_unnamed
from sigmaff.data import DataSource
from sigmaff.errors import ConfigError
from sigmaff.heads import LNKConfig
from sigmaff.runs.config import DataConfig, RunConfig
from sigmaff.training import ExponentialSchedule


def message(tmp_path: Path, *changes: tuple[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(RunConfig, write_config(tmp_path / "run.yaml", *changes))
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{tmp_path / 'run.yaml'}: ") for line in lines)
    return str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("trainig", "training"),
        ("data.sorce", "source"),
        ("data.split.n_trian", "n_train"),
        ("model.bakbone", "backbone"),
        ("model.backbone.n_hiden", "n_hidden"),
        ("model.head.n_inducin", "n_inducing"),
        ("training.max_epoch", "max_epochs"),
        ("training.schedule.warmup", "warmup_steps"),
        ("head_training.batchsize", "batch_size"),
    ],
)
def test_a_misspelled_key_gets_the_nearest_one(tmp_path: Path, wrong: str, nearest: str) -> None:
    assert f"{wrong}: unknown key; nearest: {nearest};" in message(tmp_path, (wrong, 1))


def test_a_misspelled_key_of_a_data_source(tmp_path: Path) -> None:
    text = message(tmp_path, ("data.source", {"path": "a.extxyz", "energy_kee": "E"}))
    assert "data.source.energy_kee: unknown key; nearest: energy_key" in text


def test_keys_of_one_head_are_not_offered_to_another(tmp_path: Path) -> None:
    text = message(tmp_path, ("model.head", {"name": "deterministic", "n_inducing": 3}))
    assert "model.head.n_inducing: unknown key; nearest: name; known: name" in text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("training.max_epochs", "many", "training.max_epochs: got 'many'; Input should be a valid integer"),
        ("training.max_epochs", 0, "training.max_epochs: got 0; Input should be greater than or equal to 1"),
        ("training.max_epochs", 1.5, "training.max_epochs: got 1.5; Input should be a valid integer"),
        ("training.ema_decay", 1.0, "training.ema_decay: got 1.0; Input should be less than 1"),
        ("training", 3, "training: got 3; Input should be a valid dictionary"),
        ("training", None, "training: got None; Input should be a valid dictionary"),
        ("data.source", 5, "data.source: got 5; Input should be a valid dictionary"),
        ("data.source", [], "data.source: got []; Tuple should have at least 1 item"),
        ("data.source", ["a", {"path": "b", "energy_kee": "E"}], "data.source.energy_kee: unknown key; nearest"),
        ("data.test", {"path": "b", "labls": ["energy"]}, "data.test.labls: unknown key; nearest: labels"),
        ("data.source", {"path": "a", "labels": ["energy", "force"]}, "data.source.labels.1: got 'force'; expected"),
        (
            "data.source",
            {"path": "a", "energy_unit": "kcal"},
            "data.source.energy_unit: got 'kcal'; unknown energy unit",
        ),
        ("seed", -1, "seed: got -1"),
    ],
)
def test_a_wrong_value_is_shown(tmp_path: Path, key: str, value: Any, words: str) -> None:
    assert words in message(tmp_path, (key, value))


@pytest.mark.parametrize(
    ("key", "value", "options", "nearest"),
    [
        ("data.split.kind", "randm", "'auto' or 'random' or 'blocked' or 'official'", "random"),
        ("model.head.kernel", "rbf-linear", "'rbf' or 'linear' or 'rbf+linear' or 'matern52'", "rbf+linear"),
        ("calibration", "quantil", "'quantile'", "quantile"),
        ("model.backbone.name", "schnett", "'schnet'", "schnet"),
        ("model.head", {"name": "lnkk"}, "'deterministic' or 'evidential' or ", "lnk"),
        ("training.schedule", {"name": "cosin"}, "'exponential' or 'cosine'", "cosine"),
    ],
)
def test_a_wrong_choice_gets_the_nearest_one(tmp_path: Path, key: str, value: Any, options: str, nearest: str) -> None:
    text = message(tmp_path, (key, value))
    given = value["name"] if isinstance(value, dict) else value
    name = f"{key}.name" if isinstance(value, dict) else key
    assert f"{name}: got {given!r}; expected " in text
    assert options in text
    assert text.endswith(f"nearest: {nearest}")


def test_a_section_that_does_not_say_what_it_is(tmp_path: Path) -> None:
    text = message(tmp_path, ("model.head", {"n_inducing": 3}))
    assert "model.head.name: missing; expected 'deterministic' or 'evidential' or " in text


@pytest.mark.parametrize("written", [{"warmup_steps": 0}, {"name": "exponential", "warmup_steps": 0}])
def test_a_schedule_without_a_name_is_exponential(tmp_path: Path, written: dict[str, Any]) -> None:
    config = read_config(RunConfig, write_config(tmp_path / "run.yaml", ("training.schedule", written)))
    assert config.training.schedule == ExponentialSchedule(warmup_steps=0)


def test_all_errors_are_listed(tmp_path: Path) -> None:
    text = message(tmp_path, ("trainig", 1), ("seed", "x"), ("data.split.n_trian", 3), ("model.head.kernel", "cubic"))
    assert [line.split(": ")[1] for line in text.splitlines()] == [
        "data.split.n_trian",
        "model.head.kernel",
        "seed",
        "trainig",
    ]


def test_reference_energies(tmp_path: Path) -> None:
    text = message(tmp_path, ("data.reference_energies", "least_square"))
    assert "data.reference_energies: got 'least_square'; expected 'least_squares' or 'isolated_atoms'" in text
    assert text.splitlines()[0].endswith("nearest: least_squares")
    wrong = message(tmp_path, ("data.reference_energies", {"H": "x"}))
    assert "data.reference_energies.H: got 'x'; Input should be a valid number" in wrong
    path = write_config(tmp_path / "run.yaml", ("data.reference_energies", {"H": -13.6, "O": -2042}))
    assert read_config(RunConfig, path).data.reference_energies == {"H": -13.6, "O": -2042.0}


LAUGHS = b"".join(b"a%d: &a%d [%s]\n" % (k, k, b", ".join([b"*a%d" % (k - 1) if k else b"1"] * 9)) for k in range(9))
"""A text of 400 bytes that stands for 9⁹ values."""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "a configuration is a mapping of sections"),
        (b"# only a remark\n", "a configuration is a mapping of sections"),
        (b"- a\n- b\n", "got ['a', 'b']; a configuration is a mapping"),
        (b"data: [1, 2\n", "not valid YAML"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "cannot be read"),
        (b"a: \x00", "not valid YAML"),
        (b"!!python/object/apply:os.system [echo hostile]", "not valid YAML"),
        (b"seed: 1\nseed: 2\n", "duplicate key 'seed'"),
        (b"seed: 1\n", "data: missing, and has no default"),
        (b"data: {}\n", "data.source: missing, and has no default"),
        (b"data: {source: {format: extxyz}}\n", "data.source.path: missing, and has no default"),
        (b"[" * 2000, "not valid YAML"),
        (b"seed: &a [*a]\n", "more than 100000 values"),
        (
            b"".join(b"a%d: &a%d [%s]\n" % (k, k, b",".join([b"*a%d" % (k - 1) if k else b"1"] * 9)) for k in range(9)),
            "more than",
        ),
        (b"seed: !!int abc\n", "not valid YAML"),
        (b"seed: " + b"9" * 5000, "not valid YAML"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_bytes(content)
    text = fail("train", path)
    assert text.startswith(f"{path}: ")
    assert words in text
    assert list(tmp_path.iterdir()) == ([] if content is None else [path])


def test_no_file_at_all() -> None:
    assert "--print-defaults" in fail("train")


def test_variables_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config(tmp_path / "run.yaml", ("data.source", "${SIGMAFF_FOLDER}/a$$b.extxyz"))
    monkeypatch.setenv("SIGMAFF_FOLDER", "/somewhere")
    assert read_config(RunConfig, path).data.source.path == Path("/somewhere/a$b.extxyz")
    monkeypatch.delenv("SIGMAFF_FOLDER")
    with pytest.raises(ConfigError, match="the environment variable SIGMAFF_FOLDER is not set"):
        read_config(RunConfig, path)
    with pytest.raises(ConfigError, match=r"write \$\$ for a dollar sign"):
        read_config(RunConfig, write_config(tmp_path / "run.yaml", ("data.source", "a$.extxyz")))


# --- overrides


def test_overrides(tmp_path: Path) -> None:
    path = write_config(tmp_path / "run.yaml")
    overrides = ["training.max_epochs=7", "data.split={n_train: 3, n_validation: 2}", "training.patience=null"]
    config = read_config(RunConfig, path, overrides, {"output": Path("2024"), "seed": 3})
    assert config.training.max_epochs == 7
    assert config.data.split.n_train == 3
    assert config.training.patience is None
    assert config.training.batch_size == 6  # of the file
    assert config.output == Path("2024")
    assert config.seed == 3


@pytest.mark.parametrize("name", ["2024", "yes", "a: b", "run #1", "$HOME", "1e3", "[x]"])
def test_an_output_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    assert read_config(RunConfig, write_config(tmp_path / "run.yaml"), [], {"output": Path(name)}).output == Path(name)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.max_epochs", "'training.max_epochs' is not of the form section.key=value"),
        ("training.max_epoch=3", "training.max_epoch: unknown key; nearest: max_epochs"),
        ("training.max_epochs=[3", "training.max_epochs=[3: not valid YAML"),
        ("training.max_epochs=x", "training.max_epochs: got 'x'"),
        ("data.source.format=extxyz", "data.source.format: source is a value"),
        ("output=${NOT_THERE_AT_ALL}", "the environment variable NOT_THERE_AT_ALL is not set"),
        ("=3", "unknown key"),
    ],
)
def test_wrong_overrides_are_named(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(RunConfig, write_config(tmp_path / "run.yaml"), [override])
    assert words in str(caught.value)


def test_an_override_may_begin_a_section(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("data: {source: a.extxyz}\ntraining:\n")
    config = read_config(
        RunConfig,
        tmp_path / "run.yaml",
        ["training.batch_size=3", "head_training.batch_size=4", "model.head={name: lnk, fit: variational}"],
    )
    assert config.training.batch_size == 3
    assert config.head_training is not None
    assert config.head_training.batch_size == 4


def test_contradictions_are_said_at_once(tmp_path: Path) -> None:
    assert "mean 'constant' needs fit 'variational'" in message(tmp_path, ("model.head.mean", "constant"))


# --- defaults


def test_printed_defaults_are_a_configuration_of_the_defaults(tmp_path: Path) -> None:
    printed = succeed("train", "--print-defaults")
    assert printed == print_defaults(RunConfig)
    (tmp_path / "run.yaml").write_text(printed)
    config = read_config(RunConfig, tmp_path / "run.yaml")
    assert config == RunConfig(data=DataConfig(source=DataSource(path=Path("data.extxyz"))))


def keys(content: Any, prefix: str = "") -> set[str]:
    if not isinstance(content, dict):
        return {prefix}
    return {key for name, value in content.items() for key in keys(value, f"{prefix}.{name}")}


def test_printed_defaults_leave_no_key_out() -> None:
    """But for those of a data source, which is a path, and of a second training, which is null."""
    config = RunConfig(data=DataConfig(source=DataSource(path=Path("data.extxyz"))))
    content = config.model_dump(mode="json")
    content |= {"test_forces_std": config.test_forces_std}  # printed, and not written where it is the default
    content["data"] |= {"source": "data.extxyz", "validation": None, "test": None}
    content["model"]["head"] = dict(config.model.head)  # printed, and not all written to files
    training = config.training  # with what has no effect on this head, and loggers that nobody asks for
    content["training"] = dict(training) | {"schedule": training.schedule.model_dump()}
    assert keys(yaml.safe_load(print_defaults(RunConfig))) == keys(content)


def test_every_printed_key_is_explained() -> None:
    lines = print_defaults(RunConfig).splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if not line.lstrip().startswith("#"):
            assert before.lstrip().startswith("# "), line


def test_a_model_without_a_head_has_sigma() -> None:
    """Saying what the backbone is does not take the σ away."""
    data = {"source": "data.extxyz"}
    config = RunConfig.model_validate({"data": data, "model": {"backbone": {"name": "schnet", "cutoff": 5.0}}})
    assert config.model.head == RunConfig.model_validate({"data": data}).model.head == LNKConfig()


FORMER = {"model.head.variance_labels": "energy+forces", "model.head.distance_aware": False, "no.such.key": 1}


class TestFormerDefaults:
    """A run that began with other defaults keeps them, unless somebody names another value."""

    def test_take_the_place_of_what_nobody_names(self, tmp_path: Path) -> None:
        config = read_config(RunConfig, write_config(tmp_path / "run.yaml", ("model.head", {"name": "lnk"})))
        kept = with_unnamed(config, FORMER).model.head
        assert isinstance(kept, LNKConfig)
        assert (kept.variance_labels, kept.distance_aware) == ("energy+forces", False)

    def test_give_way_to_what_is_named(self, tmp_path: Path) -> None:
        head = {"name": "lnk", "distance_aware": True}
        config = read_config(RunConfig, write_config(tmp_path / "run.yaml", ("model.head", head)))
        kept = with_unnamed(config, FORMER).model.head
        assert isinstance(kept, LNKConfig)
        assert (kept.variance_labels, kept.distance_aware) == ("energy+forces", True)

    def test_are_no_matter_of_a_head_that_lacks_the_keys(self, tmp_path: Path) -> None:
        head = {"name": "deterministic"}
        config = read_config(RunConfig, write_config(tmp_path / "run.yaml", ("model.head", head)))
        assert with_unnamed(config, FORMER) == config


def test_dates_are_text(tmp_path):
    (tmp_path / "run.yaml").write_text("data: {source: data.extxyz}\noutput: 2024-02-30\n")
    assert read_config(RunConfig, tmp_path / "run.yaml").output == Path("2024-02-30")
