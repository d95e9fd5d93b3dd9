//! Figures where caches are.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rankine_cuda::calibrate::Figures;
use rankine_reader::publish::{create_folders, replace_file};
use serde::{Deserialize, Serialize};

use super::Gpus;

/// What a file of figures says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    gpu: String,
    count: usize,
    driver: String,
    rankine: String,
    figures: Figures,
}

impl Kept {
    fn of(gpus: &Gpus, figures: &Figures) -> Self {
        Self {
            gpu: gpus.name.clone(),
            count: gpus.count,
            driver: gpus.driver.clone(),
            rankine: env!("CARGO_PKG_VERSION").into(),
            figures: figures.clone(),
        }
    }
}

/// The figures that were kept of GPUs, where they are of these, this driver and this version.
pub fn recall(gpus: &Gpus) -> Option<Figures> {
    recall_from(&folder()?, gpus)
}

pub(super) fn keep(gpus: &Gpus, figures: &Figures) {
    let kept = match folder() {
        Some(folder) => keep_in(&folder, gpus, figures),
        None => Err(io::Error::other("neither XDG_CACHE_HOME nor HOME says where")),
    };
    if let Err(error) = kept {
        tracing::warn!(%error, "what was measured of the GPUs cannot be kept, and will be measured each time");
    }
}

fn recall_from(folder: &Path, gpus: &Gpus) -> Option<Figures> {
    let text = fs::read(folder.join(file_name(gpus))).ok()?;
    let kept: Kept = serde_json::from_slice(&text).ok()?;
    (Kept::of(gpus, &kept.figures) == kept).then_some(kept.figures)
}

fn keep_in(folder: &Path, gpus: &Gpus, figures: &Figures) -> io::Result<()> {
    create_folders(folder).map_err(io::Error::other)?;
    let text = serde_json::to_string_pretty(&Kept::of(gpus, figures)).expect("figures are plain data") + "\n";
    replace_file(&folder.join(file_name(gpus)), text.as_bytes()).map_err(io::Error::other)
}

/// `$XDG_CACHE_HOME/rankine`, by default `~/.cache/rankine`.
fn folder() -> Option<PathBuf> {
    let given = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
    Some(caches.join("rankine"))
}

fn file_name(gpus: &Gpus) -> String {
    let Gpus { name, count, driver } = gpus;
    let name = format!("{count}x-{name}-driver-{driver}-rankine-{}", env!("CARGO_PKG_VERSION"));
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    name.to_lowercase().chars().map(plain).collect::<String>() + ".json"
}

/// The version of the kernel's driver, or where the system does not tell it, of CUDA.
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
    use super::*;

    #[test]
    fn what_is_kept_is_of_the_same_gpus_alone() {
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
        let gpus = Gpus { name: "Some GPU/2".into(), count: 2, driver: "580.1".into() };
        assert_eq!(recall_from(folder.path(), &gpus), None);
        keep_in(folder.path(), &gpus, &figures).unwrap();
        assert_eq!(recall_from(folder.path(), &gpus), Some(figures.clone()));
        for other in [
            Gpus { count: 4, ..gpus.clone() },
            Gpus { driver: "581.0".into(), ..gpus.clone() },
            Gpus { name: "Some GPU 2".into(), ..gpus.clone() },
        ] {
            assert_eq!(recall_from(folder.path(), &other), None);
        }
        // What is damaged is measured anew.
        fs::write(folder.path().join(file_name(&gpus)), "{").unwrap();
        assert_eq!(recall_from(folder.path(), &gpus), None);
    }
}
