//! CollNet: sums by the switches of a network. NCCL has no implementation of its own; it loads a plugin, such as
//! the one for NVIDIA's SHARP.

use std::ffi::CStr;

use super::Attempt;
use super::library::LoadedLibrary;

/// The plugin's interface in versions of NCCL from 2.13 on.
const INTERFACES: [&CStr; 7] = [
    c"ncclCollNetPlugin_v11",
    c"ncclCollNetPlugin_v10",
    c"ncclCollNetPlugin_v9",
    c"ncclCollNetPlugin_v8",
    c"ncclCollNetPlugin_v7",
    c"ncclCollNetPlugin_v6",
    c"ncclCollNetPlugin_v5",
];

/// Why the network cannot sum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollNetMissing {
    /// NCCL is not found.
    #[error("NCCL is not found: {0}")]
    NoNccl(String),
    /// NCCL's communicators cannot be configured to use it.
    #[error("NCCL is older than 2.27: its version number is {version}")]
    OldNccl {
        /// The number that `ncclGetVersion` returns, such as 22605 for 2.26.5.
        version: i32,
    },
    /// `NCCL_NET_PLUGIN` disables plugins.
    #[error("NCCL_NET_PLUGIN is \"none\"")]
    Disabled,
    /// The plugin is not found, or cannot be loaded.
    #[error("{}", .0.why)]
    NoPlugin(Attempt),
    /// The plugin is for other purposes.
    #[error("{0} has no CollNet interface")]
    NoInterface(String),
    /// Another rank does not have it.
    #[error("rank {0} does not have it")]
    Elsewhere(usize),
}

/// Returns the file of the CollNet plugin that NCCL would load, which is loaded to look into it; or why there is none.
///
/// # Errors
/// The name that was tried, with the loader's message, or the lack of an interface for CollNet.
pub fn collnet_plugin() -> Result<String, CollNetMissing> {
    plugin(std::env::var("NCCL_NET_PLUGIN").ok().as_deref())
}

/// The same for a value of that variable.
fn plugin(chosen: Option<&str>) -> Result<String, CollNetMissing> {
    let chosen = chosen.filter(|name| !name.is_empty());
    if chosen == Some("none") {
        return Err(CollNetMissing::Disabled);
    }
    // The value of the variable is a part of the file's name, or the name.
    let names = match chosen {
        None => ["libnccl-net.so".to_owned()].to_vec(),
        Some(name) => [name.to_owned(), format!("libnccl-net-{name}.so")].to_vec(),
    };
    let mut missing = None;
    for name in names {
        match LoadedLibrary::open(name.clone()) {
            Err(attempt) => missing = Some(attempt),
            Ok(loaded) => {
                let interface = INTERFACES.into_iter().find(|name| loaded.address(name).is_some());
                let file = interface.map(|interface| loaded.file(interface));
                return file.ok_or(CollNetMissing::NoInterface(name));
            }
        }
    }
    Err(missing.map_or(CollNetMissing::Disabled, CollNetMissing::NoPlugin))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles a library with a variable of this name.
    fn library(dir: &std::path::Path, file: &str, symbol: &str) -> String {
        let (source, out) = (dir.join("plugin.c"), dir.join(file));
        std::fs::write(&source, format!("int {symbol} = 1;")).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&out).arg(&source);
        assert!(compiler.status().unwrap().success(), "cc makes a shared library");
        out.display().to_string()
    }

    #[test]
    fn only_a_plugin_with_collnet_is_one() {
        let dir = std::env::temp_dir().join(format!("rankine-collnet-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let sums = library(&dir, "libsums.so", "ncclCollNetPlugin_v8");
        let sends = library(&dir, "libsends.so", "ncclNetPlugin_v8");
        assert_eq!(plugin(Some(&sums)), Ok(sums));
        assert_eq!(plugin(Some(&sends)), Err(CollNetMissing::NoInterface(sends)));
        assert_eq!(plugin(Some("none")), Err(CollNetMissing::Disabled));
        let absent = plugin(Some("rankine-absent")).unwrap_err().to_string();
        assert!(absent.starts_with("libnccl-net-rankine-absent.so: cannot open"), "{absent}");
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(collnet_plugin(), plugin(std::env::var("NCCL_NET_PLUGIN").ok().as_deref()));
    }
}
