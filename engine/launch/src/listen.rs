//! The addresses that process 0 listens on: those that the other processes connect to, and no others.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use super::address::Address;
use super::error::MeetError;
use super::process_place::Spread;

/// Most addresses of one name that it listens on.
const ADDRESSES_MAX: usize = 16;

/// The listeners of process 0.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) sockets: Vec<TcpListener>,
    /// Why it listens on all addresses of the host, if it does.
    pub(super) everywhere: Option<String>,
}

impl Listeners {
    /// Listens on those addresses of this host that the name resolves to; on all, if none of them can be reached by
    /// others.
    ///
    /// # Errors
    /// [`MeetError::Listen`], for example if another program listens there.
    pub(super) fn at(address: &Address, spread: Spread) -> Result<Self, MeetError> {
        let failed = |source| MeetError::Listen { address: address.clone(), source };
        let resolved = (address.host.as_str(), address.port).to_socket_addrs().map(|found| {
            let mut addresses = Vec::new();
            found.for_each(|one| {
                if !addresses.contains(&one) {
                    addresses.push(one)
                }
            });
            addresses.truncate(ADDRESSES_MAX);
            addresses
        });
        let everywhere = match resolved {
            Err(error) => format!("`{}` cannot be resolved here ({error})", address.host),
            Ok(found) if is_misleading(&address.host, &found, spread) => format!(
                "`{}` resolves to {} here, which other hosts cannot reach (see /etc/hosts)",
                address.host,
                words(&found)
            ),
            Ok(found) => {
                let sockets = found.iter().filter_map(|&one| bind_own(one).transpose());
                let sockets: Vec<_> = sockets.collect::<io::Result<_>>().map_err(failed)?;
                if !sockets.is_empty() {
                    return Ok(Self { sockets, everywhere: None });
                }
                format!(
                    "`{}` resolves to {}, which is not an address of this host (a Kubernetes service or a router may \
                     forward it)",
                    address.host,
                    words(&found)
                )
            }
        };
        let sockets = bind_all(address.port).map_err(failed)?;
        Ok(Self { sockets, everywhere: Some(everywhere) })
    }

    /// The addresses, as text.
    pub(super) fn words(&self) -> String {
        words(&self.addresses())
    }

    /// Whether other hosts may reach it.
    pub(super) fn is_exposed(&self) -> bool {
        self.addresses().iter().any(|address| !is_loopback(address.ip()))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }
}

/// Whether the host name means this host here, but another address elsewhere: Debian's /etc/hosts maps the host's own
/// name to 127.0.1.1, and Kubeflow passes `localhost` only to process 0.
fn is_misleading(host: &str, resolved: &[SocketAddr], spread: Spread) -> bool {
    let loopback_alone = resolved.iter().all(|address| is_loopback(address.ip()));
    let means_loopback = match spread {
        Spread::OneNode => true,
        Spread::SeveralNodes => host.parse::<IpAddr>().is_ok(),
        Spread::Unknown => host.parse::<IpAddr>().is_ok() || is_localhost(host),
    };
    loopback_alone && !means_loopback
}

fn is_localhost(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    ["localhost", "ip6-localhost", "ip6-loopback"].contains(&host.as_str())
        || host.starts_with("localhost.")
        || host.ends_with(".localhost")
}

fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
    }
}

/// `None` if the address does not belong to this host.
fn bind_own(address: SocketAddr) -> io::Result<Option<TcpListener>> {
    match bind(address) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Ok(None),
        // The host has no IPv6.
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn bind_all(port: u16) -> io::Result<Vec<TcpListener>> {
    let v6 = bind_own((Ipv6Addr::UNSPECIFIED, port).into())?;
    match (v6, bind((Ipv4Addr::UNSPECIFIED, port).into())) {
        (v6, Ok(v4)) => Ok(v6.into_iter().chain([v4]).collect()),
        // It serves IPv4, too.
        (Some(v6), Err(_)) => Ok(vec![v6]),
        (None, Err(error)) => Err(error),
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn words(addresses: &[SocketAddr]) -> String {
    let words: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    fn at(host: &str, spread: Spread) -> Listeners {
        Listeners::at(&Address { host: host.into(), port: free_port() }, spread).unwrap()
    }

    #[test]
    fn loopback_means_loopback() {
        for host in ["127.0.0.1", "localhost", "127.0.0.2"] {
            for spread in [Spread::Unknown, Spread::OneNode] {
                let listeners = at(host, spread);
                assert!(!listeners.is_exposed() && listeners.everywhere.is_none(), "{listeners:?}");
            }
        }
        // An address leaves no doubt.
        assert!(!at("127.0.0.1", Spread::SeveralNodes).is_exposed());
    }

    #[test]
    fn an_address_of_another_host_is_replaced_by_all_of_this_one_and_a_reason() {
        // 192.0.2.0/24 is for documentation: nobody has it.
        for (host, words) in [
            ("192.0.2.7", "not an address of this host"),
            ("no-such-host.invalid", "cannot be resolved here"),
        ] {
            let listeners = at(host, Spread::Unknown);
            assert!(listeners.is_exposed());
            let why = listeners.everywhere.unwrap();
            assert!(why.contains(words) && why.contains(host), "{why}");
        }
        // What Kubeflow tells process 0.
        assert!(at("localhost", Spread::SeveralNodes).everywhere.unwrap().contains("/etc/hosts"));
    }

    #[test]
    fn a_name_that_means_another_host_elsewhere_is_found_out() {
        let [quirk, loopback, real] =
            ["127.0.1.1:1", "[::1]:1", "10.0.0.5:1"].map(|text| text.parse::<SocketAddr>().unwrap());
        for (host, resolved, spread, misleading) in [
            ("gpu1", &[quirk][..], Spread::Unknown, true),
            ("gpu1", &[quirk], Spread::SeveralNodes, true),
            ("gpu1", &[quirk], Spread::OneNode, false),
            ("gpu1", &[quirk, real], Spread::Unknown, false),
            ("gpu1", &[real], Spread::SeveralNodes, false),
            ("localhost", &[loopback], Spread::Unknown, false),
            ("localhost.localdomain", &[loopback], Spread::Unknown, false),
            ("localhost", &[loopback], Spread::SeveralNodes, true),
            ("127.0.1.1", &[quirk], Spread::SeveralNodes, false),
        ] {
            assert_eq!(is_misleading(host, resolved, spread), misleading, "{host} {resolved:?} {spread:?}");
        }
    }
}
