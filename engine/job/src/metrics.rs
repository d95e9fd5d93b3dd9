//! `[metrics]`: where the metrics of a training can be watched.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;

use rankine_base::InvalidValue;
use rankine_topology::LocalProcess;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

/// `[metrics]`: where the metrics of a training can be watched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Address on which each process serves its metrics to Prometheus and the live page: `"127.0.0.1:9464"`, a name of
    /// the host with a port, or only a port of the loopback interface. The live page answers to that name, to IP
    /// addresses and to `localhost`. The processes of a host take consecutive ports, in their order. Without it,
    /// nothing listens.
    pub listen: Option<ListenAddress>,
    /// File to which the metrics are written every 15 seconds and at the end, for the textfile collector of
    /// Prometheus's node exporter, which reads files named `*.prom`. With several processes, all but the first one
    /// insert their number before the extension.
    pub textfile: Option<PathBuf>,
    /// Whether to write event files for TensorBoard into the folder `tensorboard` of the run: the losses, learning
    /// rates and evaluations of `metrics.jsonl`.
    pub tensorboard: bool,
    /// Whether to write MLPerf's log of the training into the file `mllog.log` of the run.
    pub mllog: bool,
}

/// An address to listen on. Only a port means that port of the loopback interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress(Listen);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Listen {
    Address(SocketAddr),
    Name { name: String, port: u16 },
}

impl ListenAddress {
    const EXPECTED: &str = "an IP address or a host name with a port, such as 127.0.0.1:9464, or a port";

    /// The address of the process with this number on its host; an unspecified port (0) stays so. `None` if there is no
    /// such port.
    pub fn of_process(&self, local: LocalProcess) -> Option<Self> {
        let Self(mut listen) = self.clone();
        let port = self.port();
        if port != 0 {
            let port = u16::try_from(usize::from(port) + local.0).ok()?;
            match &mut listen {
                Listen::Address(address) => address.set_port(port),
                Listen::Name { port: own, .. } => *own = port,
            }
        }
        Some(Self(listen))
    }

    fn port(&self) -> u16 {
        match &self.0 {
            Listen::Address(address) => address.port(),
            Listen::Name { port, .. } => *port,
        }
    }

    /// The host's name, if that was given instead of an address.
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Listen::Address(_) => None,
            Listen::Name { name, .. } => Some(name),
        }
    }

    /// Listens; a name is looked up.
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind(&self) -> io::Result<TcpListener> {
        match &self.0 {
            Listen::Address(address) => TcpListener::bind(address),
            Listen::Name { name, port } => TcpListener::bind((name.as_str(), *port)),
        }
    }
}

/// Parses a host's name and a port.
fn named(text: &str) -> Option<Listen> {
    let (name, port) = text.rsplit_once(':')?;
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let is_of_label = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_of_label)
    };
    // A name whose last part is a number is a misspelt address.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = name.split('.').all(is_label) && !name.rsplit('.').next().is_some_and(is_number);
    is_name.then_some(Listen::Name { name: name.to_owned(), port: port.parse().ok()? })
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Listen::Address(address) => address.fmt(f),
            Listen::Name { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let port = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let address = text.parse::<u16>().map(port).or_else(|_| text.parse::<SocketAddr>());
        let listen = address.ok().map(Listen::Address).or_else(|| named(text));
        listen.map(Self).ok_or_else(|| InvalidValue::expected(text, Self::EXPECTED))
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
        for wrong in ["", "65536", "-1", "localhost", "127.0.0.1", ":9464", "http://127.0.0.1:9464"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_of_the_host_is_kept() {
        for (text, name, port) in [
            ("gpu-7:9464", "gpu-7", 9464),
            ("Gpu7.Example.org.:80", "Gpu7.Example.org", 80),
            ("h_1:0", "h_1", 0),
        ] {
            let address: ListenAddress = text.parse().expect("an address");
            assert_eq!((address.name(), address.port()), (Some(name), port));
            assert_eq!(address.to_string(), format!("{name}:{port}"));
        }
        for text in ["127.0.0.1:9464", "[::1]:9464", "9464"] {
            assert_eq!(text.parse::<ListenAddress>().expect("an address").name(), None);
        }
        for wrong in [
            "gpu7:",
            "gpu7:70000",
            "gpu 7:1",
            "-gpu7:1",
            "a..b:1",
            ".:1",
            "256.0.0.1:1",
            "1:2",
            "a/b:1",
            "a:b:1",
        ] {
            assert!(wrong.parse::<ListenAddress>().is_err(), "{wrong}");
        }
        let local: ListenAddress = "localhost:0".parse().expect("an address");
        let bound = local.bind().and_then(|listener| listener.local_addr()).expect("it can be bound");
        assert!(bound.ip().is_loopback(), "{bound}");
    }

    #[test]
    fn processes_of_a_host_take_consecutive_ports() {
        let address: ListenAddress = "127.0.0.1:65533".parse().expect("an address");
        let port = |local| address.of_process(local).map(|address| address.port());
        assert_eq!([0, 2, 3].map(LocalProcess).map(port), [Some(65533), Some(65535), None]);
        let named: ListenAddress = "gpu7:9464".parse().expect("an address");
        assert_eq!(
            named.of_process(LocalProcess(2)).map(|address| address.to_string()),
            Some("gpu7:9466".into())
        );
        let any: ListenAddress = "0".parse().expect("a port");
        assert_eq!(any.of_process(LocalProcess(7)).map(|address| address.port()), Some(0));
    }
}
