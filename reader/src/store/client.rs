//! The client of object stores: requests on one thread, with retries.
//!
//! All requests of the process run on one thread of an asynchronous runtime, which shares connections and credentials;
//! callers block. Nothing outside of this module is asynchronous. A request that may succeed later (an answer 429 or
//! 5xx, a body that ends early, a time-out, a broken connection) is repeated after a wait that doubles, until it
//! succeeds or the budget is spent.
//!
//! Errors of `object_store` hold urls, and those of Azure hold signatures, so no message quotes them: [`Meter`] notes
//! the status and the code of an answer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error as _;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{
    ClientOptions, GetOptions, GetRange, MultipartId, ObjectStore, PutOptions, PutPayload, RetryConfig,
};
use rankine_base::error::{Error, Result};
use rankine_base::url::ObjectUrl;
// Only its features are set: TLS by rustls, with the provider that is installed below.
use reqwest as _;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::counters::{count_bytes, count_request, count_retry};
use super::{Listing, Version, changed, is_missing};

/// The variable with the seconds after which failing requests are no longer repeated.
const RETRY_VARIABLE: &str = "RANKINE_STORE_RETRY_SECONDS";
const RETRY_SECONDS: u64 = 120;
/// The first wait, which doubles up to the last.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The bytes that are asked for before the length of an object is known.
const RANGE_BYTES: u64 = 8 << 20;
/// The status of an answer to the request for a range that starts after the last byte.
const RANGE_IS_EMPTY: u16 = 416;
/// The longest answer to look for a code in.
const ANSWER_BYTES_MAX: usize = 1 << 16;

/// Received bytes of an object.
pub(crate) type Received = bytes::Bytes;

/// Returns the version of an object.
///
/// # Errors
/// [`Error::Io`], of the kind [`ErrorKind::NotFound`] if it does not exist.
pub(super) fn version(url: &Path) -> Result<Version> {
    let head = |at: Located| async move {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found = at.store.get_opts(&at.key, options).await.map_err(Failure::of)?;
        Ok(Version { bytes: found.meta.size, etag: found.meta.e_tag })
    };
    Located::of(url)?.start("read", head)?.wait()
}

/// Returns a range of an object, which lies within it.
///
/// # Errors
/// [`Error::Io`]; [`Error::Changed`] if the object has another version.
pub(crate) fn range(url: &Path, version: &Version, range: Range<u64>) -> Result<Received> {
    start_range(url, version, range)?.wait()
}

/// Starts to get a range of an object, which lies within it.
///
/// # Errors
/// If the url is wrong, or the thread of requests cannot be started.
pub(super) fn start_range(url: &Path, version: &Version, range: Range<u64>) -> Result<PendingRange> {
    let version = version.clone();
    Located::of(url)?.start("read", move |at| get(at, version.clone(), range.clone()))
}

async fn get(at: Located, version: Version, range: Range<u64>) -> Result<Received, Failure> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        if_match: version.etag.clone(),
        ..GetOptions::default()
    };
    let found = at.store.get_opts(&at.key, options).await.map_err(Failure::of)?;
    // A store that ignores the condition, or has no tags.
    if found.meta.size != version.bytes || found.meta.e_tag != version.etag {
        return Err(Failure::Changed);
    }
    let bytes = found.bytes().await.map_err(Failure::of)?;
    check_length(&bytes, range.end - range.start)?;
    Ok(bytes)
}

/// Returns the version of an object, and the bytes at its start, in one request; `None` if it is empty.
///
/// # Errors
/// As [`version`].
pub(super) fn start_of(url: &Path) -> Result<Option<(Version, Received)>> {
    Located::of(url)?.start("read", get_first)?.wait()
}

/// Lists what is directly below an url.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn list(url: &Path) -> Result<Listing> {
    let parsed = ObjectUrl::parse(url)?;
    let root = parsed.map(|url| format!("{}://{}/", url.scheme, url.bucket)).unwrap_or_default();
    let found =
        |at: Located| async move { at.store.list_with_delimiter(Some(&at.key)).await.map_err(Failure::of) };
    let found = Located::of(url)?.start("list", found)?.wait()?;
    let urls = |keys: Vec<Key>| {
        let mut urls: Vec<_> = keys.iter().map(|key| PathBuf::from(format!("{root}{key}"))).collect();
        urls.sort_unstable();
        urls
    };
    let objects = urls(found.objects.into_iter().map(|object| object.location).collect());
    Ok(Listing { objects, folders: urls(found.common_prefixes) })
}

/// What a store calls an upload.
#[derive(Debug, Clone)]
pub(super) struct UploadId(MultipartId);

/// What a store calls a part of an upload.
pub(super) type Part = PartId;

/// Writes an object at once.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn put(url: &Path, bytes: Vec<u8>) -> Result<()> {
    let payload = PutPayload::from(bytes);
    let put = move |at: Located| {
        let payload = payload.clone();
        async move {
            at.store.put_opts(&at.key, payload, PutOptions::default()).await.map(drop).map_err(Failure::of)
        }
    };
    Located::of(url)?.start("write", put)?.wait()
}

/// Begins an upload in parts.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn begin_upload(url: &Path) -> Result<UploadId> {
    let begin = |at: Located| async move { at.uploads.create_multipart(&at.key).await.map_err(Failure::of) };
    Located::of(url)?.start("write", begin)?.wait().map(UploadId)
}

/// Starts to send the part with this number, from 0.
///
/// # Errors
/// If the thread of requests cannot be started.
pub(super) fn start_part(url: &Path, id: &UploadId, number: usize, bytes: Vec<u8>) -> Result<Pending<Part>> {
    let (UploadId(id), payload) = (id.clone(), PutPayload::from(bytes));
    let send = move |at: Located| {
        let (id, payload) = (id.clone(), payload.clone());
        async move { at.uploads.put_part(&at.key, &id, number, payload).await.map_err(Failure::of) }
    };
    Located::of(url)?.start("write", send)
}

/// Joins the parts of an upload to an object of this length.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn complete(url: &Path, id: &UploadId, parts: Vec<Part>, bytes: u64) -> Result<()> {
    let UploadId(id) = id.clone();
    let join = move |at: Located| {
        let (id, parts) = (id.clone(), parts.clone());
        async move { at.uploads.complete_multipart(&at.key, &id, parts).await.map(drop).map_err(Failure::of) }
    };
    let outcome = Located::of(url)?.start("write", join)?.wait();
    // If the answer to an attempt was lost, the next one finds no upload any more.
    match outcome {
        Err(error) if is_missing(&error) && version(url).is_ok_and(|now| now.bytes == bytes) => Ok(()),
        outcome => outcome,
    }
}

/// Discards an upload.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn abort(url: &Path, id: &UploadId) -> Result<()> {
    let UploadId(id) = id.clone();
    let discard = move |at: Located| {
        let id = id.clone();
        async move { at.uploads.abort_multipart(&at.key, &id).await.map_err(Failure::of) }
    };
    Located::of(url)?.start("discard parts of", discard)?.wait()
}

/// Gets the first range of an object whose length is not known; `None` if it is empty.
async fn get_first(at: Located) -> Result<Option<(Version, Received)>, Failure> {
    let options = GetOptions { range: Some(GetRange::Bounded(0..RANGE_BYTES)), ..GetOptions::default() };
    let found = match at.store.get_opts(&at.key, options).await {
        Err(_)
            if ANSWER.with(|last| last.borrow().as_ref().is_some_and(|of| of.status == RANGE_IS_EMPTY)) =>
        {
            return Ok(None);
        }
        found => found.map_err(Failure::of)?,
    };
    let version = Version { bytes: found.meta.size, etag: found.meta.e_tag.clone() };
    let bytes = found.bytes().await.map_err(Failure::of)?;
    check_length(&bytes, version.bytes.min(RANGE_BYTES))?;
    Ok(Some((version, bytes)))
}

/// Counts received bytes, and checks that all came.
fn check_length(bytes: &Received, expected: u64) -> Result<(), Failure> {
    count_bytes(bytes.len());
    match bytes.len() as u64 == expected {
        true => Ok(()),
        false => Err(Failure::Retry(format!("{} of {expected} bytes came", bytes.len()))),
    }
}

/// A range in flight.
pub(super) type PendingRange = Pending<Received>;

/// An operation in flight.
pub(super) struct Pending<T> {
    url: PathBuf,
    answer: oneshot::Receiver<Result<T>>,
}

impl<T> Pending<T> {
    /// Waits for the answer.
    pub(super) fn wait(self) -> Result<T> {
        let ended = || io::Error::other("the thread of requests has ended");
        let ended = |_| Err(Error::Io { doing: "read", path: self.url, source: ended() });
        self.answer.blocking_recv().unwrap_or_else(ended)
    }
}

/// An object and its store.
#[derive(Clone)]
struct Located {
    url: PathBuf,
    store: Arc<dyn ObjectStore>,
    uploads: Arc<dyn MultipartStore>,
    key: Key,
}

impl Located {
    fn of(url: &Path) -> Result<Self> {
        let Some(parsed) = ObjectUrl::parse(url)? else {
            return Err(Error::unsuitable(url, format!("{} is not a url", url.display())));
        };
        let key = Key::parse(parsed.key).map_err(|_| {
            let what = format!("{} has characters that no object may have in its name", url.display());
            Error::unsuitable(url, what)
        })?;
        let Bucket { store, uploads } = client()?.bucket(parsed)?;
        Ok(Self { url: url.to_owned(), store, uploads, key })
    }

    /// Starts an operation on the thread of requests, which repeats it as often as it may succeed.
    fn start<T, F, O>(self, doing: &'static str, operation: F) -> Result<Pending<T>>
    where
        T: Send + 'static,
        F: Fn(Self) -> O + Send + 'static,
        O: Future<Output = Result<T, Failure>> + Send,
    {
        let (to_caller, answer) = oneshot::channel();
        let client = client()?;
        let url = self.url.clone();
        client.runtime.spawn(async move {
            let outcome = self.repeat(operation, client.patience).await;
            // A caller that has stopped waits for nothing.
            let _ = to_caller.send(outcome.map_err(|failure| failure.explain(doing, &self.url)));
        });
        Ok(Pending { url, answer })
    }

    async fn repeat<T, F, O>(&self, operation: F, patience: Duration) -> Result<T, Failure>
    where
        F: Fn(Self) -> O,
        O: Future<Output = Result<T, Failure>>,
    {
        let began = Instant::now();
        for attempt in 1.. {
            let failure = match ANSWER.scope(RefCell::default(), operation(self.clone())).await {
                Err(Failure::Retry(why)) => why,
                outcome => return outcome,
            };
            let wait = wait_before(attempt);
            if began.elapsed() + wait > patience {
                let seconds = began.elapsed().as_secs_f64();
                let what = format!("{failure}, at the last of {attempt} attempts within {seconds:.0} s");
                return Err(Failure::Final(ErrorKind::Other, what));
            }
            count_retry();
            tracing::debug!("{}: {failure}; repeated in {} ms", self.url.display(), wait.as_millis());
            tokio::time::sleep(wait).await;
        }
        unreachable!("the loop ends by returning")
    }
}

/// Returns the wait after a number of attempts: random, so that processes that failed together do not return together.
fn wait_before(attempt: u32) -> Duration {
    let most = WAIT_MAX.min(WAIT_MIN * 2u32.pow(attempt.min(10)));
    let random = RandomState::new().hash_one(attempt) as u32;
    most.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

/// Why an operation failed.
enum Failure {
    /// It may succeed later.
    Retry(String),
    /// It will not.
    Final(ErrorKind, String),
    /// The object has another version.
    Changed,
}

impl Failure {
    fn of(error: object_store::Error) -> Self {
        use object_store::Error as E;

        let answer = ANSWER.with(RefCell::take);
        let what = || answer.as_ref().map_or_else(|| innermost(&error), Answer::to_string);
        match &error {
            E::NotFound { .. } => Self::Final(ErrorKind::NotFound, "there is no such object".into()),
            E::Precondition { .. } | E::NotModified { .. } => Self::Changed,
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                let what =
                    format!("{}: check the credentials in the environment, and what they allow", what());
                Self::Final(ErrorKind::PermissionDenied, what)
            }
            _ => match answer.as_ref().map(|answer| answer.status) {
                Some(408 | 429 | 500..) | None => Self::Retry(what()),
                // The answer was as it should be, but not all of it came.
                Some(200..300) => Self::Retry(innermost(&error)),
                Some(_) => Self::Final(ErrorKind::Other, what()),
            },
        }
    }

    fn explain(self, doing: &'static str, url: &Path) -> Error {
        match self {
            Self::Changed => changed(url),
            Self::Retry(what) => Self::Final(ErrorKind::Other, what).explain(doing, url),
            Self::Final(kind, what) => {
                Error::Io { doing, path: url.to_owned(), source: io::Error::new(kind, what) }
            }
        }
    }
}

/// Returns the innermost cause of an error, such as the operating system's. Outer ones hold urls.
fn innermost(error: &object_store::Error) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause.and_then(|cause| cause.source()) {
        cause = Some(inner);
    }
    cause.map_or_else(|| "the request failed".into(), ToString::to_string)
}

/// The last answer to a request.
#[derive(Default)]
struct Answer {
    status: u16,
    reason: String,
    /// The store's name for the error.
    code: Option<String>,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)?;
        self.code.iter().try_for_each(|code| write!(f, " ({code})"))
    }
}

tokio::task_local! {
    /// The last answer in the operation that runs.
    static ANSWER: RefCell<Option<Answer>>;
}

/// Returns the code in the body of an answer: `<Code>SlowDown</Code>`. The rest of the body may hold parts of keys.
fn code_of(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let is_code =
        !code.is_empty() && code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

/// Counts requests, and notes their answers.
#[derive(Debug)]
struct Meter(HttpClient);

impl Meter {
    async fn execute(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answered = self.0.execute(request).await;
        count_request(answered.as_ref().map_or(0, |answer| answer.status().as_u16()));
        let (parts, body) = answered?.into_parts();
        let mut answer =
            Answer { status: parts.status.as_u16(), reason: parts.status.to_string(), code: None };
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        let body = match is_error {
            false => body,
            true => {
                let bytes = body.bytes().await.unwrap_or_default();
                answer.code = code_of(&bytes[..bytes.len().min(ANSWER_BYTES_MAX)]);
                HttpResponseBody::from(bytes)
            }
        };
        let _ = ANSWER.try_with(|last| last.replace(Some(answer)));
        Ok(HttpResponse::from_parts(parts, body))
    }
}

impl HttpService for Meter {
    fn call<'service, 'call>(
        &'service self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'service: 'call,
        Self: 'call,
    {
        Box::pin(self.execute(request))
    }
}

/// Makes metered connections.
#[derive(Debug)]
struct MeteredConnector;

impl HttpConnector for MeteredConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Meter(ReqwestConnector::default().connect(options)?)))
    }
}

/// The stores of the process, and the thread that talks to them.
struct Client {
    runtime: Handle,
    patience: Duration,
    buckets: Mutex<Buckets>,
}

/// By scheme and name.
type Buckets = HashMap<(&'static str, String), Bucket>;

/// A bucket, as a store of objects and of parts of objects.
#[derive(Clone)]
struct Bucket {
    store: Arc<dyn ObjectStore>,
    uploads: Arc<dyn MultipartStore>,
}

impl Bucket {
    fn new(store: impl ObjectStore + MultipartStore) -> Self {
        let store = Arc::new(store);
        Self { store: Arc::clone(&store) as _, uploads: store }
    }
}

/// Returns the client of the process: connections and credentials are shared by all that is read.
fn client() -> Result<&'static Client> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());

    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    match CLIENT.get() {
        Some(client) => Ok(client),
        None => Client::start().map(|client| CLIENT.get_or_init(|| client)),
    }
}

impl Client {
    fn start() -> Result<Self> {
        let refused = |source| Error::refused("start the thread of requests", source);
        // Whoever embeds Rankine may have chosen another provider of TLS.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name("rankine-store".into()).spawn(run).map_err(refused)?;
        Ok(Self { runtime: handle, patience: patience()?, buckets: Mutex::default() })
    }

    fn bucket(&self, url: ObjectUrl<'_>) -> Result<Bucket> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (url.scheme, url.bucket.to_owned());
        if let Some(store) = buckets.get(&key) {
            return Ok(store.clone());
        }
        let store = connect(url).map_err(|_| {
            // The error may quote what is wrong, and that may be a secret.
            let variables = match url.scheme {
                "s3" => "AWS_",
                "gs" => "GOOGLE_",
                _ => "AZURE_",
            };
            let what = format!(
                "the settings of {}://{} are wrong or incomplete: check the variables {variables}* of the environment",
                url.scheme, url.bucket
            );
            Error::setting("environment", what)
        })?;
        buckets.insert(key, store.clone());
        Ok(store)
    }
}

fn patience() -> Result<Duration> {
    let Ok(text) = std::env::var(RETRY_VARIABLE) else { return Ok(Duration::from_secs(RETRY_SECONDS)) };
    let seconds = text.parse::<u64>().ok().filter(|&seconds| seconds <= 24 * 3600);
    let what = || format!("{RETRY_VARIABLE} is {text:?}: expected a number of seconds, at most a day");
    seconds.map(Duration::from_secs).ok_or_else(|| Error::setting(RETRY_VARIABLE, what()))
}

/// Opens a bucket with the settings in the environment.
fn connect(url: ObjectUrl<'_>) -> object_store::Result<Bucket> {
    // [`Located::repeat`] counts and bounds all retries.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    Ok(match url.scheme {
        "s3" => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(url.bucket);
            Bucket::new(builder.with_retry(retry).with_http_connector(MeteredConnector).build()?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(url.bucket);
            Bucket::new(builder.with_retry(retry).with_http_connector(MeteredConnector).build()?)
        }
        _ => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(url.bucket);
            Bucket::new(builder.with_retry(retry).with_http_connector(MeteredConnector).build()?)
        }
    })
}
