//! `[metrics]`: where the metrics of a training can be watched.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use rankine_embedding::LocalRank;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// `[metrics]`: where the metrics of a training can be watched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Address on which each process serves its metrics to Prometheus: `"127.0.0.1:9464"`, or only a port of the
    /// loopback interface. The processes of a host take consecutive ports, in the order of their local ranks. Without
    /// it, nothing listens.
    pub listen: Option<ListenAddress>,
    /// File to which the metrics are written every 15 seconds and at the end, for the textfile collector of
    /// Prometheus's node exporter, which reads files named `*.prom`. With several processes, all but the first one
    /// insert their rank before the extension.
    pub textfile: Option<PathBuf>,
    /// Whether to write event files for TensorBoard into the folder `tensorboard` of the run: the losses, learning
    /// rates and evaluations of `metrics.jsonl`.
    pub tensorboard: bool,
    /// Whether to write MLPerf's log of the training into the file `mllog.log` of the run.
    pub mllog: bool,
}

/// An address to listen on. Only a port means that port of the loopback interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(SocketAddr);

impl ListenAddress {
    const EXPECTED: &str = "an IP address and a port, such as 127.0.0.1:9464, or a port";

    /// The address of the process with this local rank; an unspecified port (0) stays so. `None` if there is no such
    /// port.
    pub fn of_local_rank(self, local_rank: LocalRank) -> Option<SocketAddr> {
        let Self(mut address) = self;
        if address.port() != 0 {
            let port = usize::from(address.port()) + local_rank.0;
            address.set_port(u16::try_from(port).ok()?);
        }
        Some(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let parsed = text.parse::<u16>().map(port).or_else(|_| text.parse::<SocketAddr>());
        parsed.map(Self).map_err(|_| format!("expected {}", Self::EXPECTED))
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AddressVisitor;

        impl Visitor<'_> for AddressVisitor {
            type Value = ListenAddress;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ListenAddress::EXPECTED)
            }

            fn visit_u64<E: Error>(self, port: u64) -> Result<ListenAddress, E> {
                self.visit_str(&port.to_string())
            }

            fn visit_i64<E: Error>(self, port: i64) -> Result<ListenAddress, E> {
                self.visit_str(&port.to_string())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ListenAddress, E> {
                text.parse().map_err(|_| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(AddressVisitor)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for ListenAddress {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ListenAddress".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_the_loopback_interface() {
        let address = |text: &str| text.parse::<ListenAddress>().map(|address| address.to_string());
        assert_eq!(address("9464").as_deref(), Ok("127.0.0.1:9464"));
        assert_eq!(address("0.0.0.0:80").as_deref(), Ok("0.0.0.0:80"));
        assert_eq!(address("[::1]:9464").as_deref(), Ok("[::1]:9464"));
        for wrong in ["", "65536", "-1", "localhost:9464", "127.0.0.1", ":9464", "http://127.0.0.1:9464"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processes_of_a_host_take_consecutive_ports() {
        let address: ListenAddress = "127.0.0.1:65533".parse().expect("an address");
        let port = |rank| address.of_local_rank(rank).map(|address| address.port());
        assert_eq!([0, 2, 3].map(LocalRank).map(port), [Some(65533), Some(65535), None]);
        let any: ListenAddress = "0".parse().expect("a port");
        assert_eq!(any.of_local_rank(LocalRank(7)).map(|address| address.port()), Some(0));
    }
}
