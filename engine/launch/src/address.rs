//! The address where processes meet.

use std::fmt;
use std::str::FromStr;

use rankine_base::InvalidValue;

/// A host's name and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, or an address without brackets.
    pub host: String,
    /// The TCP port that process 0 listens at.
    pub port: u16,
}

impl Address {
    /// The default port of PyTorch's launchers.
    pub(super) const PORT: u16 = 29500;
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Address {
    type Err = InvalidValue;

    /// `HOST`, `HOST:PORT` or `[IPv6]:PORT`.
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(rest))),
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(Self::PORT), str::parse);
        match port {
            Ok(port) if !host.is_empty() && port != 0 => Ok(Self { host: host.into(), port }),
            _ => Err(InvalidValue::is_not(text, "HOST, HOST:PORT or [IPv6]:PORT")),
        }
    }
}

/// The first host of a list as Slurm writes it: `gpu[03-07,11],login1` begins with `gpu03`.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            rest = "";
            break;
        }
        let (numbers, behind) = rest[at + 1..].split_once(']')?;
        host.push_str(numbers.split(['-', ',']).next()?);
        rest = behind;
    }
    host.push_str(rest);
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["node7:1234", "10.0.0.1:29500", "[fe80::1]:29501"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("node7".parse::<Address>().unwrap().to_string(), "node7:29500");
        assert_eq!("fe80::1".parse::<Address>().unwrap().to_string(), "[fe80::1]:29500");
        for text in ["", ":5", "node:", "node:0", "node:70000", "node:port", "[fe80::1]x"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("gpu1", "gpu1"),
            ("gpu1,gpu2", "gpu1"),
            ("gpu[03-07,11],login1", "gpu03"),
            ("gpu[3,5]", "gpu3"),
            ("rack[1-2]n[01-04]", "rack1n01"),
            ("a[2-4]-ib0,b1", "a2-ib0"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_host(""), None);
        assert_eq!(first_host("gpu[1-"), None);
    }
}
