//! Records the build: the commit of the sources, the features, the target and the compiler (`engine/src/build.rs`).

// cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::env;
use std::path::PathBuf;
use std::process::Command;

mod origin;

use origin::Origin;

/// The features that a build may have.
const FEATURES: [&str; 6] = ["arrow", "cloud", "cuda", "parquet", "test-hooks", "zstd"];

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let root = origin::root(&package);
    for path in origin::inputs(root) {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    let Origin { commit, dirty } = Origin::of(root);
    let has = |feature: &&str| {
        env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase().replace('-', "_"))).is_some()
    };
    let features: Vec<_> = FEATURES.into_iter().filter(has).collect();
    for (name, value) in [
        ("COMMIT", commit.unwrap_or_default()),
        ("DIRTY", dirty.to_string()),
        ("FEATURES", features.join(",")),
        ("TARGET", variable("TARGET")),
        ("RUSTC", compiler(&variable("RUSTC"))),
    ] {
        println!("cargo::rustc-env=RANKINE_BUILD_{name}={value}");
    }
}

/// The version of the compiler, such as `1.95.0 (59807616e 2026-04-14)`.
fn compiler(rustc: &str) -> String {
    let output = Command::new(rustc).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.trim();
    version.strip_prefix("rustc ").unwrap_or(if version.is_empty() { "unknown" } else { version }).to_owned()
}
