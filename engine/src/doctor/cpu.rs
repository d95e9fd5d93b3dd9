//! The CPU, as the operating system describes it.

use std::fs;

use serde::Serialize;

/// The CPU, as far as this process may use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The product's name.
    pub model: String,
    /// Hardware threads that affinity and cgroup allow this process to use.
    pub available_threads: usize,
    /// Instruction sets that speed up matrix products.
    pub features: Vec<Feature>,
}

/// An instruction set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// Whether the CPU has it and the operating system enables it.
    pub present: bool,
}

pub(super) fn cpu(available_threads: usize) -> Cpu {
    let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| cpu_model(&text));
    Cpu {
        model: model.unwrap_or_else(|| format!("unknown CPU model ({})", std::env::consts::ARCH)),
        available_threads,
        features: features(),
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<Feature> {
    let feature = |name, present| Feature { name, present };
    vec![
        feature("avx2", is_x86_feature_detected!("avx2")),
        feature("fma", is_x86_feature_detected!("fma")),
        feature("f16c", is_x86_feature_detected!("f16c")),
        feature("avx512f", is_x86_feature_detected!("avx512f")),
        feature("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        feature("amx_bf16", rankine_cpu::has_amx()),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<Feature> {
    Vec::new()
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_cpu_is_parsed() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Processor @ 2 GHz\nflags\t\t: fpu\n";
        assert_eq!(cpu_model(cpuinfo).as_deref(), Some("A Processor @ 2 GHz"));
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }
}
