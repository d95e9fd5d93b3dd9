//! Stores measured figures in the user's cache folder.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rankine_base::build::Build;
use rankine_base::publish::{create_folders, replace_file};
use rankine_cuda::calibration::Figures;
use serde::{Deserialize, Serialize};

use super::Gpus;

/// The content of a cache file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CachedFigures {
    gpu: String,
    count: usize,
    driver: String,
    build: Build,
    figures: Figures,
}

impl CachedFigures {
    fn of(gpus: &Gpus, figures: &Figures) -> Self {
        Self {
            gpu: gpus.name.clone(),
            count: gpus.count,
            driver: gpus.driver.clone(),
            build: gpus.build.clone(),
            figures: figures.clone(),
        }
    }
}

/// Returns the cached figures, if they were measured on these GPUs with this driver and this build of Rankine.
pub fn cached(gpus: &Gpus) -> Option<Figures> {
    read_from(&folder()?, gpus)
}

pub(super) fn store(gpus: &Gpus, figures: &Figures) {
    let stored = match folder() {
        Some(folder) => write_into(&folder, gpus, figures),
        None => Err(io::Error::other("neither XDG_CACHE_HOME nor HOME is set")),
    };
    if let Err(error) = stored {
        tracing::warn!(%error, "cannot cache the measured speeds of the GPUs, so they will be measured again for each \
        training run");
    }
}

fn read_from(folder: &Path, gpus: &Gpus) -> Option<Figures> {
    let text = fs::read(folder.join(file_name(gpus))).ok()?;
    let kept: CachedFigures = serde_json::from_slice(&text).ok()?;
    let is_own = CachedFigures::of(gpus, &kept.figures) == kept && kept.build.is_same(&gpus.build);
    is_own.then_some(kept.figures)
}

fn write_into(folder: &Path, gpus: &Gpus, figures: &Figures) -> io::Result<()> {
    create_folders(folder).map_err(io::Error::other)?;
    let text = serde_json::to_string_pretty(&CachedFigures::of(gpus, figures))
        .expect("figures are plain data")
        + "\n";
    replace_file(&folder.join(file_name(gpus)), text.as_bytes()).map_err(io::Error::other)
}

/// Returns `$XDG_CACHE_HOME/rankine`, by default `~/.cache/rankine`.
fn folder() -> Option<PathBuf> {
    let given = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
    Some(caches.join("rankine"))
}

/// One file per version, so that builds of one version replace each other's figures.
fn file_name(gpus: &Gpus) -> String {
    let Gpus { name, count, driver, .. } = gpus;
    let name = format!("{count}x-{name}-driver-{driver}-rankine-{}", env!("CARGO_PKG_VERSION"));
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    name.to_lowercase().chars().map(plain).collect::<String>() + ".json"
}

/// Returns the version of the kernel driver, or of CUDA if the system does not report the former.
pub(super) fn driver_version() -> String {
    let text = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    if let Some(version) = text.split_whitespace().find(is_version) {
        return version.into();
    }
    match rankine_cuda::probe::probe().driver {
        rankine_cuda::probe::Presence::Found(driver) => {
            driver.library.version.map_or("unknown".into(), |version| format!("cuda-{version}"))
        }
        rankine_cuda::probe::Presence::Missing(_) => "unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use rankine_base::sealed::Checksum;

    use super::*;

    #[test]
    fn cached_figures_are_used_for_the_same_gpus_only() {
        let folder = tempfile::tempdir().unwrap();
        let figures = Figures {
            copy_bytes_per_s: 1.5e12,
            gather_bytes_per_s: 1.25e12,
            product_flops_per_s: 7e14,
            kernel_s: 2e-6,
            upload_bytes_per_s: 5e10,
            upload_all_bytes_per_s: 4e10,
            links: None,
        };
        let build = Build {
            version: "0.1.0".into(),
            commit: Some("1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d".into()),
            dirty: false,
            features: vec!["cuda".into()],
            target: "x86_64-unknown-linux-gnu".into(),
            rustc: "1.95.0".into(),
            checksum: None,
        };
        let gpus = Gpus { name: "Some GPU/2".into(), count: 2, driver: "580.1".into(), build: build.clone() };
        assert_eq!(read_from(folder.path(), &gpus), None);
        write_into(folder.path(), &gpus, &figures).unwrap();
        assert_eq!(read_from(folder.path(), &gpus), Some(figures.clone()));
        let rebuilt = Build { dirty: true, checksum: Some(Checksum(1)), ..build };
        let of_another = Gpus { build: rebuilt.clone(), ..gpus.clone() };
        assert_eq!(read_from(folder.path(), &of_another), None, "of another build");
        // Nobody knows whether this is the same code as before.
        let unknown = Gpus { build: Build { checksum: None, ..rebuilt }, ..gpus.clone() };
        write_into(folder.path(), &unknown, &figures).unwrap();
        assert_eq!(read_from(folder.path(), &unknown), None);
        write_into(folder.path(), &gpus, &figures).unwrap();
        for other in [
            Gpus { count: 4, ..gpus.clone() },
            Gpus { driver: "581.0".into(), ..gpus.clone() },
            Gpus { name: "Some GPU 2".into(), ..gpus.clone() },
        ] {
            assert_eq!(read_from(folder.path(), &other), None);
        }
        // A damaged file counts as missing.
        fs::write(folder.path().join(file_name(&gpus)), "{").unwrap();
        assert_eq!(read_from(folder.path(), &gpus), None);
    }
}
