//! The messages of HTTP: requests are parsed, responses become bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use httparse::{EMPTY_HEADER, Error, Status};

/// The most bytes of a request's head: its first line and its headers.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// The most headers of a request.
const HEADERS_MAX: usize = 64;

/// The target of a GET or HEAD request, as the client sent it: escapes such as `%20` are not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The path, which starts with `/`.
    pub path: &'a str,
    /// The text after the first `?`; empty if there is none.
    pub query: &'a str,
    /// The host whose server the client means; `None` if it does not say, as no browser does.
    pub host: Option<Host<'a>>,
}

impl<'a> Request<'a> {
    /// Reads the target of a request: `/path?query`, or `http://host/path?query`, which proxies may send. The host of
    /// such a target replaces that of the header `Host`.
    fn parse(parsed: &httparse::Request<'_, 'a>) -> Option<Self> {
        let header = host_header(parsed)?;
        let target = parsed.path?;
        let (authority, target) = match target.split_at_checked(SCHEME.len()) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(SCHEME) => rest.split_at(rest.find('/')?),
            _ => (header, target),
        };
        let host = if authority.is_empty() { None } else { Some(Host::parse(authority)?) };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        path.starts_with('/').then_some(Self { path, query, host })
    }
}

const SCHEME: &str = "http://";

/// Returns the value of the header `Host`, or nothing if there is none: every browser sends it, but some probes do not.
/// `None` if there are several: which one counts would be a guess.
fn host_header<'a>(parsed: &httparse::Request<'_, 'a>) -> Option<&'a str> {
    let mut values = parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    match (values.next(), values.next()) {
        (Some(header), None) => str::from_utf8(header.value).ok().map(str::trim_ascii),
        (None, _) => Some(""),
        _ => None,
    }
}

/// The host of a URL, without its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host<'a> {
    /// An IP address.
    Address(IpAddr),
    /// A name, of ASCII letters in either case, digits, `-`, `.` and `_`, without a final dot.
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// Parses `HOST`, `HOST:PORT`, `[IPv6]` or `[IPv6]:PORT`.
    fn parse(authority: &'a str) -> Option<Self> {
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                // Behind `%` is the interface of a link-local address.
                let address = address.split_once('%').map_or(address, |(address, _)| address);
                (Self::Address(IpAddr::V6(address.parse::<Ipv6Addr>().ok()?)), port)
            }
            None => {
                let (name, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
                let name = name.strip_suffix('.').unwrap_or(name);
                let address = name.parse::<Ipv4Addr>().map(|address| Self::Address(IpAddr::V4(address)));
                (address.ok().or_else(|| is_host_name(name).then_some(Self::Name(name)))?, port)
            }
        };
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(host)
    }
}

/// Whether a text consists of the characters of host names, `_` included, which names of containers may have.
fn is_host_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_name)
}

/// A response. The server adds the headers, among them `Content-Security-Policy: default-src 'self'`,
/// `X-Content-Type-Options: nosniff` and `Cache-Control: no-store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code, such as 200.
    pub status: u16,
    /// The value of the header `Content-Type`.
    pub content_type: &'static str,
    /// The body, which the server leaves out when it answers a HEAD request.
    pub body: Vec<u8>,
}

impl Response {
    /// Creates a response of plain text.
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into().into_bytes() }
    }

    /// Creates a response whose text is the name of the status.
    pub(super) fn of_status(status: u16) -> Self {
        Self::text(status, format!("{}\n", reason(status)))
    }

    /// Returns the bytes to send, as one piece: a head that is sent alone can wait for a delayed acknowledgement.
    fn into_bytes(self, body: Body) -> Vec<u8> {
        let Self { status, content_type, body: content } = self;
        let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status} {}\r\n\
             Content-Type: {content_type}\r\n\
             Content-Length: {}\r\n\
             {allow}\
             Cache-Control: no-store\r\n\
             Content-Security-Policy: default-src 'self'\r\n\
             X-Content-Type-Options: nosniff\r\n\
             Connection: close\r\n\r\n",
            reason(status),
            content.len(),
        );
        match body {
            Body::Sent => [head.as_bytes(), &content].concat(),
            Body::LeftOut => head.into_bytes(),
        }
    }
}

/// Whether the body of a response is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Sent,
    LeftOut,
}

/// Returns the answer to the bytes that a client has sent; `None` as long as they are only a part of a request.
///
/// At most [`HEAD_BYTES_MAX`] bytes may be passed; the answer to that many is never `None`.
pub(super) fn answer(received: &[u8], routes: impl FnOnce(&Request<'_>) -> Response) -> Option<Vec<u8>> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let mut body = Body::Sent;
    let response = match parsed.parse(received) {
        Ok(Status::Partial) if received.len() < HEAD_BYTES_MAX => return None,
        Ok(Status::Partial) | Err(Error::TooManyHeaders) => Response::of_status(431),
        Err(_) => Response::of_status(400),
        Ok(Status::Complete(_)) => {
            let method = parsed.method.unwrap_or_default();
            if method == "HEAD" {
                body = Body::LeftOut;
            }
            match Request::parse(&parsed) {
                _ if !["GET", "HEAD"].contains(&method) => Response::of_status(405),
                None => Response::of_status(400),
                Some(request) => routes(&request),
            }
        }
    };
    Some(response.into_bytes(body))
}

/// Returns the name of a status. Clients ignore it, so it may be empty.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "",
    }
}
