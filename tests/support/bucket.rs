//! An object store for tests, on the loopback: the part of S3 that Rankine uses, with faults.
//!
//! It serves the files below a folder as the objects of a bucket: `GET` with `Range` and `If-Match`, `HEAD`,
//! `ListObjectsV2`, `PUT`, and multipart uploads, whose parts lie beside the folder until they are complete.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The name of the bucket.
pub(crate) const BUCKET: &str = "clicks";
/// The secret of the client, which must appear nowhere.
pub(crate) const SECRET: &str = "wJalrXUtnFEMI-hunter2-K7MDENG";

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An answer with this status, and the name of an error.
    Status(u16, &'static str),
    /// The body ends early, and the connection with it.
    Truncated,
    /// No answer.
    Closed,
    /// An answer that comes later than the client waits.
    Late(Duration),
    /// A whole answer with one wrong bit.
    Flipped,
}

/// Decides by the number of a request, from 0, and by method and path: `GET /clicks/data/dataset.json`.
type Faults = Box<dyn Fn(usize, &str) -> Option<Fault> + Send + Sync>;

/// A request, as tests look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) status: u16,
}

struct Shared {
    folder: PathBuf,
    faults: Faults,
    requests: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
    uploads: Mutex<BTreeMap<String, BTreeMap<u32, Vec<u8>>>>,
    stop: AtomicBool,
}

/// A running store; it ends when dropped.
pub(crate) struct Bucket {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Bucket {
    /// Serves the files below a folder.
    pub(crate) fn of(folder: &Path) -> Self {
        Self::with_faults(folder, |_, _| None)
    }

    pub(crate) fn with_faults(
        folder: &Path,
        faults: impl Fn(usize, &str) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback has a port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            faults: Box::new(faults),
            requests: AtomicUsize::new(0),
            seen: Mutex::default(),
            uploads: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if of_thread.stop.load(Ordering::Relaxed) {
                    break;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&of_thread)) else { continue };
                thread::spawn(move || while serve_one(&stream, &shared) {});
            }
        });
        Self { address, shared }
    }

    /// Returns the url of an object or a folder.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("s3://{BUCKET}/{path}")
    }

    /// Lets a command find the store, with its credentials in the environment.
    pub(crate) fn set<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("AWS_ENDPOINT", format!("http://{}", self.address))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("RANKINE_STORE_RETRY_SECONDS", "20")
    }

    /// Returns the requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("no thread panics").clone()
    }

    /// Returns the number of requests of a method for a path that contains a text.
    pub(crate) fn count(&self, method: &str, text: &str) -> usize {
        self.seen().iter().filter(|seen| seen.method == method && seen.path.contains(text)).count()
    }

    /// Returns the number of uploads with parts that were neither completed nor aborted. One without parts is begun
    /// when the answer to the first attempt is lost.
    pub(crate) fn open_uploads(&self) -> usize {
        self.shared
            .uploads
            .lock()
            .expect("no thread panics")
            .values()
            .filter(|parts| !parts.is_empty())
            .count()
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The thread that accepts looks only when somebody connects.
        let _ = TcpStream::connect(self.address);
    }
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn of(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    fn error(status: u16, code: &str) -> Self {
        Self::of(status, format!("<Error><Code>{code}</Code><Message>for {SECRET}</Message></Error>"))
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }
}

/// Answers a request, and returns whether the connection stays.
fn serve_one(stream: &TcpStream, shared: &Shared) -> bool {
    let Some(request) = read_request(stream) else { return false };
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let fault = (shared.faults)(number, &format!("{} {}", request.method, request.path));
    let mut reply = match fault {
        Some(Fault::Status(status, code)) => Reply::error(status, code),
        _ => shared.answer(&request),
    };
    if let Some(Fault::Late(wait)) = fault {
        thread::sleep(wait);
    }
    let seen = Seen { method: request.method.clone(), path: request.path.clone(), status: reply.status };
    shared.seen.lock().expect("no thread panics").push(seen);
    let mut head = format!("HTTP/1.1 {} Test\r\n", reply.status);
    let is_head = request.method == "HEAD";
    if !reply.headers.iter().any(|(name, _)| *name == "Content-Length") {
        reply = {
            let len = reply.body.len();
            reply.with("Content-Length", len)
        };
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let mut out = stream;
    let mut body = if is_head { Vec::new() } else { reply.body };
    match fault {
        Some(Fault::Closed) => return false,
        Some(Fault::Truncated) => body.truncate(body.len() / 2),
        Some(Fault::Flipped) if !body.is_empty() => {
            let at = body.len() / 2;
            body[at] ^= 1;
        }
        _ => {}
    }
    let sent = out.write_all(head.as_bytes()).and_then(|()| out.write_all(&body));
    sent.is_ok() && fault != Some(Fault::Truncated)
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (decoded(name), decoded(value))).collect();
    Some(Request { method, path: decoded(path), query, headers, body })
}

/// Decodes `%3D`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, code.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).expect("names are UTF-8")
}

/// A tag of a file, which changes whenever it is written.
fn etag(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let of = fs::metadata(path).expect("it is there");
    format!("\"{:x}-{:x}-{:x}{:09x}\"", of.len(), of.ino(), of.mtime(), of.mtime_nsec())
}

impl Shared {
    fn answer(&self, request: &Request) -> Reply {
        let key = request.path.strip_prefix(&format!("/{BUCKET}")).map(|key| key.trim_start_matches('/'));
        let Some(key) = key else { return Reply::error(404, "NoSuchBucket") };
        if !request.headers.get("authorization").is_some_and(|text| text.contains("AKIDEXAMPLE")) {
            return Reply::error(403, "AccessDenied");
        }
        let path = self.folder.join(key);
        let upload = request.query.get("uploadId");
        match (&*request.method, upload) {
            ("GET", _) if request.query.contains_key("list-type") => self.list(&request.query),
            ("GET" | "HEAD", _) => Self::get(request, &path),
            ("POST", None) if request.query.contains_key("uploads") => {
                let mut uploads = self.uploads.lock().expect("no thread panics");
                let id = format!("upload-{}", self.requests.load(Ordering::Relaxed));
                uploads.insert(id.clone(), BTreeMap::new());
                let body = format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                );
                Reply::of(200, body)
            }
            ("PUT", Some(id)) => {
                let number = request.query["partNumber"].parse().expect("a part has a number");
                let mut uploads = self.uploads.lock().expect("no thread panics");
                let Some(parts) = uploads.get_mut(id) else { return Reply::error(404, "NoSuchUpload") };
                parts.insert(number, request.body.clone());
                Reply::of(200, "").with("ETag", format!("\"part-{number}\""))
            }
            ("POST", Some(id)) => {
                let Some(parts) = self.uploads.lock().expect("no thread panics").remove(id) else {
                    return Reply::error(404, "NoSuchUpload");
                };
                let bytes = parts.into_values().flatten().collect::<Vec<_>>();
                Self::put(&path, &bytes);
                let body = format!(
                    "<CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>",
                    etag(&path).replace('"', "&quot;")
                );
                Reply::of(200, body)
            }
            ("DELETE", Some(id)) => {
                self.uploads.lock().expect("no thread panics").remove(id);
                Reply::of(204, "")
            }
            ("PUT", None) => {
                Self::put(&path, &request.body);
                Reply::of(200, "").with("ETag", etag(&path))
            }
            _ => Reply::error(405, "MethodNotAllowed"),
        }
    }

    fn put(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().expect("a key has a folder")).expect("the folder is created");
        fs::write(path, bytes).expect("the object is written");
    }

    fn get(request: &Request, path: &Path) -> Reply {
        let Ok(file) = fs::File::open(path) else { return Reply::error(404, "NoSuchKey") };
        let length = file.metadata().expect("it is open").len() as usize;
        if path.is_dir() {
            return Reply::error(404, "NoSuchKey");
        }
        let tag = etag(path);
        if request.headers.get("if-match").is_some_and(|wanted| *wanted != tag) {
            return Reply::error(412, "PreconditionFailed");
        }
        let modified = "Wed, 21 Oct 2015 07:28:00 GMT";
        let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        let (first, end, status) = match range {
            None => (0, length, 200),
            Some(range) => {
                let (first, last) = range.split_once('-').expect("a range has two ends");
                let (first, last): (usize, usize) =
                    (first.parse().expect("a number"), last.parse().expect("a number"));
                (first, length.min(last + 1), 206)
            }
        };
        if status == 206 && first >= length {
            return Reply::error(416, "InvalidRange");
        }
        let is_head = request.method == "HEAD";
        let mut bytes = vec![0; if is_head { 0 } else { end - first }];
        file.read_exact_at(&mut bytes, first as u64).expect("the range is within the file");
        let reply = Reply::of(status, bytes).with("ETag", tag).with("Last-Modified", modified);
        match status {
            206 => reply.with("Content-Range", format!("bytes {first}-{}/{length}", end - 1)),
            _ => reply.with("Content-Length", length),
        }
    }

    /// Lists objects, at most two at a time, so that clients must ask for the rest.
    fn list(&self, query: &BTreeMap<String, String>) -> Reply {
        let prefix = query.get("prefix").map_or("", String::as_str);
        let from = query.get("continuation-token").map_or("", String::as_str);
        let mut keys = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let key =
                    path.strip_prefix(&self.folder).expect("it is below").to_str().expect("UTF-8").to_owned();
                match path.is_dir() {
                    true => folders.push(path),
                    false if key.starts_with(prefix) && *key > *from => keys.push(key),
                    false => {}
                }
            }
        }
        // With a delimiter, keys with a further slash stand for their folder.
        let mut common = std::collections::BTreeSet::new();
        if query.get("delimiter").is_some_and(|delimiter| delimiter == "/") {
            keys.retain(|key| match key[prefix.len()..].split_once('/') {
                None => true,
                Some((folder, _)) => {
                    common.insert(format!("{prefix}{folder}/"));
                    false
                }
            });
        }
        keys.sort_unstable();
        let more = keys.len() > 2;
        keys.truncate(2);
        let mut body = format!("<ListBucketResult><IsTruncated>{more}</IsTruncated>");
        for key in &keys {
            let path = self.folder.join(key);
            body += &format!(
                "<Contents><Key>{key}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{}</Size></Contents>",
                etag(&path).replace('"', "&quot;"),
                fs::metadata(&path).expect("it is there").len()
            );
        }
        for folder in &common {
            body += &format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
        }
        if more {
            body += &format!("<NextContinuationToken>{}</NextContinuationToken>", keys[1]);
        }
        Reply::of(200, body + "</ListBucketResult>")
    }
}
