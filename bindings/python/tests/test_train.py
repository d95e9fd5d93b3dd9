"""Conversion, training and evaluation do what the command does, to the bit."""

import json
import os
import shutil
import signal
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from conftest import JOB, SCHEMA, Films, Generated, command, ratings, refused, write_csv

import rankine


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def test_a_job_trains_the_model_of_the_command(films: Films, tmp_path: Path) -> None:
    """From the effective job, the command trains the same model; from a file and settings, the package does."""
    command("train", films.run / "job.toml", "--run-dir", tmp_path / "command", "--quiet")
    model = files(films.run / "model")
    assert "model.safetensors" in model and files(tmp_path / "command/model") == model
    (tmp_path / "job.toml").write_text((films.run / "job.toml").read_text())
    summary = rankine.train(str(tmp_path / "job.toml"), tmp_path / "shorter", train={"max_steps": 7}, seed=3)
    words = ["--set", "train.max_steps=7", "--set", "seed=3", "--quiet"]
    command("train", tmp_path / "job.toml", "--run-dir", tmp_path / "shorter-command", *words)
    assert files(tmp_path / "shorter/model") == files(tmp_path / "shorter-command/model")
    assert summary["run_dir"] == str(tmp_path / "shorter") and summary["train"]["steps"] == 7
    written = json.loads((tmp_path / "shorter/summary.json").read_text())
    assert {key: value for key, value in summary.items() if key != "run_dir"} == written


def test_every_kind_of_value_becomes_toml(films: Films, tmp_path: Path) -> None:
    text = "a \"quoted\" \\ path\n\té\x7f"
    job = {
        **JOB,
        "data": {"dir": films.data},
        "train": {"batch_size": 64, "max_steps": 2},
        "table": [{"columns": ("film", "last"), "dim": 4}],
        "eval": {"every_steps": 1},
    }
    rankine.train(job, tmp_path / "run")
    effective = tomllib.loads((tmp_path / "run/job.toml").read_text())
    assert effective["table"][0]["columns"] == ["film", "last"]
    assert effective["optimizer"]["dense"]["learning_rate"] == 0.05
    with pytest.raises(rankine.DataError) as missing:
        rankine.train(job, tmp_path / "other", data={"dir": str(tmp_path / text)})
    assert "é" in str(missing.value)
    with pytest.raises(rankine.JobError) as named:
        rankine.train({**JOB, "name": text})
    assert "name" in str(named.value)


def test_events_are_the_lines_of_the_log(films: Films, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    on_event = events.append
    rankine.train(JOB, tmp_path / "run", on_event=on_event, data={"dir": films.data}, eval={"every_steps": 10})
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events].count("eval") >= 2

    def shared(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        keys = ("kind", "step", "loss", "auc", "heads")
        kept = [record for record in records if record.get("kind") in ("train", "eval")]
        return [{key: record[key] for key in keys if key in record} for record in kept]

    assert shared(events) == shared(lines)


def test_jobs_are_checked_as_job_files(films: Films, tmp_path: Path) -> None:
    def refusal(job: Any, **settings: Any) -> str:
        with pytest.raises(rankine.JobError) as error:
            rankine.train(job, tmp_path / "run", **settings)
        return str(error.value)

    assert "did you mean `batch_size`" in refusal(JOB, train={"batchsize": 64})
    # A conflict with the dataset, which only training finds.
    path = tmp_path / "job.toml"
    path.write_text((films.run / "job.toml").read_text())
    table = 'table=[{ columns = ["film", "tags"] }]'
    of_command = refused("train", path, "--run-dir", tmp_path / "run", "--set", table)
    assert refusal(path, table=[{"columns": ["film", "tags"]}]) == of_command
    assert refusal(tmp_path / "none.toml") == refused("train", tmp_path / "none.toml")
    assert refusal({**JOB, "seed": None}) == (
        "job: seed is a NoneType; expected a boolean, number, string, path, list or mapping"
    )
    assert refusal({**JOB, "seed": 1 << 70}) == "job: seed is beyond 64 bits"
    assert refusal({1: 2}) == "job: the key 1 is not a string"
    assert not (tmp_path / "run").exists()
    with pytest.raises(TypeError, match="^resume and restart need run_dir$"):
        rankine.train(JOB, resume=True)
    with pytest.raises(TypeError, match="^resume and restart cannot be combined$"):
        rankine.train(JOB, tmp_path / "run", resume=True, restart=True)


def test_errors_of_a_training_have_their_kinds(films: Films, tmp_path: Path) -> None:
    with pytest.raises(rankine.TrainError, match="is not empty"):
        rankine.train(JOB, films.run, data={"dir": films.data})
    with pytest.raises(rankine.DataError, match="^there is no dataset|dataset"):
        rankine.train(JOB, tmp_path / "run", data={"dir": tmp_path / "none"})


LONG = {"epochs": 100_000}


def test_ctrl_c_stops_a_training_which_can_be_resumed(films: Films, tmp_path: Path) -> None:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as error:
        rankine.train(JOB, tmp_path / "run", data={"dir": films.data}, train=LONG)
    (note,) = error.value.__notes__
    assert note.startswith("stopped by the program after step ")
    step = int(note.removeprefix("stopped by the program after step ").split(";")[0])
    # The interrupted run resumes, and ends with the bits of an uninterrupted one.
    end = {"max_steps": step + 5}
    summary = rankine.train(JOB, tmp_path / "run", resume=True, data={"dir": films.data}, train={**LONG, **end})
    assert summary["train"]["steps"] == step + 5
    rankine.train(JOB, tmp_path / "whole", data={"dir": films.data}, train={**LONG, **end})
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()


def test_an_exception_of_the_callback_stops_a_training(films: Films, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    seen: list[int] = []

    def on_event(event: dict[str, Any]) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen.append(event["step"])
        raise Enough

    with pytest.raises(Enough):
        rankine.train(JOB, tmp_path / "run", on_event=on_event, data={"dir": films.data}, train=LONG)
    assert len(seen) == 1 and (tmp_path / "run/checkpoints").is_dir()


def test_a_conversion_is_that_of_the_command(tmp_path: Path, films: Films) -> None:
    write_csv(tmp_path / "log.csv", ratings(300, 1))
    (tmp_path / "schema.toml").write_text(SCHEMA_TEXT)
    words: list[object] = ["--split", "random:0.25:7", "--dense-dtype", "f16", "--on-bad", "skip", "--bad-limit", "3"]
    words += ["--schema", tmp_path / "schema.toml", "--json", "--threads", "1", "--memory", "64MiB"]
    of_command = json.loads(command("convert", "csv", tmp_path / "log.csv", *words, "--out", tmp_path / "command"))
    options: dict[str, Any] = {"split": "random:0.25:7", "dense_dtype": "f16", "on_bad": "skip", "bad_limit": 3}
    options |= {"threads": 1, "memory": 64 << 20}
    schemas: list[Any] = [SCHEMA, tmp_path / "schema.toml"]
    for number, schema in enumerate(schemas):
        out = tmp_path / f"package-{number}"
        report = rankine.convert("csv", [tmp_path / "log.csv"], out, schema=schema, **options)
        assert files(out) == files(tmp_path / "command")
        assert report.pop("dataset") == str(out) and of_command["dataset"] == str(tmp_path / "command")
        assert report == {key: value for key, value in of_command.items() if key != "dataset"}


def test_further_rows_are_converted_like_a_dataset_or_a_run(tmp_path: Path, films: Films) -> None:
    write_csv(tmp_path / "new.csv", ratings(300, 9))
    run = tmp_path / "run"
    rankine.train(JOB, run, data={"dir": films.data}, train={"max_steps": 3})
    cases: list[tuple[Path, bool]] = [(Path(films.data), False), (Path(films.data), True), (run, True)]
    for number, (like, grow) in enumerate(cases):
        words: list[object] = ["--like", like, *(["--grow"] if grow else []), "--split", "last:0.5"]
        of_command, out = tmp_path / f"command-{number}", tmp_path / f"package-{number}"
        command("convert", "csv", tmp_path / "new.csv", *words, "--out", of_command)
        rankine.convert("csv", tmp_path / "new.csv", out, like=like, grow=grow, split="last:0.5")
        assert files(out) == files(of_command)
    convert: Any = rankine.convert
    refused_format = r"^.* was made from csv, not criteo-tsv"
    with pytest.raises(rankine.DataError, match=refused_format):
        convert("criteo-tsv", tmp_path / "new.csv", tmp_path / "none", like=films.data)
    with pytest.raises(TypeError, match=r'^convert\("csv", like=...\) has no option schema$'):
        convert("csv", tmp_path / "new.csv", tmp_path / "none", like=films.data, schema=SCHEMA)
    with pytest.raises(rankine.ModelError, match="there is no such folder"):
        convert("csv", tmp_path / "new.csv", tmp_path / "none", like=tmp_path / "absent")


def test_criteo_logs_and_raw_records_are_converted(tmp_path: Path) -> None:
    row = "1\t" + "\t".join(map(str, range(13))) + "\t" + "\t".join(f"{n:08x}" for n in range(26))
    (tmp_path / "log.tsv").write_text(f"{row}\n" * 50)
    words: list[object] = ["--min-count", "2", "--dense", "mlperf", "--vocabulary", "hash:100", "--column", "C3=exact"]
    command("convert", "criteo-tsv", tmp_path / "log.tsv", "--out", tmp_path / "command", *words)
    rankine.convert(
        "criteo-tsv",
        tmp_path / "log.tsv",
        tmp_path / "package",
        min_count=2,
        dense="mlperf",
        vocabulary="hash:100",
        columns={"C3": "exact"},
    )
    assert files(tmp_path / "package") == files(tmp_path / "command")

    (tmp_path / "shape.toml").write_text('name = "tiny"\ndense = 1\nrows = [9, 7]\n')
    record = b"".join(field.to_bytes(4, "little") for field in (1, 5, 8, 6))
    (tmp_path / "log.bin").write_bytes(record * 20)
    words = ["--shape", tmp_path / "shape.toml", "--dense", "int", "--out", tmp_path / "raw-command"]
    command("convert", "hugectr-raw", tmp_path / "log.bin", *words)
    shape = tmp_path / "shape.toml"
    rankine.convert("hugectr-raw", tmp_path / "log.bin", tmp_path / "raw", shape=shape, dense="int")
    assert files(tmp_path / "raw") == files(tmp_path / "raw-command")


def test_conversions_that_cannot_be_are_refused(tmp_path: Path, films: Films) -> None:
    convert: Any = rankine.convert
    log, out = films.log, tmp_path / "out"
    with pytest.raises(rankine.DataError) as error:
        convert("csv", log, out, schema=SCHEMA, split="half")
    assert str(error.value).startswith("`half` is not a split")
    with pytest.raises(rankine.DataError) as error:
        convert("csv", log, films.data, schema=SCHEMA)
    (tmp_path / "schema.toml").write_text(SCHEMA_TEXT)
    words = ["--schema", tmp_path / "schema.toml", "--out", films.data]
    assert str(error.value) == refused("convert", "csv", log, *words)
    with pytest.raises(TypeError, match=r'^convert\("csv"\) needs schema$'):
        convert("csv", log, out)
    with pytest.raises(TypeError, match=r'^convert\("csv"\) has no option vocabulary$'):
        convert("csv", log, out, schema=SCHEMA, vocabulary="hash:7")
    with pytest.raises(ValueError, match='^`cvs` is not a format: choose one of .*did you mean `csv`'):
        convert("cvs", log, out)
    with pytest.raises(ValueError, match="^min_count must be a whole number of 1 or more$"):
        convert("csv", log, out, schema=SCHEMA, min_count=0)
    assert not out.exists()


def test_ctrl_c_stops_a_conversion(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", ratings(100_000, 1))
    logs = [tmp_path / "log.csv"] * 50
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as error:
        rankine.convert("csv", logs, tmp_path / "data", schema=SCHEMA)
    assert error.value.__notes__ == ["stopped by the program: everything written so far was removed"]
    assert not (tmp_path / "data").exists()


def untimed(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Returns an evaluation without its duration, which the command does not print."""
    assert evaluation.pop("seconds") > 0
    return evaluation


def test_an_evaluation_is_that_of_the_command(films: Films, generated: Generated) -> None:
    assert untimed(rankine.evaluate(films.run)) == json.loads(command("eval", "--run", films.run, "--json"))
    words = ["--data", films.data, "--part", "train", "--json"]
    of_command = json.loads(command("eval", "--run", films.run, *words))
    assert untimed(rankine.evaluate(str(films.run), films.data, part="train", threads=1)) == of_command
    of_command = json.loads(command("eval", "--run", films.run, films.log, "--json"))
    assert untimed(rankine.evaluate(films.run, raw=[films.log])) == of_command
    of_command = json.loads(command("eval", "--run", generated.run, "--json"))
    assert "auc_achievable" in of_command and untimed(rankine.evaluate(generated.run)) == of_command


def test_evaluations_that_cannot_be_are_refused(films: Films, generated: Generated, tmp_path: Path) -> None:
    evaluate: Any = rankine.evaluate
    with pytest.raises(rankine.DataError) as error:
        evaluate(films.run, generated.data)
    assert str(error.value) == refused("eval", "--run", films.run, "--data", generated.data)
    with pytest.raises(rankine.DataError) as error:
        evaluate(generated.run, raw=[films.log])
    assert str(error.value) == refused("eval", "--run", generated.run, films.log)
    with pytest.raises(rankine.ModelError, match="^no model at "):
        evaluate(tmp_path)
    with pytest.raises(ValueError, match='^"test" is not a part of a dataset: choose train or eval$'):
        evaluate(films.run, part="test")
    with pytest.raises(ValueError, match="^threads must be a whole number from 1 to 4096$"):
        evaluate(films.run, threads=0)


def test_damaged_and_newer_models_are_refused(films: Films, tmp_path: Path) -> None:
    def refusal(change: Any) -> tuple[str, str]:
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(films.run, run)
        change(run / "model")
        with pytest.raises(rankine.ModelError) as error:
            rankine.Ranker.load(run)
        return str(error.value), refused("eval", "--run", run)

    def damage(model: Path) -> None:
        weights = bytearray((model / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (model / "model.safetensors").write_bytes(weights)

    def renew(model: Path) -> None:
        text = (model / "model.json").read_text()
        assert '"format": 5' in text
        (model / "model.json").write_text(text.replace('"format": 5', '"format": 99'))

    for change, words in [(damage, "model.safetensors is damaged"), (renew, "99")]:
        message, of_command = refusal(change)
        assert words in message and message == of_command


def test_a_dataset_says_what_it_has(films: Films, tmp_path: Path) -> None:
    dataset = rankine.Dataset(films.data)
    assert dataset.samples == {"train": 1600, "eval": 400}
    assert str(dataset.path) == str(films.data)
    assert [column["name"] for column in dataset.schema["dense"]] == ["age", "price"]
    assert sum(map(len, dataset.batches("train", batch_size=100))) == 1600
    with pytest.raises(rankine.DataError, match="batch size"):
        dataset.batches(batch_size=0)
    with pytest.raises(ValueError, match="^\"test\" is not a part"):
        rankine.Dataset.batches(dataset, "test")  # type: ignore[arg-type]
    with pytest.raises(rankine.DataError) as error:
        rankine.Dataset(tmp_path)
    assert str(error.value) == refused("inspect", tmp_path)


def test_datasets_are_opened_together(films: Films, tmp_path: Path) -> None:
    more = tmp_path / "more"
    rankine.convert("csv", films.log, more, like=films.data, block_samples=64)
    rows = len(films.columns["film"])
    assert rankine.Dataset(more).samples["train"] == rows
    both = rankine.Dataset([films.data, more])
    assert both.samples == {"train": 1600 + rows, "eval": 400}
    assert sum(map(len, both.batches("train"))) == 1600 + rows
    with pytest.raises(rankine.DataError, match="is listed twice"):
        rankine.Dataset([more, more])


SCHEMA_TEXT = """
[[label]]
column = "rating"
at_least = 4
missing = "mask"

[[label]]
column = "bought"

[[dense]]
column = "age"
transform = ["log1p", "standardize"]

[[dense]]
column = "price"

[[categorical]]
column = "film"
vocabulary = { kind = "exact", min_count = 2 }

[[categorical]]
column = "last"
vocabulary = { kind = "shared", with = "film" }

[[categorical]]
column = "hour"
vocabulary = { kind = "identity", rows = 24 }

[[categorical]]
column = "tags"
separator = "|"
pooling = "mean"
vocabulary = { kind = "hash", rows = 50 }
"""
