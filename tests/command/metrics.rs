//! The metrics of commands, as Prometheus sees them: they agree with the summary, and a port that is taken is an error
//! before any work is done.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::exported::{Exported, value};
use crate::support::{self, FAILED, Place, SHAPE, SUCCESS, generate, job, json_file, rankine, run, train};

/// Trains with a textfile, whose last version has the final values, and compares them with the summary.
fn a_run_agrees(ranks: u32) {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 400);
    let textfile = format!("metrics.textfile={}", place.word("rankine.prom"));
    let ranks = format!("device.ranks={ranks}");
    let sets = [textfile.as_str(), &ranks, "checkpoint.every_steps=5", "eval.every_steps=10"];
    train(&place, &job(&place), "run", &sets).with(SUCCESS);
    let exported = Exported::read(&place.path("rankine.prom"), 0);
    exported.agrees_with(&json_file(&place.path("run/summary.json")));
    assert_eq!(exported.value("rankine_checkpoint_seconds_count", ""), 3.0);
    assert!(exported.value("rankine_checkpoint_bytes_total", "") > 0.0);
    let distinct = exported.value("rankine_embedding_distinct_ratio", "table=\"C6\"");
    assert!(distinct > 0.0 && distinct <= 3.0 / 128.0, "3 rows, 128 look-ups: {distinct}");
}

#[test]
fn the_metrics_of_a_run_agree_with_its_summary() {
    a_run_agrees(1);
}

#[test]
fn the_metrics_of_four_ranks_agree_with_their_summary() {
    a_run_agrees(4);
}

#[test]
fn the_devices_of_a_run_list_its_tables_with_their_bytes_and_skew() {
    let place = Place::new();
    let data = generate(&place, SHAPE, 2000, 400);
    let sets =
        ["device.ranks=2", "embedding.dtype=fp16", "embedding.placement=row-wise", "train.max_steps=1"];
    train(&place, &job(&place), "run", &sets).with(SUCCESS);
    let devices = json_file(&place.path("run/devices.json"));
    assert_eq!((&devices["ranks"], &devices["nodes"]), (&2.into(), &1.into()));
    let inspected = run(["inspect", &data, "--json"]).with(SUCCESS).json();
    let tables = devices["tables"].as_array().expect("a list");
    assert_eq!(tables.len(), 6);
    for (number, (table, rows)) in tables.iter().zip([40, 30, 20, 12, 8, 3]).enumerate() {
        let (name, share) = (format!("C{}", number + 1), &inspected["tables"][number]["top_1_percent_share"]);
        let expected = serde_json::json!({
            "name": name, "rows": rows, "dim": 4, "bytes": rows * 4 * 2, "placement": "row-wise", "top_share": share,
        });
        assert_eq!(*table, expected);
    }
}

/// Sends a request, and returns the whole response.
fn get(address: &str, path: &str) -> String {
    get_of_host(address, address, path)
}

fn get_of_host(address: &str, host: &str, path: &str) -> String {
    let mut client = TcpStream::connect(address).expect("the endpoint accepts");
    write!(client, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("it receives");
    let mut response = String::new();
    client.read_to_string(&mut response).expect("it answers");
    response
}

/// What the live page shows.
fn run_view(address: &str) -> Value {
    let answer = get(address, "/run.json");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
    assert!(head.contains("\r\nContent-Type: application/json"), "{head}");
    serde_json::from_str(body).expect("it is JSON")
}

/// Starts a training that serves its metrics; returns their address and the further lines that it prints.
fn served(place: &Place, sets: &[&str]) -> (Child, String, impl Iterator<Item = String> + use<>) {
    let mut command = rankine();
    command.args(["train", &job(place), "--metrics", "0", "--run-dir", &place.word("run")]);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let mut training =
        command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the command starts");
    let mut lines = BufReader::new(training.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let address =
        lines.find_map(|line| Some(line.split_once("http://")?.1.strip_suffix("/metrics")?.to_owned()));
    (training, address.expect("the address is printed"), lines)
}

/// Checks the live page of the training on two ranks below, once its model was evaluated.
#[track_caller]
fn assert_shows_the_run(address: &str) {
    let page = get(address, "/");
    assert!(page.contains("\r\nContent-Type: text/html") && page.contains("default-src 'self'"), "{page}");
    for name in ["icon.svg", "uplot.css", "page.css", "uplot.js", "charts.js", "page.js"] {
        assert!(page.contains(name), "{name} in\n{page}");
        assert!(get(address, &format!("/{name}")).starts_with("HTTP/1.1 200 "), "{name}");
    }
    let view = loop {
        let view = run_view(address);
        if !view["evaluations"].as_array().expect("a list").is_empty() && view["state"] == "training" {
            break view;
        }
    };
    assert_eq!((&view["name"], &view["device"]["ranks"]), (&"small".into(), &2.into()));
    assert!(
        view["progress"]["step"].as_u64() >= Some(1) && view["progress"]["eta_seconds"].as_f64() > Some(0.0)
    );
    for series in ["loss", "samples_per_second"] {
        assert!(view["series"][series]["values"][0].is_f64(), "{series} in {view}");
    }
    for series in ["auc", "log_loss"] {
        assert!(view["evaluations"][0][series]["values"][0].is_f64(), "{series} in {view}");
    }
    assert!(view["phases"][1]["seconds"].as_f64() > Some(0.0), "{view}");
    let table = &view["tables"][0];
    assert!(table["placement"].is_string() && table["top_share"].is_f64(), "{table}");
    assert!(table["distinct_ratio"].as_f64() > Some(0.0), "{table}");
    let processes = view["processes"].as_array().expect("a list");
    assert!(processes.len() == 1 && processes[0]["process"] == 0, "{processes:?}");
    assert!(processes[0]["healthy"] == true && processes[0]["host"] != "", "{processes:?}");
    assert_eq!(view["settings"]["train.epochs"], "100000");
}

#[test]
fn the_page_says_which_training_of_a_refit_it_shows() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 400);
    let sets = [
        "train.epochs=100000",
        "train.validation=last:0.2",
        "train.early_stopping={ patience = 100000, refit = true }",
        "eval.every_steps=100",
    ];
    let (mut training, address, _lines) = served(&place, &sets);
    let view = loop {
        let view = run_view(&address);
        if view["state"] == "training" {
            break view;
        }
    };
    training.kill().expect("it runs");
    training.wait().expect("it has ended");
    assert_eq!(view["refit"], serde_json::json!({ "stage": "search" }));
}

#[test]
fn a_training_serves_its_metrics_and_a_page_while_it_runs() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 400);
    // So long that only the signal ends it.
    let sets = ["train.epochs=100000", "train.log_every_steps=1", "device.ranks=2", "eval.every_steps=1"];
    let (mut training, address, mut lines) = served(&place, &sets);
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    // Steps are reported once they are complete.
    let step = lines.find(|line| line.contains("step "));
    assert!(step.is_some());
    let (page, ready) = (get(&address, "/metrics"), get(&address, "/readyz"));
    assert!(value(&page, "rankine_train_steps_total") >= 1.0);
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    assert_shows_the_run(&address);
    let rebound = get_of_host(&address, "evil.example", "/run.json");
    assert!(rebound.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{rebound}");
    let pid = rustix::process::Pid::from_child(&training);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    lines.for_each(drop);
    assert_eq!(training.wait().expect("it ends").code(), Some(support::RESUMABLE));
}

#[test]
fn a_port_in_use_is_an_error_before_anything_is_written() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
    let out = place.word("data");
    let args = ["generate", "--shape", "dlrm", "--rows-cap", "10", "--samples", "10", "--out", &out];
    run(args.into_iter().chain(["--metrics", &address]))
        .with(FAILED)
        .says(&["cannot serve metrics on", "another process uses this port"]);
    assert!(!place.path("data").exists());
    generate(&place, SHAPE, 2000, 400);
    let listen = format!("metrics.listen={address}");
    train(&place, &job(&place), "run", &[&listen]).with(FAILED).says(&["another process uses this port"]);
    assert!(!place.path("run").exists());
}

#[test]
fn an_address_without_a_port_is_refused() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 400);
    train(&place, &job(&place), "run", &["metrics.listen=localhost"]).with(support::USAGE).says(&[
        "metrics.listen",
        "an IP address or a host name with a port, such as 127.0.0.1:9464, or a port",
    ]);
}
