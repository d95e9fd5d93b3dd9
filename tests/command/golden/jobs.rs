//! Mistakes in job files, in plans, in launches, and in command lines.

use super::{Mistakes, SHAPE, generate, job};

/// Jobs that are wrong in themselves.
#[test]
fn job_file() {
    let mut mistakes = Mistakes::new();
    job(&mistakes.place);
    mistakes.edit("job.toml", &mistakes.place.word("data"), "data");
    mistakes.run("no such file", "rankine check jobs.toml");
    mistakes.run("a folder", "rankine check .");
    mistakes.file("latin1.toml", b"name = \"caf\xe9\"\n");
    mistakes.run("not UTF-8", "rankine check latin1.toml");
    mistakes.file("empty.toml", "");
    mistakes.run("an empty file", "rankine check empty.toml");
    let sets = [
        ("unknown key", "train.epocs=3"),
        ("unknown table", "optimiser.dense=1"),
        ("unknown kind", "model.kind=dlmr"),
        ("key of another kind", "model.cross_layers=3"),
        ("unknown choice", "device.precision=fp61"),
        ("number below its range", "train.batch_size=0"),
        ("negative number", "seed=-1"),
        ("string for a number", "train.epochs=three"),
        ("fraction for a whole number", "train.epochs=2.5"),
        ("number for a boolean", "train.shuffle=1"),
        ("value for a table", "train=3"),
        ("negative learning rate", "optimizer.dense.learning_rate=-0.1"),
        ("learning rate that is not a number", "optimizer.dense.learning_rate=nan"),
        ("slash in the name", "name=a/b"),
        ("misspelt shape", "data.shape=dlmr"),
        ("bottom MLP of another width", "model.bottom_mlp=[16, 8]"),
        ("dataset and raw files", "data.raw={ shape = \"dlrm\", train = [\"a.bin\"] }"),
        ("table without columns", "table=[{ columns = [] }]"),
        ("column in two tables", "table=[{ columns = [\"C1\"] }, { columns = [\"C1\"] }]"),
        ("vectors of another length", "table=[{ columns = [\"C1\"], dim = 8 }]"),
        (
            "exchange of a replicated table",
            "table=[{ columns = [\"C1\"], placement = \"replicated\", exchange = \"rows\" }]",
        ),
        (
            "frequent rows of a table-wise table",
            "table=[{ columns = [\"C1\"], placement = \"table-wise\", frequent_rows = 3 }]",
        ),
        ("two heads with one label", "head=[{ label = \"label\" }, { label = \"label\" }]"),
        ("row-wise rule for the dense layers", "optimizer.dense.kind=rowwise-adagrad"),
        ("wide rule without a wide part", "optimizer.wide={ kind = \"ftrl\", learning_rate = 0.1 }"),
        (
            "decay within the warm-up",
            "optimizer.schedule={ kind = \"cosine\", warmup_steps = 9, decay_start_step = 5, decay_steps = 7 }",
        ),
        ("target AUC without evaluations", "eval.target_auc=0.8"),
        ("target AUC of a coin", "eval.target_auc=0.5"),
        ("silence shorter than a barrier", "guard.silence_timeout_s=20"),
        ("ranks that nodes do not divide", "device={ ranks = 3, nodes = 2 }"),
        ("value without a key", "train.epochs"),
        ("element of a list that is not there", "model.top_mlp.4=8"),
    ];
    for (title, set) in sets {
        mistakes.run(title, &format!("rankine check job.toml --set '{set}'"));
    }
    let edits = [
        ("a missing quote", "name = \"small\"", "name = \"small"),
        ("a duplicate key", "name = \"small\"", "name = \"small\"\nname = \"large\""),
        ("a missing key", "batch_size = 128, ", ""),
        ("a missing table", "model = {", "# {"),
        ("no samples", "data.dir", "# dir"),
        ("single brackets", "name = \"small\"", "name = \"small\"\ntable = { columns = [\"C1\"] }"),
    ];
    mistakes.copy_file("job.toml", "sound.toml");
    for (title, piece, replacement) in edits {
        mistakes.copy_file("sound.toml", "job.toml");
        mistakes.edit("job.toml", piece, replacement);
        mistakes.run(title, "rankine check job.toml");
    }
    mistakes.check("job-file");
}

/// Sound jobs that do not suit their dataset.
#[test]
fn job_and_dataset() {
    let mut mistakes = Mistakes::new();
    job(&mistakes.place);
    mistakes.edit("job.toml", &mistakes.place.word("data"), "data");
    mistakes.run("no dataset", "rankine train job.toml --run-dir run");
    mistakes.run("no dataset, when checked", "rankine check job.toml --here");
    generate(&mistakes.place, SHAPE, 500, 0);
    mistakes.run("a dataset in place of a job", "rankine train data");
    mistakes.file("dense.toml", SHAPE.replace("dense = 4", "dense = 0"));
    mistakes.prepare("generate --shape dense.toml --samples 100 --out no-dense");
    let sets = [
        ("unknown column", "table=[{ columns = [\"c1\"] }]"),
        ("columns of one table with other rows", "table=[{ columns = [\"C1\", \"C2\"] }]"),
        ("unknown label", "head=[{ label = \"click\" }]"),
        ("folder that is not a dataset", "data.dir=."),
        ("dataset without dense columns", "data.dir=no-dense"),
    ];
    for (number, (title, set)) in sets.iter().enumerate() {
        let train = format!("rankine train job.toml --run-dir run-{number} --set device.kind=cpu");
        mistakes.run(title, &format!("{train} --set '{set}'"));
    }
    mistakes.check("job-and-dataset");
}

/// Plans that cannot be made, and models that do not fit.
#[test]
fn plan() {
    let mut mistakes = Mistakes::new();
    mistakes.file("shape.toml", SHAPE);
    job(&mistakes.place);
    mistakes.edit("job.toml", &mistakes.place.word("data"), "data");
    mistakes.run("no dataset and no shape", "rankine plan job.toml --ranks 4 --machine h200");
    mistakes.edit("job.toml", "data.dir", "data.shape = \"shape.toml\"\ndata.dir");
    mistakes.run("ranks of the launch", "rankine plan job.toml --machine h200 --set device.ranks=auto");
    mistakes
        .run("ranks that nodes do not divide", "rankine plan job.toml --ranks 3 --nodes 2 --machine h200");
    mistakes.run("unknown machine", "rankine plan job.toml --ranks 4 --machine h20");
    mistakes.file("machine.toml", "name = \"mine\"\n");
    mistakes.run("incomplete machine file", "rankine plan job.toml --ranks 4 --machine ./machine.toml");
    mistakes.file("machine.toml", "base = \"h200\"\n\n[within_nodes]\ngb_per_sec = 400\n");
    mistakes.run("unknown key of a link", "rankine plan job.toml --ranks 4 --machine machine.toml");
    mistakes.file("machine.toml", "base = \"h200\"\noverlap = 1.5\n");
    mistakes.run("share above 1", "rankine plan job.toml --ranks 4 --machine machine.toml");
    mistakes.run("unknown table", "rankine plan job.toml --ranks 4 --machine h200 --explain C9");
    mistakes.run("sample of no data", "rankine plan job.toml --ranks 4 --machine h200 --sample 1000");
    mistakes.run("model that does not fit", "rankine plan job.toml --ranks 4 --machine h200 --memory 1KiB");
    mistakes.run("ranks that are not a number", "rankine plan job.toml --ranks eight");
    mistakes.run("size without a unit that is known", "rankine plan job.toml --memory 80G");
    mistakes.check("plan");
}

/// Processes that do not find each other.
#[test]
fn launch() {
    let mut mistakes = Mistakes::new();
    let job = "rankine train job.toml --run-dir run";
    super::job(&mistakes.place);
    mistakes.edit("job.toml", &mistakes.place.word("data"), "data");
    mistakes.run("process without processes", &format!("{job} --process 0"));
    mistakes.run("process beyond the last", &format!("{job} --process 2 --processes 2 --meet 127.0.0.1:1"));
    mistakes.run("no address", &format!("{job} --process 0 --processes 2"));
    mistakes.run("address without a host", &format!("{job} --process 0 --processes 2 --meet :29500"));
    mistakes.run("unknown launcher", &format!("{job} --launcher mpi"));
    mistakes.run(
        "variables without the number of processes",
        &format!("RANK=0 MASTER_ADDR=a MASTER_PORT=1 {job}"),
    );
    mistakes.run("process that is not a number", &format!("RANK=first WORLD_SIZE=2 {job}"));
    mistakes.run("no address in the environment", &format!("RANK=0 WORLD_SIZE=2 {job}"));
    let meet = "--process 1 --processes 2 --meet 127.0.0.1:1 --meet-timeout 0.2";
    mistakes.run("no secret file", &format!("{job} {meet} --secret-file secret"));
    mistakes.file("secret", "short");
    mistakes.run("secret file that others may read", &format!("{job} {meet} --secret-file secret"));
    mistakes.run("short secret", &format!("RANKINE_SECRET=short {job} {meet}"));
    mistakes.run("process 0 not there", &format!("RANKINE_SECRET=0123456789abcdef {job} {meet}"));
    mistakes.run("timeout of no time", &format!("{job} --process 1 --processes 2 --meet-timeout 0"));
    mistakes.run("launch flags of doctor", "rankine doctor --process 0 --processes 2");
    mistakes.check("launch");
}

/// Command lines, and files and folders that cannot be read or written.
#[test]
fn command_line() {
    let mut mistakes = Mistakes::new();
    job(&mistakes.place);
    mistakes.edit("job.toml", &mistakes.place.word("data"), "data");
    mistakes.run("unknown command", "rankine trian job.toml");
    mistakes.run("unknown option", "rankine train job.toml --epochs 3");
    mistakes.run("no job", "rankine train");
    mistakes.run("resume without a folder", "rankine train job.toml --resume");
    mistakes.run("resume and restart", "rankine train job.toml --run-dir run --resume --restart");
    mistakes.run("unknown log level", "RANKINE_LOG=loud rankine check job.toml");
    mistakes.run("no samples", "rankine generate --shape dlrm --samples 0 --out data");
    mistakes.run("misspelt shape", "rankine generate --shape dlmr --samples 10 --out data");
    mistakes.file("wrong.toml", SHAPE.replace("rows", "row"));
    mistakes.run("unknown key of a shape", "rankine generate --shape wrong.toml --samples 10 --out data");
    mistakes.file("wrong.toml", SHAPE.replace("rows = [", "rows = [0, "));
    mistakes.run("table without rows", "rankine generate --shape wrong.toml --samples 10 --out data");
    mistakes.run("negative exponent", "rankine generate --shape dlrm --samples 10 --alpha -1 --out data");
    mistakes.run("no dataset for a job", "rankine init --data data");
    generate(&mistakes.place, SHAPE, 100, 0);
    mistakes.run("job file that exists", "rankine init --data data");
    mistakes.run("unknown kind of model", "rankine init --data data --model dnn --out new.toml");
    mistakes.run("dataset that exists", "rankine generate --shape dlrm --samples 10 --out data");
    mistakes.run(
        "folder below a file",
        "rankine generate --shape dlrm --rows-cap 9 --samples 10 --out job.toml/data",
    );
    mistakes.run("run below a file", "rankine train job.toml --run-dir job.toml/run --quiet");
    mistakes.run("output over an input", "rankine generate --shape shape.toml --samples 10 --out shape.toml");
    mistakes.check("command-line");
}
