//! The messages of HTTP: requests are parsed, responses become bytes.

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
}

impl<'a> Request<'a> {
    /// Splits the target of a request: `/path?query`, or `http://host/path?query`, which proxies may send.
    fn parse(target: &'a str) -> Option<Self> {
        let target = match target.strip_prefix("http://") {
            Some(rest) => &rest[rest.find('/')?..],
            None => target,
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        path.starts_with('/').then_some(Self { path, query })
    }
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
            match Request::parse(parsed.path.unwrap_or_default()) {
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
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "",
    }
}
