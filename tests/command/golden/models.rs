//! Mistakes with runs, checkpoints and models.

use std::fs;

use super::{CSV_SCHEMA, Mistakes, SHAPE, csv_rows};

const JOB: &str = "\
name = \"films\"
data.dir = \"films\"
model = { kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [8, 4], top_mlp = [8] }
optimizer.dense = { kind = \"sgd\", learning_rate = 0.03 }
optimizer.sparse = { kind = \"sgd\", learning_rate = 0.1 }
train = { batch_size = 50, max_steps = 4 }
checkpoint.every_steps = 2
device = { kind = \"cpu\", threads = 1 }
";

/// A converted dataset `films`, a job `job.toml` on it, and its finished run `run`.
fn trained() -> Mistakes {
    let mistakes = Mistakes::new();
    let rows = csv_rows(300, 1);
    mistakes.file("films.csv", format!("rating,bought,weight,last,film,age,tags\n{}\n", rows.join("\n")));
    mistakes.file("films.toml", CSV_SCHEMA);
    mistakes.prepare("convert csv films.csv --out films --schema films.toml --split last:0.2");
    mistakes.file("job.toml", JOB);
    mistakes.prepare("train job.toml --run-dir run --quiet");
    mistakes
}

impl Mistakes {
    /// Copies the run, and makes the copy `name` look interrupted.
    fn interrupted(&self, name: &str) {
        self.copy("run", name);
        fs::remove_dir_all(self.place.path(name).join("model")).expect("a finished run has a model");
        fs::remove_file(self.place.path(name).join("summary.json")).expect("a finished run has a summary");
    }
}

/// Run folders and `--resume`.
#[test]
fn resume() {
    let mut mistakes = trained();
    let resume = "rankine train job.toml --quiet --resume --run-dir cut";
    mistakes.run("a run folder that is not empty", "rankine train job.toml --run-dir run");
    mistakes
        .run("a finished run with another job", "rankine train job.toml --run-dir run --resume --set seed=3");
    mistakes.interrupted("cut");
    let sets = [
        ("another model", "model.top_mlp=[16]"),
        ("another optimizer", "optimizer.sparse.kind=adagrad"),
        ("another seed", "seed=3"),
    ];
    for (title, set) in sets {
        mistakes.run(title, &format!("{resume} --set '{set}'"));
    }
    mistakes.file("shape.toml", SHAPE);
    mistakes.prepare("generate --shape shape.toml --samples 300 --out other");
    mistakes.run("another dataset", &format!("{resume} --set data.dir=other"));
    mistakes.flip("cut/checkpoints/step-4/shard-00000.safetensors", -8);
    mistakes.warn("a damaged checkpoint", resume);
    mistakes.interrupted("both");
    mistakes.flip("both/checkpoints/step-2/shard-00000.safetensors", -8);
    mistakes.flip("both/checkpoints/step-4/shard-00000.safetensors", -8);
    mistakes.run("only damaged checkpoints", &resume.replace("cut", "both"));
    mistakes.run("a folder that is not a run", "rankine train job.toml --quiet --resume --run-dir films");
    mistakes.check("resume");
}

/// `eval` and `predict`.
#[test]
fn model() {
    let mut mistakes = trained();
    let predict = "rankine predict --run run --out out.csv";
    mistakes.run("no such run", "rankine eval --run runs");
    mistakes.run("a dataset for a run", "rankine eval --run films");
    mistakes.file("shape.toml", SHAPE);
    mistakes.prepare("generate --shape shape.toml --samples 300 --eval-samples 50 --out other");
    mistakes.run("a dataset with other columns", "rankine eval --run run --data other");
    mistakes.file("unlabelled.csv", "bought,weight,last,film,age,tags\n1,1.25,f1,f2,8,t1\n");
    mistakes.run("raw rows without a label", "rankine eval --run run unlabelled.csv");
    mistakes.run("a dataset as raw files", "rankine eval --run run films");
    mistakes.run("a dataset that is named twice", "rankine eval --run run --data films --data films");
    mistakes.run("an unknown part", "rankine eval --run run --part test");
    mistakes.run("nothing to predict", predict);
    mistakes.run("no such rows", &format!("{predict} new.csv"));
    mistakes.run("a pattern that matches nothing", &format!("{predict} 'new_*.csv'"));
    mistakes.run("raw columns of a dataset", &format!("{predict} --data films --keep-columns last"));
    mistakes.run("raw columns that are not there", &format!("{predict} films.csv --keep-columns lats"));
    mistakes.file("new.csv", "rating,bought\n1,1\n");
    mistakes.run("rows without a column", &format!("{predict} new.csv"));
    mistakes.file("new.csv", "id,last,film_id,age,tags\n7,f1,f2,8,t1\n");
    mistakes.run("rows with a renamed column", &format!("{predict} new.csv"));
    mistakes.file("new.csv", "rating,bought,weight,last,film,age,tags\n4,1,1.25,f1,f2,old,t1\n");
    mistakes.run("a row that cannot be read", &format!("{predict} new.csv"));
    mistakes.run("predictions over an input", "rankine predict --run run films.csv --out films.csv");
    mistakes.interrupted("cut");
    mistakes.run("a run that is not finished", "rankine eval --run cut");
    mistakes.flip("run/model/model.safetensors", -8);
    mistakes.run("a damaged model", "rankine eval --run run");
    fs::remove_file(mistakes.place.path("run/model/model.safetensors")).expect("it is there");
    mistakes.run("a model without its weights", "rankine eval --run run");
    fs::rename(mistakes.place.path("films"), mistakes.place.path("moved")).expect("it is there");
    mistakes.run("a dataset that was moved", "rankine eval --run cut/checkpoints/step-4");
    mistakes.check("model");
}

/// `ckpt`.
#[test]
fn checkpoint() {
    let mut mistakes = trained();
    mistakes.run("a folder that is not a checkpoint", "rankine ckpt inspect films");
    mistakes.run("no such checkpoint", "rankine ckpt verify run/checkpoints/step-3");
    mistakes
        .run("checkpoints that differ", "rankine ckpt diff run/checkpoints/step-2 run/checkpoints/step-4");
    mistakes.prepare("train job.toml --run-dir wide --quiet --set model.top_mlp=[16]");
    mistakes.run("checkpoints of other models", "rankine ckpt diff run wide");
    mistakes.run("an export in other shards", "rankine ckpt reshard run/model --ranks 2 --out other");
    mistakes.run("a checkpoint that exists", "rankine ckpt reshard run --ranks 2 --out wide");
    mistakes.run("an export that exists", "rankine ckpt export run --out run/model");
    mistakes.copy("run", "bad");
    mistakes.flip("bad/checkpoints/step-4/shard-00000.safetensors", -8);
    mistakes.flip("bad/model/model.safetensors", -8);
    mistakes.run("damage", "rankine ckpt verify bad bad/model");
    fs::remove_file(mistakes.place.path("bad/checkpoints/step-2/shard-00000.safetensors"))
        .expect("it is there");
    mistakes.run("a missing shard", "rankine ckpt verify bad/checkpoints/step-2");
    mistakes.run(
        "missing shards of two paths",
        "rankine ckpt verify bad/checkpoints/step-2 bad/checkpoints/step-2",
    );
    mistakes.run("a missing shard and damage", "rankine ckpt verify bad");
    mistakes.edit("bad/checkpoints/step-4/manifest.json", "\"step\": 4", "\"step\": 5");
    mistakes.run("an edited manifest", "rankine ckpt inspect bad/checkpoints/step-4");
    mistakes.check("checkpoint");
}
