//! `[network]`: how nodes communicate.

use serde::Deserialize;

/// `[network]`: how nodes communicate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Whether the switches between nodes sum the gradients of dense parameters (NCCL's CollNet, with NVIDIA's SHARP).
    /// Only GPUs on several nodes use it. The sums may be rounded differently.
    pub collnet: CollNet,
}

/// Whether the network sums the gradients of dense parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum CollNet {
    /// The GPUs sum them, as by NCCL's default.
    #[default]
    Off,
    /// The network, if NCCL and a plugin for CollNet are installed; otherwise the GPUs.
    Auto,
    /// The network; an error if NCCL or the plugin for CollNet is missing.
    Require,
}

impl CollNet {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Require => "require",
        }
    }
}
