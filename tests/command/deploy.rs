//! The files in `configs/deploy` have arguments that the command accepts. `.ci/deploy` checks the rest of these files.

use std::fs;

use crate::support::{Ended, Place, SHAPE, SUCCESS, generate, job, rankine, root};

fn text(name: &str) -> String {
    let path = root().join("configs/deploy").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the list `args` of a container.
fn arguments_of_container(text: &str) -> Vec<String> {
    let (_, rest) = text.split_once(" args:\n").expect("the container has arguments");
    let lines = rest.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    lines.map_while(|line| Some(line.strip_prefix("- ")?.to_owned())).collect()
}

/// Returns the arguments of `rankine` in a script or a unit.
fn arguments_in_shell(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let words = joined.lines().find_map(|line| Some(line.split_once("rankine train ")?.1));
    let words = words.expect("a line trains").split_whitespace().map(str::to_owned);
    ["train".to_owned()].into_iter().chain(words).collect()
}

/// Runs a training with the arguments, of a small job on the CPU, and again as after a restart.
fn runs(name: &str, arguments: &[String]) {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 100);
    let job = job(&place);
    for option in ["--run-dir", "--resume", "--set"] {
        assert!(arguments.iter().any(|word| word.starts_with(option)), "{name} has no {option}");
    }
    let mut previous = "";
    let mut replaced = Vec::new();
    for word in arguments {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if word.starts_with("--") => (option, value),
            _ => (previous, word.as_str()),
        };
        let value = match option {
            "--run-dir" => place.word("run"),
            "--metrics" => "127.0.0.1:0".to_owned(),
            _ if value == "device.kind=cuda" => "device.kind=cpu".to_owned(),
            _ if value.ends_with(".toml") => job.clone(),
            _ => value.to_owned(),
        };
        let joined = word.starts_with("--") && word.contains('=');
        replaced.push(if joined { format!("{option}={value}") } else { value });
        previous = word;
    }
    for _ in 0..2 {
        let mut command = rankine();
        command.args(&replaced).args(["--set", "device.kind=cpu"]);
        // What Kubernetes and the JobSet set.
        command.envs([("JOB_COMPLETION_INDEX", "0"), ("PET_NNODES", "1"), ("PET_MASTER_ADDR", "127.0.0.1")]);
        Ended::of(command).with(SUCCESS);
    }
    assert!(place.path("run/summary.json").exists(), "{name}");
}

#[test]
fn pods_train_and_prometheus_finds_them() {
    for name in ["kubernetes-job.yaml", "kubernetes-jobset.yaml"] {
        let text = text(name);
        let arguments = arguments_of_container(&text);
        runs(name, &arguments);
        let port = arguments.iter().find_map(|word| word.strip_prefix("--metrics=0.0.0.0:"));
        let port = port.unwrap_or_else(|| panic!("{name} exports no metrics"));
        assert!(text.contains(&format!("prometheus.io/port: \"{port}\"\n")), "{name}");
        assert!(text.contains(&format!("containerPort: {port}\n")), "{name}");
    }
}

#[test]
fn the_unit_and_the_script_train() {
    for name in ["rankine@.service", "train.sbatch"] {
        runs(name, &arguments_in_shell(&text(name)));
    }
}

#[test]
fn the_guide_has_the_script() {
    let guide =
        fs::read_to_string(root().join("docs/guide/gpus-and-clusters.md")).expect("the guide is there");
    assert!(
        guide.contains(&format!("```bash\n{}```\n", text("train.sbatch"))),
        "the script of the guide differs"
    );
}

#[test]
fn files_and_documents_name_this_version() {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let archive = format!("rankine-{VERSION}-x86_64-linux-gnu");
    let wheel = format!("rankine-{VERSION}-cp311-abi3-manylinux_2_28_x86_64.whl");
    let image = format!("image: rankine:{VERSION}\n");
    for (name, quoted) in [
        ("configs/deploy/Containerfile", &archive),
        ("configs/deploy/kubernetes-job.yaml", &image),
        ("configs/deploy/kubernetes-jobset.yaml", &image),
        ("docs/guide/installing.md", &archive),
        ("docs/guide/installing.md", &wheel),
        ("README.md", &wheel),
        ("CHANGELOG.md", &format!("## {VERSION} ")),
        ("bindings/python/Cargo.toml", &format!("version = \"{VERSION}\"\n")),
    ] {
        let text = fs::read_to_string(root().join(name)).expect("the file is there");
        assert!(text.contains(quoted.as_str()), "{name} does not name {quoted}");
    }
}
