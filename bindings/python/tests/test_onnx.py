"""Models exported as ONNX: ONNX Runtime computes the probabilities of the `Ranker`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from conftest import JOB, TRAIN_ROWS, Films, command, ratings, refused
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

import rankine

GUIDE = Path(__file__).resolve().parents[3] / "docs/guide/onnx.md"
ROWS = 300
LAYOUTS = ("padded", "offsets")
Ids = npt.NDArray[np.int64]
# The ids of each column: a matrix, or offsets and ids.
Columns = dict[str, Ids | tuple[Ids, Ids]]

FIXED = "rows = [40, 300, 20, 12]\nhotness = [1, 3, 1, 2]"
MEANS = 'rows = [40, 300, 20, 12]\nhotness = [1, 3, 1, 2]\npooling = "mean"'
RAGGED = "rows = [40, 300, 20]\nhotness = [1, 9, 4]\nragged = true"
RAGGED_MEANS = 'rows = [40, 300, 20]\nhotness = [1, 9, 4]\nragged = true\npooling = "mean"'
SKIP: dict[str, Any] = {"guard": {"ids_out_of_range": "skip"}}

# Each kind of model with a shape of data, and settings of the job.
MODELS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "dlrm": ({"kind": "dlrm", "bottom_mlp": [8, 4]}, FIXED, {}),
    "dlrm, means of ragged bags": ({"kind": "dlrm", "bottom_mlp": [8, 4]}, RAGGED_MEANS, {}),
    "dcnv2": ({"kind": "dcnv2", "bottom_mlp": [8, 4], "cross_layers": 2}, RAGGED, SKIP),
    "dcnv2 of low rank": (
        {"kind": "dcnv2", "bottom_mlp": [8, 4], "cross_layers": 3, "cross_rank": 2},
        RAGGED_MEANS,
        {**SKIP, "embedding": {"dtype": "bf16"}},
    ),
    "deepfm": ({"kind": "deepfm", "bottom_mlp": [8, 4]}, MEANS, {"embedding": {"dtype": "fp16"}}),
    "deepfm, ragged bags": ({"kind": "deepfm", "bottom_mlp": [8, 4]}, RAGGED_MEANS, SKIP),
    "wide-deep": ({"kind": "wide-deep"}, MEANS, SKIP),
    "tables of three types": (
        {"kind": "dlrm", "bottom_mlp": [8, 4]},
        FIXED,
        {"table": [{"columns": ["C1"], "dtype": "fp16"}, {"columns": ["C2"], "dtype": "bf16"}], **SKIP},
    ),
}


def trained(place: Path, model: dict[str, Any], shape: str, **settings: Any) -> Path:
    """Trains a model of generated data."""
    (place / "shape.toml").write_text(f'name = "small"\ndense = 4\n{shape}\n')
    generate = {"shape": str(place / "shape.toml"), "samples": 2000, "eval_samples": 100}
    job = {**JOB, "model": {"embedding_dim": 4, "top_mlp": [16], **model}, **settings}
    rankine.train(job, place / "run", data={"dir": place / "data", "generate": generate})
    return place / "run"


class Exported:
    """An exported model in ONNX Runtime."""

    def __init__(self, run: Path, *options: str) -> None:
        folder = run.parent / ("onnx-" + "-".join((run.name, *options)))
        command("export", run, "--format", "onnx", "--out", folder, *options)
        assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "weights.bin"]
        path = folder / "model.onnx"
        onnx.checker.check_model(str(path), full_check=True)
        self.model = onnx.load(path, load_external_data=False)
        self.size = (folder / "weights.bin").stat().st_size
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def inputs(self) -> dict[str, list[int | str]]:
        return {value.name: value.shape for value in self.session.get_inputs()}

    def run(self, dense: npt.NDArray[Any], columns: Columns) -> npt.NDArray[np.float32]:
        """Returns the probabilities, in the shape of the ranker's."""
        feed: dict[str, npt.NDArray[Any]] = {"dense": dense} if dense.shape[1] else {}
        for name, ids in columns.items():
            match ids:
                case (offsets, flat) if f"{name}.offsets" in self.inputs():
                    feed |= {name: flat, f"{name}.offsets": offsets}
                case (offsets, flat):
                    feed |= {name: padded(offsets, flat), f"{name}.count": np.diff(offsets)}
                case matrix:
                    feed[name] = matrix
        logits, probabilities = self.session.run(["logit", "probability"], feed)
        assert logits.shape == probabilities.shape and logits.dtype == np.float32
        np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits.astype(np.float64))), rtol=1e-6)
        result: npt.NDArray[np.float32] = probabilities
        return result[:, 0] if result.shape[1] == 1 else result


def padded(offsets: Ids, ids: Ids) -> Ids:
    """Puts the ids of each row into a row of a matrix. What follows them must not matter."""
    counts = np.diff(offsets)
    matrix = np.resize(np.array([-7, 10**12, 0, 3]), (len(counts), int(counts.max(initial=0)) + 2))
    matrix[np.arange(matrix.shape[1]) < counts[:, None]] = ids
    return matrix


def random_rows(schema: Mapping[str, Any], rows: int, seed: int, wild: bool) -> tuple[npt.NDArray[np.float32], Columns]:
    """Returns random mapped features; with `wild`, some ids are not rows of their tables."""
    draw = np.random.default_rng(seed)
    columns: Columns = {}
    for column in schema["categorical"]:
        if column["vocabulary"]["kind"] == "buckets":
            continue
        kind, most = next(iter(column["hotness"].items()))
        ragged = kind == "ragged"
        counts = draw.integers(0, most["max"] + 1, rows) if ragged else np.full(rows, most)
        ids = draw.integers(0, column["rows"], int(counts.sum()))
        if wild:
            outside = draw.random(len(ids)) < 0.2
            ids = np.where(outside, ids + column["rows"] * draw.integers(1, 10**9, len(ids)), ids)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        columns[column["name"]] = (offsets, ids) if ragged else ids.reshape(rows, most)
    return draw.normal(0, 2, (rows, len(schema["dense"]))).astype(np.float32), columns


def assert_equal(run: Path, exported: Exported, wild: bool) -> None:
    """Compares ONNX Runtime with the ranker: on many random rows, one and none."""
    ranker = rankine.Ranker.load(run)
    for rows in (ROWS, 1, 0):
        dense, columns = random_rows(ranker.schema, rows, rows, wild)
        expected = ranker.score_mapped(dense, columns)
        np.testing.assert_allclose(exported.run(dense, columns), expected, rtol=1e-5)
        assert rows < ROWS or np.ptp(expected) > 0.05
        bags = [ids for ids in columns.values() if isinstance(ids, tuple)]
        assert rows < ROWS or not bags or any((np.diff(offsets) == 0).any() for offsets, _ in bags)


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_has_the_probabilities_of_the_ranker(tmp_path: Path, name: str) -> None:
    model, shape, settings = MODELS[name]
    run = trained(tmp_path, model, shape, **settings)
    for layout in LAYOUTS:
        assert_equal(run, Exported(run, "--bags", layout), wild="guard" in settings)


def test_corrections_for_downsampled_negatives_are_part_of_the_graph(films: Films, tmp_path: Path) -> None:
    schema = {
        "label": [{"column": "rating", "at_least": 4, "missing": "mask"}, {"column": "bought"}],
        "dense": [{"column": "age"}],
        "categorical": [{"column": "film"}, {"column": "last"}],
    }
    log, data = films.run.parent / "train.csv", tmp_path / "data"
    rankine.convert("csv", log, data, schema=schema, negatives_kept="bought=0.5")
    rankine.train(JOB, tmp_path / "run", data={"dir": data})
    exported = Exported(tmp_path / "run")
    assert_equal(tmp_path / "run", exported, wild=False)
    dense, columns = random_rows(rankine.Ranker.load(tmp_path / "run").schema, ROWS, 1, wild=False)
    corrected = exported.run(dense, columns).astype(np.float64)
    own = Exported(tmp_path / "run", "--no-correction").run(dense, columns).astype(np.float64)
    odds = (corrected / (1 - corrected)) / (own / (1 - own))
    # Half of the negatives were left out for one label, and none for the other.
    np.testing.assert_allclose(odds, np.broadcast_to([1.0, 0.5], odds.shape), rtol=1e-5)


def test_weights_begin_at_pages_and_have_the_names_of_the_tensors(tmp_path: Path) -> None:
    model, shape, settings = MODELS["tables of three types"]
    exported = Exported(trained(tmp_path, model, shape, **settings))
    end = 0
    types = {}
    for tensor in exported.model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        assert place["location"] == "weights.bin"
        offset, length = int(place["offset"]), int(place["length"])
        assert offset % 4096 == 0 and end <= offset < end + 4096
        end = offset + length
        types[tensor.name] = onnx.TensorProto.DataType.Name(tensor.data_type)
    assert end == exported.size
    assert types["top.1.bias"] == types["embedding.C3"] == "FLOAT"
    assert (types["embedding.C1"], types["embedding.C2"]) == ("FLOAT16", "BFLOAT16")
    assert [(opset.domain, opset.version) for opset in exported.model.opset_import] == [("", 18)]


def test_inputs_are_the_documented_ones(tmp_path: Path) -> None:
    run = trained(tmp_path, *MODELS["deepfm, ragged bags"][:2])
    assert Exported(run).inputs() == {
        "dense": ["N", 4],
        "C1": ["N", "C1.width"],
        "C1.count": ["N"],
        "C2": ["N", "C2.width"],
        "C2.count": ["N"],
        "C3": ["N", "C3.width"],
        "C3.count": ["N"],
    }
    flat = Exported(run, "--bags", "offsets").inputs()
    assert (flat["C1"], flat["C1.offsets"]) == (["C1.ids"], ["N+1"])


def film_run(films: Films, name: str, **settings: Any) -> Path:
    """Trains a model of two heads, two of whose columns share a table."""
    run = films.run.parent / name
    shared = {"columns": ["film", "last"], **settings.pop("shared", {})}
    rankine.train(JOB, run, data={"dir": films.data}, table=[shared, *settings.pop("table", [])], **settings)
    return run


def test_heads_shared_tables_and_buckets(films: Films) -> None:
    features = [{"column": "age", "buckets": 16}, {"column": "price", "buckets": "log"}]
    run = film_run(films, "buckets", feature=features)
    exported = Exported(run)
    metadata = {entry.key: json.loads(entry.value) for entry in exported.model.metadata_props}
    assert metadata == {"rankine.heads": ["rating", "bought"], "rankine.dense": ["age", "price"], "rankine.steps": 25}
    assert set(exported.inputs()) == {"dense", "film", "last", "hour", "tags", "tags.count"}
    assert_equal(run, exported, wild=False)
    # The rows of the dataset, whose numbers are on boundaries, too.
    (batch,) = rankine.Dataset(films.data).batches(batch_size=10_000)
    expected = rankine.Ranker.load(run).score_mapped(batch.dense, batch.categorical)
    np.testing.assert_allclose(exported.run(batch.dense, mapped(batch)), expected, rtol=1e-5)
    # The same rows with numbers as in the file. Some are missing.
    raw = ratings(TRAIN_ROWS, 1)
    numbers = np.array([raw["age"], raw["price"]], dtype=np.float64).T[-len(batch) :]
    assert np.isnan(numbers).any()
    transforms = Exported(run, "--numbers", "raw")
    np.testing.assert_allclose(transforms.run(numbers, mapped(batch)), expected, rtol=1e-5)


def test_numbers_in_half_precision_have_their_buckets(films: Films) -> None:
    place = films.run.parent
    schema = {
        "label": [{"column": "bought"}],
        "dense": [{"column": "age"}, {"column": "price", "transform": "mlperf-log"}],
        "categorical": [{"column": "hour", "vocabulary": {"kind": "identity", "rows": 24}}],
    }
    data = place / "half"
    rankine.convert("csv", place / "train.csv", data, schema=schema, split="last:0.2", dense_dtype="f16")
    features = [{"column": "*", "buckets": 40}]
    rankine.train(JOB, place / "half-run", data={"dir": data}, feature=features)
    exported = Exported(place / "half-run", "--numbers", "raw")
    (batch,) = rankine.Dataset(data).batches(batch_size=10_000)
    expected = rankine.Ranker.load(place / "half-run").score_mapped(batch.dense, batch.categorical)
    raw = ratings(TRAIN_ROWS, 1)
    numbers = np.array([raw["age"], raw["price"]], dtype=np.float64).T[-len(batch) :]
    np.testing.assert_allclose(exported.run(numbers, mapped(batch)), expected, rtol=1e-5)
    # Numbers of a program have more precision than stored ones.
    assert_equal(place / "half-run", Exported(place / "half-run"), wild=False)


def mapped(batch: rankine.Batch) -> Columns:
    """The ids of a batch: a matrix unless the bags of a column differ."""
    columns: Columns = {}
    for name, (offsets, ids) in batch.categorical.items():
        flat = ids.astype(np.int64)
        columns[name] = (offsets.astype(np.int64), flat) if name == "tags" else flat.reshape(len(batch), -1)
    return columns


def test_ids_out_of_range_are_replaced(films: Films) -> None:
    policy = {"ids_out_of_range": "oov"}
    others = [{"columns": [name], "oov_row": 7, **policy} for name in ("hour", "tags")]
    run = film_run(films, "oov", shared=policy, table=others)
    for layout in LAYOUTS:
        assert_equal(run, Exported(run, "--bags", layout), wild=True)


def test_ids_out_of_range_fail(films: Films) -> None:
    exported = Exported(films.run)
    schema = rankine.Ranker.load(films.run).schema
    dense, columns = random_rows(schema, 5, 1, wild=False)
    exported.run(dense, columns)
    for wrong in (-1, 24, 10**12):
        hours = np.array(columns["hour"])
        hours[3] = wrong
        with pytest.raises(Exception, match="indices element out of data bounds"):
            exported.run(dense, {**columns, "hour": hours})


def test_checkpoints_and_exports_are_exported(films: Films) -> None:
    run = film_run(films, "saved", checkpoint={"every_steps": 10})
    saved = films.run.parent / "saved-export"
    command("export", run, "--format", "safetensors", "--out", saved)
    dense, columns = random_rows(rankine.Ranker.load(run).schema, ROWS, 3, wild=False)
    for source in (run / "model", run / "checkpoints" / "step-10", saved):
        expected = rankine.Ranker.load(source).score_mapped(dense, columns)
        np.testing.assert_allclose(Exported(source).run(dense, columns), expected, rtol=1e-5)


def test_a_model_of_triton_has_the_inputs_of_its_onnx_model(films: Films) -> None:
    """As Triton's own messages read its configuration."""
    folder = films.run.parent / "repository" / "films"
    command("export", films.run, "--format", "triton", "--out", folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["1/model.onnx", "1/weights.bin", "config.pbtxt", "mapping.json", "vocabulary/film.tsv"]
    config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert (config.name, config.backend) == ("films", "onnxruntime")
    assert config.max_batch_size > 1 and config.HasField("dynamic_batching")
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    types = {"tensor(float)": "TYPE_FP32", "tensor(double)": "TYPE_FP64", "tensor(int64)": "TYPE_INT64"}

    def shape(dims: list[int | str]) -> list[int]:
        return [dim if isinstance(dim, int) else -1 for dim in dims]

    for declared, found in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [value.name for value in declared] == [value.name for value in found]
        for ours, theirs in zip(declared, found):
            assert model_config_pb2.DataType.Name(ours.data_type) == types[theirs.type]
            dims = ours.reshape.shape if ours.HasField("reshape") else ours.dims
            assert [-1, *dims] == shape(theirs.shape)
            assert len(ours.dims) > 0
    for warm_up in config.model_warmup:
        feed = {}
        for name, value in warm_up.inputs.items():
            [declaration] = [input for input in config.input if input.name == name]
            assert value.data_type == declaration.data_type and value.zero_data
            dims = [] if declaration.HasField("reshape") else value.dims
            [theirs] = [input for input in session.get_inputs() if input.name == name]
            dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64}[theirs.type]
            feed[name] = np.zeros([warm_up.batch_size, *dims], dtype)
        assert session.run(["probability"], feed)[0].shape == (warm_up.batch_size, 2)
    mapping = json.loads((folder / "mapping.json").read_text())
    assert mapping["schema"] == rankine.Ranker.load(films.run).schema
    vocabulary = (films.run / "model" / "vocabulary" / "film.tsv").read_bytes()
    assert (folder / "vocabulary" / "film.tsv").read_bytes() == vocabulary


def test_options_of_other_formats_are_refused(films: Films) -> None:
    for format, option, value in (
        ("triton", "--bags", "offsets"),
        ("safetensors", "--bags", "padded"),
        ("safetensors", "--numbers", "raw"),
    ):
        refusal = refused("export", films.run, "--format", format, option, value, "--out", films.run.parent / "refused")
        assert refusal.startswith(f"{option} needs --format onnx"), refusal


def test_the_guide(films: Films, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands and the code of the guide run."""
    monkeypatch.chdir(tmp_path)
    schema = {
        "label": [{"column": "bought"}],
        "dense": [{"column": "age"}, {"column": "price"}],
        "categorical": [
            {"column": "film", "vocabulary": {"kind": "exact"}},
            {"column": "tags", "separator": "|", "vocabulary": {"kind": "hash", "rows": 50}},
        ],
    }
    rankine.convert("csv", films.run.parent / "train.csv", "data", schema=schema)
    rankine.train(JOB, "runs/films", data={"dir": "data"})
    namespace: dict[str, Any] = {}
    pieces = re.findall(r"^```(sh|python)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert [language for language, _ in pieces] == ["sh", "python", "sh"]
    for language, code in pieces:
        if language == "sh":
            command(*code.split()[1:])
        else:
            exec(compile(code, GUIDE.name, "exec"), namespace)
    assert namespace["probabilities"].shape == (2, 1)
    tags = (np.array([0, 3, 4]), np.array([3, 1, 4, 5]))
    columns: Columns = {"film": np.array([7, 12]), "tags": tags}
    expected = rankine.Ranker.load("runs/films").score_mapped(namespace["inputs"]["dense"], columns)
    np.testing.assert_allclose(namespace["probabilities"][:, 0], expected, rtol=1e-5)
