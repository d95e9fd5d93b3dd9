//! The build that runs, as `engine/build` found it out.

use std::sync::LazyLock;

use rankine_base::build::Build;

/// Its file is read once.
static HERE: LazyLock<Build> = LazyLock::new(|| compiled().identified());

/// The build that runs.
pub fn here() -> &'static Build {
    &HERE
}

/// The build that runs, without the checksum of its file.
pub fn compiled() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: Some(env!("RANKINE_BUILD_COMMIT").to_owned()).filter(|commit| !commit.is_empty()),
        dirty: env!("RANKINE_BUILD_DIRTY") == "true",
        features: env!("RANKINE_BUILD_FEATURES").split_terminator(',').map(Into::into).collect(),
        target: env!("RANKINE_BUILD_TARGET").into(),
        rustc: env!("RANKINE_BUILD_RUSTC").into(),
        checksum: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_is_known() {
        let here = here();
        assert_eq!(here.version, env!("CARGO_PKG_VERSION"));
        assert!(here.features.contains(&"test-hooks".to_owned()), "{:?}", here.features);
        assert!(here.rustc.starts_with("1.") && here.target.contains("linux"), "{here:?}");
        assert_eq!(here.checksum.is_none(), here.commit.is_some() && !here.dirty);
    }
}
