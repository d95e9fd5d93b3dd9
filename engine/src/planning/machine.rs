//! Reads and writes machine files: the memory, rates and latencies of a machine, for the planner.

use std::path::Path;

use rankine_base::did_you_mean;
use rankine_base::document::{Conflict, Document, Problem};
use rankine_base::files::{NamedTextError, read_named_text};
use rankine_embedding::plan::{LinkSpeed, Machine};
use serde::Deserialize;

use rankine_job::{Fraction, NonNegative, Positive, Precision};

/// A machine file: the memory, rates and latencies of a machine. Keys that it omits have the value of its base.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(title = "Machine"))]
#[serde(deny_unknown_fields)]
struct MachineFile {
    /// The built-in machine.
    base: Base,
    /// The machine's name in reports.
    name: Option<String>,
    /// Memory of a rank.
    memory_gib: Option<Positive>,
    /// Rate of reads and writes of random rows.
    memory_gb_per_s: Option<Positive>,
    /// Rate of large matrix products.
    tflops: Option<Positive>,
    /// Time of a matrix product, in addition to its operations.
    matmul_latency_us: Option<NonNegative>,
    /// Time of a shard that is exchanged.
    shard_latency_us: Option<NonNegative>,
    /// Links between ranks of one node.
    #[serde(default)]
    within_nodes: LinkFile,
    /// Links between ranks of different nodes.
    #[serde(default)]
    between_nodes: LinkFile,
    /// Bytes of an element of a table: 1, 2, 4 or 8.
    #[cfg_attr(test, schemars(extend("enum" = ELEMENT_BYTES)))]
    table_element_bytes: Option<u64>,
    /// Bytes of an element of exchanged vectors, and of activations: 1, 2, 4 or 8.
    #[cfg_attr(test, schemars(extend("enum" = ELEMENT_BYTES)))]
    vector_element_bytes: Option<u64>,
    /// Bytes of an element that is all-reduced: 1, 2, 4 or 8.
    #[cfg_attr(test, schemars(extend("enum" = ELEMENT_BYTES)))]
    reduction_element_bytes: Option<u64>,
    /// Memory traffic for sorting one look-up by row, per shard.
    lookup_bytes: Option<NonNegative>,
    /// Share of communication that computation hides.
    overlap: Option<Fraction>,
}

/// The sizes that elements may have.
const ELEMENT_BYTES: [u64; 4] = [1, 2, 4, 8];

/// Links between ranks.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LinkFile {
    /// What a rank sends while it receives as much.
    gb_per_s: Option<Positive>,
    /// Time of an exchange, in addition to its bytes.
    latency_us: Option<NonNegative>,
    /// Share of the rate that all-reduces attain; above 0.
    reduction_efficiency: Option<Fraction>,
    /// Time of an all-reduce, in addition to its bytes.
    reduction_latency_us: Option<NonNegative>,
}

/// A built-in machine.
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum Base {
    /// A rank has one core of this machine, and its share of the memory.
    Cpu,
    /// A rank is an H200 GPU.
    H200,
}

impl Base {
    const NAMED: [(&'static str, Self); 2] = [("cpu", Self::Cpu), ("h200", Self::H200)];

    fn names() -> [&'static str; 2] {
        Self::NAMED.map(|(name, _)| name)
    }
}

/// What a file does not say about the built-in machines.
#[derive(Debug, Clone, Copy)]
struct Host {
    cpu_memory_bytes: u64,
    precision: Precision,
}

impl Host {
    fn machine(self, base: Base) -> Machine {
        match base {
            Base::Cpu => Machine::cpu(self.cpu_memory_bytes),
            Base::H200 => {
                Machine { vector_element_bytes: self.precision.vector_element_bytes(), ..Machine::h200() }
            }
        }
    }
}

/// Why there is no machine to plan for.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// There is no built-in machine of that name, and no file.
    #[error(
        "`{name}` is neither {} nor the path of a machine file{}",
        Base::names().join(" nor "), did_you_mean(name, Base::names())
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] NamedTextError),
    /// The file is not valid.
    #[error(transparent)]
    Invalid(#[from] Problem),
}

/// Returns a built-in machine, `cpu` or `h200`, or the one that a file describes. `cpu` has `cpu_memory_bytes` of
/// memory; GPUs compute in `precision`.
///
/// # Errors
/// [`MachineError`].
pub fn read_machine(
    name_or_path: &str,
    cpu_memory_bytes: u64,
    precision: Precision,
) -> Result<Machine, MachineError> {
    let host = Host { cpu_memory_bytes, precision };
    if let Some((_, base)) = Base::NAMED.into_iter().find(|(name, _)| *name == name_or_path) {
        return Ok(host.machine(base));
    }
    let path = Path::new(name_or_path);
    if path.extension().is_none() && !path.exists() {
        return Err(MachineError::Unknown { name: name_or_path.to_owned() });
    }
    let text = read_named_text("the machine file", path)?;
    Ok(parse(name_or_path, &text, host)?)
}

/// Parses the text of a machine file that is called `machine.toml` in messages; see [`read_machine`].
///
/// # Errors
/// What is wrong with it, with line and column.
pub fn parse_machine(text: &str, precision: Precision) -> Result<Machine, Problem> {
    let host = Host { cpu_memory_bytes: 0, precision };
    parse("machine.toml", text, host)
}

fn parse(name: &str, text: &str, host: Host) -> Result<Machine, Problem> {
    let document = Document::parse(name, text)?;
    let file: MachineFile = document.read()?;
    check(&file).map_err(|conflict| document.problem(&conflict))?;
    let base = host.machine(file.base);
    Ok(Machine {
        name: file.name.unwrap_or_else(|| base.name.clone()),
        memory_bytes: scaled(file.memory_gib, f64::from(1 << 30))
            .map_or(base.memory_bytes, |bytes| bytes as u64),
        memory_is_shared: base.memory_is_shared && file.memory_gib.is_none(),
        memory_bytes_per_s: scaled(file.memory_gb_per_s, 1e9).unwrap_or(base.memory_bytes_per_s),
        flops: scaled(file.tflops, 1e12).unwrap_or(base.flops),
        matmul_latency_s: seconds(file.matmul_latency_us).unwrap_or(base.matmul_latency_s),
        shard_latency_s: seconds(file.shard_latency_us).unwrap_or(base.shard_latency_s),
        within_nodes: link(&file.within_nodes, base.within_nodes),
        between_nodes: link(&file.between_nodes, base.between_nodes),
        table_element_bytes: file.table_element_bytes.unwrap_or(base.table_element_bytes),
        narrow_tables: base.narrow_tables,
        vector_element_bytes: file.vector_element_bytes.unwrap_or(base.vector_element_bytes),
        reduction_element_bytes: file.reduction_element_bytes.unwrap_or(base.reduction_element_bytes),
        lookup_bytes: file.lookup_bytes.map_or(base.lookup_bytes, NonNegative::get),
        frequent_sums: base.frequent_sums,
        pools_all: base.pools_all,
        overlap: file.overlap.map_or(base.overlap, Fraction::get),
    })
}

fn check(file: &MachineFile) -> Result<(), Conflict> {
    for (key, bytes) in [
        ("table_element_bytes", file.table_element_bytes),
        ("vector_element_bytes", file.vector_element_bytes),
        ("reduction_element_bytes", file.reduction_element_bytes),
    ] {
        if let Some(bytes) = bytes.filter(|bytes| !ELEMENT_BYTES.contains(bytes)) {
            return Err(Conflict::new(key, format!("`{key}`: expected 1, 2, 4 or 8, found {bytes}")));
        }
    }
    for (name, link) in [("within_nodes", &file.within_nodes), ("between_nodes", &file.between_nodes)] {
        if link.reduction_efficiency.map(Fraction::get) == Some(0.0) {
            let key = format!("{name}.reduction_efficiency");
            let message = format!("`{key}` is 0: all-reduces would never end");
            return Err(Conflict::new(key, message));
        }
    }
    Ok(())
}

/// Writes a machine as the text of a machine file; also returns the machine that this text describes, whose rates and
/// times are rounded to four digits. `base` names the built-in machine that has what files cannot express.
pub fn write_machine(machine: &Machine, base: &str, precision: Precision) -> (String, Machine) {
    // The number of bytes is exact: it is not rounded.
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let mut text = format!("base = {base:?}\nname = {:?}\nmemory_gib = {gib:?}\n", machine.name);
    let mut line = |key: &str, value: f64| text.push_str(&format!("{key} = {:?}\n", to_four_digits(value)));
    line("memory_gb_per_s", machine.memory_bytes_per_s / 1e9);
    line("tflops", machine.flops / 1e12);
    line("matmul_latency_us", machine.matmul_latency_s * 1e6);
    line("shard_latency_us", machine.shard_latency_s * 1e6);
    line("lookup_bytes", machine.lookup_bytes);
    line("overlap", machine.overlap);
    text.push_str(&format!("table_element_bytes = {}\n", machine.table_element_bytes));
    text.push_str(&format!("vector_element_bytes = {}\n", machine.vector_element_bytes));
    text.push_str(&format!("reduction_element_bytes = {}\n", machine.reduction_element_bytes));
    for (name, link) in [("within_nodes", machine.within_nodes), ("between_nodes", machine.between_nodes)] {
        text.push_str(&format!("\n[{name}]\n"));
        let mut line =
            |key: &str, value: f64| text.push_str(&format!("{key} = {:?}\n", to_four_digits(value)));
        line("gb_per_s", link.bytes_per_s / 1e9);
        line("latency_us", link.latency_s * 1e6);
        line("reduction_efficiency", link.reduction_efficiency);
        line("reduction_latency_us", link.reduction_latency_s * 1e6);
    }
    let host = Host { cpu_memory_bytes: machine.memory_bytes, precision };
    let read = parse("machine.toml", &text, host);
    (text, read.expect("the file was just written"))
}

fn to_four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn link(file: &LinkFile, base: LinkSpeed) -> LinkSpeed {
    LinkSpeed {
        bytes_per_s: scaled(file.gb_per_s, 1e9).unwrap_or(base.bytes_per_s),
        latency_s: seconds(file.latency_us).unwrap_or(base.latency_s),
        reduction_efficiency: file.reduction_efficiency.map_or(base.reduction_efficiency, Fraction::get),
        reduction_latency_s: seconds(file.reduction_latency_us).unwrap_or(base.reduction_latency_s),
    }
}

fn scaled(value: Option<Positive>, unit: f64) -> Option<f64> {
    value.map(|value| value.get() * unit)
}

fn seconds(us: Option<NonNegative>) -> Option<f64> {
    us.map(|us| us.get() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_schema;

    fn parse(text: &str, cpu_memory_bytes: u64) -> Result<Machine, Problem> {
        super::parse("m.toml", text, Host { cpu_memory_bytes, precision: Precision::Bf16 })
    }

    fn read_machine(name_or_path: &str) -> Result<Machine, String> {
        super::read_machine(name_or_path, 0, Precision::Bf16).map_err(|error| error.to_string())
    }

    #[test]
    fn values_of_a_file_replace_those_of_the_base() {
        let text = "base = \"h200\"\nname = \"h100\"\nmemory_gib = 80\nmemory_gb_per_s = 2700\n\
                    [between_nodes]\ngb_per_s = 22.5\nlatency_us = 30\n";
        let machine = parse(text, 0).unwrap();
        let base = Machine::h200();
        assert_eq!((machine.name.as_str(), machine.memory_bytes), ("h100", 80 << 30));
        assert_eq!((machine.memory_bytes_per_s, machine.flops), (2.7e12, base.flops));
        assert_eq!(machine.within_nodes, base.within_nodes);
        assert_eq!((machine.between_nodes.bytes_per_s, machine.between_nodes.latency_s), (22.5e9, 30e-6));
        assert_eq!(machine.between_nodes.reduction_efficiency, base.between_nodes.reduction_efficiency);
        assert_eq!(parse("base = \"cpu\"", 5).unwrap(), Machine::cpu(5));
    }

    #[test]
    fn every_key_is_read_in_its_unit() {
        let text = "
            base = \"cpu\"
            name = \"all\"
            memory_gib = 1.5
            memory_gb_per_s = 2
            tflops = 3
            matmul_latency_us = 4
            shard_latency_us = 5
            table_element_bytes = 1
            vector_element_bytes = 2
            reduction_element_bytes = 8
            lookup_bytes = 6
            overlap = 0.25
            within_nodes = { gb_per_s = 7, latency_us = 8, reduction_efficiency = 0.75, reduction_latency_us = 9 }
            between_nodes = { gb_per_s = 10, latency_us = 11, reduction_efficiency = 0.5, reduction_latency_us = 12 }
        ";
        let link = |gb: f64, us: f64, reduction_efficiency, reduction_us: f64| LinkSpeed {
            bytes_per_s: gb * 1e9,
            latency_s: us / 1e6,
            reduction_efficiency,
            reduction_latency_s: reduction_us / 1e6,
        };
        let expected = Machine {
            name: "all".into(),
            memory_bytes: 3 << 29,
            memory_is_shared: false,
            memory_bytes_per_s: 2e9,
            flops: 3e12,
            matmul_latency_s: 4e-6,
            shard_latency_s: 5e-6,
            table_element_bytes: 1,
            vector_element_bytes: 2,
            reduction_element_bytes: 8,
            lookup_bytes: 6.0,
            overlap: 0.25,
            within_nodes: link(7.0, 8.0, 0.75, 9.0),
            between_nodes: link(10.0, 11.0, 0.5, 12.0),
            ..Machine::cpu(100)
        };
        assert_eq!(parse(text, 100).unwrap(), expected);
        // Without `memory_gib`, the ranks of a CPU share the memory of the host.
        let shared = parse("base = \"cpu\"\ntflops = 1", 100).unwrap();
        assert_eq!((shared.name.as_str(), shared.memory_is_shared, shared.memory_bytes), ("cpu", true, 100));
    }

    #[test]
    fn vector_elements_have_the_size_of_the_precision() {
        use Precision::{Bf16, Fp8, Fp16, Fp32, Tf32};
        let bytes = [Fp32, Tf32, Bf16, Fp16, Fp8].map(|precision| {
            assert_eq!(super::read_machine("cpu", 7, precision).unwrap(), Machine::cpu(7));
            super::read_machine("h200", 0, precision).unwrap().vector_element_bytes
        });
        assert_eq!(bytes, [4, 4, 2, 2, 2]);
    }

    #[test]
    fn a_written_machine_is_read_back() {
        let machine = Machine {
            name: "4 x \"GPUs\"".into(),
            memory_bytes: 150_121_545_729,
            memory_bytes_per_s: 3.712_345_678e12,
            ..Machine::h200()
        };
        let (text, read) = write_machine(&machine, "h200", Precision::Bf16);
        assert_eq!(read, Machine { memory_bytes_per_s: 3.712e12, ..machine });
        assert_eq!(parse(&text, 0).unwrap(), read);
        assert_eq!(write_machine(&read, "h200", Precision::Bf16), (text, read));
    }

    /// The example of the guide.
    fn example() -> String {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/planning.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        let (_, rest) = guide.split_once("A machine file is TOML.").unwrap();
        rest.split("```").nth(1).and_then(|block| block.strip_prefix("toml\n")).unwrap().to_owned()
    }

    #[test]
    fn the_json_schema_says_what_the_types_say() {
        let schema = json_schema::schema::<MachineFile>("machine");
        json_schema::assert_valid(&schema);
        let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = json_schema::text(&schema);
        json_schema::assert_written(
            root,
            &json_schema::document("machine"),
            &text,
            "-p rankine-engine --lib planning::machine",
        );
        let (written, _) = write_machine(&Machine::h200(), "h200", Precision::Bf16);
        for right in [example(), written, "base = \"cpu\"".into()] {
            parse(&right, 0).unwrap();
            assert_eq!(json_schema::violation(&json_schema::json(&right), &schema), None, "{right}");
        }
        for wrong in [
            "base = \"h20\"",
            "tflops = 3",
            "base = \"cpu\"\ntflop = 3",
            "base = \"cpu\"\ntflops = 0",
            "base = \"cpu\"\noverlap = 1.5",
            "base = \"cpu\"\nvector_element_bytes = 3",
            "base = \"cpu\"\n[within_nodes]\nlatency_us = -1",
            "base = \"cpu\"\n[within_nodes]\nlatency_ms = 1",
        ] {
            parse(wrong, 0).unwrap_err();
            assert!(json_schema::violation(&json_schema::json(wrong), &schema).is_some(), "{wrong}");
        }
    }

    #[test]
    fn wrong_files_are_refused_with_the_key() {
        for (text, expected) in [
            ("base = \"h20\"", "m.toml:1:8: unknown value `h20` for `base`\n"),
            ("base = \"h20\"", "\n  = did you mean `h200`?\n  = known values: cpu, h200"),
            ("memory_gib = 3", "m.toml: missing key `base`"),
            ("base = \"cpu\"\ntflop = 3", "m.toml:2:1: unknown key `tflop`\n  |\n2 | tflop = 3\n  | ^^^^^\n"),
            ("base = \"cpu\"\n[within_nodes]\nlatency_ms = 3", "did you mean `latency_us`?"),
            ("base = \"cpu\"\ntflops = 0", "m.toml:2:10: `tflops`: expected a number above 0"),
            (
                "base = \"cpu\"\n[within_nodes]\nlatency_us = -1",
                "m.toml:3:14: `within_nodes.latency_us`: expected a number of 0 or more",
            ),
            (
                "base = \"cpu\"\n[within_nodes]\nreduction_efficiency = 0",
                "m.toml:3:24: `within_nodes.reduction_efficiency` is 0: all-reduces would never end",
            ),
            ("base = \"cpu\"\nlookup_bytes = -1", "expected a number of 0 or more"),
            ("base = \"cpu\"\nmemory_gib = inf", "found inf"),
            ("base = \"cpu\"\n[between_nodes]\nreduction_latency_us = nan", "found NaN"),
            ("base = \"cpu\"\noverlap = 1.5", "`overlap`: expected a number from 0 to 1, found 1.5"),
            (
                "base = \"cpu\"\nvector_element_bytes = 3",
                "m.toml:2:24: `vector_element_bytes`: expected 1, 2, 4 or 8, found 3",
            ),
        ] {
            let error = parse(text, 0).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let misspelt = read_machine("h20").unwrap_err();
        let expected = "`h20` is neither cpu nor h200 nor the path of a machine file: did you mean `h200`?";
        assert_eq!(misspelt, expected);
        assert!(
            read_machine("no/such.toml")
                .unwrap_err()
                .contains("cannot read the machine file no/such.toml: No such")
        );
        let endless = read_machine("/dev/zero").unwrap_err();
        assert!(endless.contains("cannot read the machine file: /dev/zero is a device"), "{endless}");
    }
}
