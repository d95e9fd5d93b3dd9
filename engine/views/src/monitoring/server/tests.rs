//! Tests of the server over loopback, and of the parser without a socket.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Weak, mpsc};

use rustix::event::EventfdFlags;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::message::{HEAD_BYTES_MAX, answer};
use super::*;

/// Much longer than the server ever takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const SCRAPE: &[u8] = b"GET /metrics?a=b HTTP/1.1\r\nHost: localhost\r\n\r\n";
const PATIENT: Limits = Limits {
    connection: PATIENCE,
    grace: Duration::from_millis(50),
    accept_pause: Duration::from_millis(100),
    idle: false,
};
const SHORT: Limits = Limits { connection: Duration::from_millis(300), ..PATIENT };

/// The bodies of `/metrics` and `/large`.
const METRICS: &str = "rankine_step 7\n";
const LARGE_BYTES: usize = 4 << 20;

fn routes(request: &Request<'_>) -> Response {
    match request.path {
        "/metrics" => Response::text(200, METRICS),
        "/query" => Response::text(200, request.query),
        "/large" => Response::text(200, "x".repeat(LARGE_BYTES)),
        "/panic" => panic!("as the test wants"),
        _ => Response::text(404, "unknown path\n"),
    }
}

fn listener() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Connections inherit it. Without a limit, some systems buffer a whole large response.
    set_socket_send_buffer_size(&listener, 256 << 10).unwrap();
    listener
}

fn server(limits: Limits) -> Server {
    Server::start_with(listener(), routes, limits).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Receives everything up to the end of the connection, in whichever way it ends.
fn receive(mut stream: &TcpStream) -> Vec<u8> {
    let begun = Instant::now();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(begun.elapsed() < PATIENCE, "the server does not end the connection");
    bytes
}

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn assert_serves(address: SocketAddr) {
    let response = exchange(address, SCRAPE);
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with(METRICS), "{response}");
}

/// Starts a server together with a reference to something that its thread owns.
fn owning_server(limits: Limits, routes: fn(&Request<'_>) -> Response) -> (Server, Weak<()>) {
    let owned = Arc::new(());
    let weak = Arc::downgrade(&owned);
    let owning = move |request: &Request<'_>| {
        let _ = &owned;
        routes(request)
    };
    (Server::start_with(listener(), owning, limits).unwrap(), weak)
}

/// Drops a server, which must not take long.
fn drop_promptly(server: Server) {
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_millis(150), "{:?}", begun.elapsed());
}

/// Waits until the thread has dropped what it owns, long before the deadline of its connections.
fn assert_ends(owned: &Weak<()>) {
    let begun = Instant::now();
    while owned.strong_count() > 0 {
        assert!(begun.elapsed() < PATIENCE / 2, "the thread does not end");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the status of the answer to a request, found without a socket.
fn status(request: &[u8]) -> Option<u16> {
    let answer = String::from_utf8(answer(request, routes)?).unwrap();
    Some(answer.split(' ').nth(1).unwrap().parse().unwrap())
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most);
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    /// Returns bytes without any structure, or a request that is changed, cut off or continued.
    fn request(&mut self) -> Vec<u8> {
        let mut request = SCRAPE.to_vec();
        match self.below(4) {
            0 => return self.bytes(300),
            1 => {
                for _ in 0..=self.below(4) {
                    let at = self.below(request.len());
                    request[at] = self.below(256) as u8;
                }
            }
            2 => request.truncate(self.below(request.len())),
            _ => request.extend(self.bytes(20_000)),
        }
        request
    }
}

#[test]
fn a_scrape_gets_all_headers_and_the_body() {
    let server = server(PATIENT);
    let expected = "HTTP/1.1 200 OK\r\n\
        Content-Type: text/plain; charset=utf-8\r\n\
        Content-Length: 15\r\n\
        Cache-Control: no-store\r\n\
        Content-Security-Policy: default-src 'self'\r\n\
        X-Content-Type-Options: nosniff\r\n\
        Connection: close\r\n\r\n";
    assert_eq!(exchange(server.address(), SCRAPE), format!("{expected}{METRICS}"));
    assert_eq!(exchange(server.address(), b"HEAD /metrics HTTP/1.1\r\n\r\n"), expected);
}

#[test]
fn targets_are_split_into_path_and_query() {
    let server = server(PATIENT);
    let body = |target: &str| {
        let response = exchange(server.address(), format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
        response.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    assert_eq!(body("/query?a=%20b?c"), "a=%20b?c");
    assert_eq!(body("/query"), "");
    assert_eq!(body("http://localhost:9/query?a"), "a");
    assert_eq!(body("/%71uery"), "unknown path\n");
}

#[test]
fn the_host_of_a_request_is_that_of_its_target_or_its_header() {
    let host = |target: &str, headers: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nAccept: */*\r\n{headers}\r\n");
        let told = |request: &Request<'_>| Response::text(200, format!("{:?}", request.host));
        let answer = String::from_utf8(answer(request.as_bytes(), told).unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        if head.starts_with("HTTP/1.1 200 ") { body.to_owned() } else { head[9..12].to_owned() }
    };
    let of_header = |value: &str| host("/", &format!("Host: {value}\r\n"));
    for (value, expected) in [
        ("127.0.0.1", "Some(Address(127.0.0.1))"),
        ("127.0.0.1:9464", "Some(Address(127.0.0.1))"),
        ("[::1]", "Some(Address(::1))"),
        ("[::1]:9464", "Some(Address(::1))"),
        ("[fe80::1%25eth0]:9464", "Some(Address(fe80::1))"),
        ("LocalHost:9464", "Some(Name(\"LocalHost\"))"),
        ("localhost.:9464", "Some(Name(\"localhost\"))"),
        ("127.0.0.1.evil.example", "Some(Name(\"127.0.0.1.evil.example\"))"),
        ("gpu_7.example.org:", "Some(Name(\"gpu_7.example.org\"))"),
        // Not what browsers send for an address.
        ("127.1", "Some(Name(\"127.1\"))"),
        ("", "None"),
        ("::1", "400"),
        ("[::1", "400"),
        ("[localhost]", "400"),
        ("[::1]x", "400"),
        ("localhost:port", "400"),
        ("localhost:9464:1", "400"),
        ("a@localhost", "400"),
        ("local host", "400"),
        (".", "400"),
        (":9464", "400"),
        ("h\u{f6}st", "400"),
    ] {
        assert_eq!(of_header(value), expected, "{value:?}");
    }
    // In HTTP/1.0 and from simple probes there may be none; two contradict each other.
    assert_eq!(host("/", ""), "None");
    assert_eq!(host("/", "Host: localhost\r\nhost: localhost\r\n"), "400");
    // The target of a proxy's request counts.
    let evil = "Host: evil.example\r\n";
    assert_eq!(host("http://localhost:9/", evil), "Some(Name(\"localhost\"))");
    assert_eq!(host("HTTP://evil.example/x", "Host: localhost\r\n"), "Some(Name(\"evil.example\"))");
    assert_eq!(host("http://[::1]:9/", evil), "Some(Address(::1))");
    assert_eq!(host("http://user@localhost/", ""), "400");
    assert_eq!(host("/", evil), "Some(Name(\"evil.example\"))");
}

#[test]
fn statuses_follow_the_requests() {
    let head = |header: &str, count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", header.repeat(count));
    let cases = [
        ("GET /metrics HTTP/1.0\r\n\r\n".to_owned(), Some(200)),
        ("GET / HTTP/1.1\n\n".to_owned(), Some(404)),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".to_owned(), Some(405)),
        ("OPTIONS * HTTP/1.1\r\n\r\n".to_owned(), Some(405)),
        ("get / HTTP/1.1\r\n\r\n".to_owned(), Some(405)),
        ("GET / HTTP/2.0\r\n\r\n".to_owned(), Some(400)),
        ("GET metrics HTTP/1.1\r\n\r\n".to_owned(), Some(400)),
        ("GET http://localhost HTTP/1.1\r\n\r\n".to_owned(), Some(400)),
        ("\u{16}\u{3}\u{1}".to_owned(), Some(400)),
        (head("A: b\r\n", 64), Some(404)),
        (head("A: b\r\n", 65), Some(431)),
        (head(&format!("A: {}\r\n", "b".repeat(1000)), 9)[..HEAD_BYTES_MAX].to_owned(), Some(431)),
        (head("A: b\r\n", 3)[..20].to_owned(), None),
        (String::new(), None),
    ];
    for (request, expected) in cases {
        assert_eq!(status(request.as_bytes()), expected, "{request:?}");
    }
}

#[test]
fn refusals_reach_clients_that_are_still_sending() {
    let server = server(PATIENT);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    let post = format!("POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{}", "x".repeat(1_000_000));
    assert!(exchange(server.address(), long.as_bytes()).starts_with("HTTP/1.1 431 "));
    let response = exchange(server.address(), post.as_bytes());
    assert!(response.starts_with("HTTP/1.1 405 ") && response.contains("\r\nAllow: GET, HEAD\r\n"));
    assert!(exchange(server.address(), b"\x16\x03\x01\x02\x00\x01").starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_client_may_go_on_sending_after_the_response() {
    let server = server(PATIENT);
    let mut stream = connect(server.address());
    stream.write_all(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n").unwrap();
    assert!(receive(&stream).starts_with(b"HTTP/1.1 405 "));
    // After a reset these would fail.
    for _ in 0..10 {
        stream.write_all(&[b'x'; 100_000]).unwrap();
    }
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let server = server(PATIENT);
    let mut stream = connect(server.address());
    stream.set_nodelay(true).unwrap();
    for byte in SCRAPE {
        stream.write_all(&[*byte]).unwrap();
    }
    assert!(receive(&stream).ends_with(METRICS.as_bytes()));
}

#[test]
fn what_follows_a_request_is_ignored() {
    let server = server(PATIENT);
    let garbage = Random(1).bytes(200_000);
    let response = exchange(server.address(), &[SCRAPE, SCRAPE, &garbage].concat());
    assert_eq!(response.matches("HTTP/1.1 ").count(), 1);
    assert!(response.ends_with(METRICS));
}

#[test]
fn a_half_closed_client_gets_its_answer() {
    let server = server(PATIENT);
    let mut stream = connect(server.address());
    stream.write_all(SCRAPE).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(receive(&stream).ends_with(METRICS.as_bytes()));

    // Half of a request does not get one.
    let mut stream = connect(server.address());
    stream.write_all(&SCRAPE[..20]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive(&stream), b"");
}

#[test]
fn a_slow_client_is_cut_off_at_the_deadline() {
    let server = server(SHORT);
    let (begun, mut stream) = (Instant::now(), connect(server.address()));
    // It makes progress until the end: only the first byte counts, not the last one.
    while begun.elapsed() < PATIENCE && stream.write_all(b"G").is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    let elapsed = begun.elapsed();
    assert!(elapsed >= SHORT.connection && elapsed < PATIENCE, "{elapsed:?}");
    assert_eq!(receive(&stream), b"");
    assert_serves(server.address());
}

#[test]
fn idle_connections_do_not_lock_out_a_scrape() {
    // The clients' ends need more descriptors than many systems allow by default.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let server = server(PATIENT);
    let mut idle = Vec::new();
    let times = (0..10).map(|_| {
        idle.extend((0..100).map(|_| connect(server.address())));
        let begun = Instant::now();
        assert_serves(server.address());
        begun.elapsed()
    });
    let mut times: Vec<_> = times.collect();
    // A busy machine can delay a thread of the lowest priority, so a single time says little.
    times.sort();
    assert!(times[5] < Duration::from_secs(1), "{times:?}");
}

#[test]
fn connections_are_given_up_in_the_order_of_their_stages() {
    let server = server(PATIENT);
    let address = server.address();
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    let idle: Vec<_> = (0..CONNECTIONS_MAX - 2).map(|_| connect(address)).collect();
    let mut sending = connect(address);
    sending.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
    // The response has begun.
    sending.read_exact(&mut [0; 10]).unwrap();
    // The next connection replaces this one, which has its response.
    let mut drained = connect(address);
    drained.write_all(SCRAPE).unwrap();
    assert!(receive(&drained).ends_with(METRICS.as_bytes()));
    assert_serves(address);
    assert_serves(address);
    assert!(idle.iter().all(is_open));
    // The first takes the place of the scrape, the others and the last scrape those of the oldest idle connections.
    let more = [connect(address), connect(address), connect(address)];
    assert_serves(address);
    let (replaced, kept) = idle.split_at(3);
    assert!(!replaced.iter().any(is_open));
    assert!(kept.iter().chain(&more).all(is_open));
    sending.set_nonblocking(false).unwrap();
    assert!(receive(&sending).len() > LARGE_BYTES);
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_does_not_delay_others() {
    let server = server(SHORT);
    let mut stuck: Vec<_> = (0..4).map(|_| connect(server.address())).collect();
    let begun = Instant::now();
    for stream in &mut stuck {
        stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
    }
    let mut served = 0;
    while !stuck.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{} clients are not cut off", stuck.len());
        assert_serves(server.address());
        served += 1;
        stuck.retain(|stream| stream.take_error().unwrap().is_none());
    }
    assert!(served > 1 && begun.elapsed() >= SHORT.connection);
}

#[test]
fn a_large_response_arrives_whole_at_several_clients() {
    let server = server(PATIENT);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let response = exchange(server.address(), b"GET /large HTTP/1.1\r\n\r\n");
                let (_, body) = response.split_once("\r\n\r\n").unwrap();
                assert!(body.len() == LARGE_BYTES && body.bytes().all(|byte| byte == b'x'));
            });
        }
    });
}

#[test]
fn clients_that_vanish_do_no_harm() {
    let server = server(PATIENT);
    for number in 0..200 {
        let mut stream = connect(server.address());
        // The drop resets the connection if its receive buffer is not empty.
        match number % 4 {
            0 => {}
            1 => stream.write_all(&SCRAPE[..20]).unwrap(),
            2 => stream.write_all(SCRAPE).unwrap(),
            _ => {
                stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
                stream.read_exact(&mut [0; 10]).unwrap();
            }
        }
    }
    assert_serves(server.address());
}

#[test]
fn a_panic_of_the_routes_is_answered_with_500() {
    let server = server(PATIENT);
    for _ in 0..2 {
        assert!(exchange(server.address(), b"GET /panic HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 500 "));
        assert_serves(server.address());
    }
}

#[test]
fn the_thread_has_a_name_and_only_takes_idle_time() {
    // SAFETY: 0 is the calling thread.
    let policy = || unsafe { libc::sched_getscheduler(0) };
    let before = policy();
    let describe = move |_: &Request<'_>| {
        Response::text(200, format!("{} {}", thread::current().name().unwrap(), policy()))
    };
    let server = Server::start(listener(), describe).unwrap();
    let expected = format!("\r\n\r\nrankine-metrics {}", libc::SCHED_IDLE);
    assert!(exchange(server.address(), SCRAPE).ends_with(&expected));
    assert_eq!(policy(), before);
}

#[test]
fn a_drop_is_prompt() {
    // Without clients, with idle ones, and with one that never reads its response.
    let drops: [fn(SocketAddr) -> Vec<TcpStream>; 3] = [
        |_| Vec::new(),
        |address| (0..100).map(|_| connect(address)).collect(),
        |address| {
            let mut stream = connect(address);
            stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
            stream.read_exact(&mut [0; 10]).unwrap();
            vec![stream]
        },
    ];
    for open in drops {
        let (server, owned) = owning_server(PATIENT, routes);
        let address = server.address();
        let clients = open(address);
        drop_promptly(server);
        assert_ends(&owned);
        assert!(TcpStream::connect(address).is_err());
        drop(clients);
    }
}

#[test]
fn a_drop_does_not_wait_for_the_routes() {
    let (called, is_called) = mpsc::channel();
    let (release, is_released) = mpsc::channel::<()>();
    let wait = move |_: &Request<'_>| {
        called.send(()).unwrap();
        let _ = is_released.recv();
        Response::text(200, METRICS)
    };
    let server = Server::start_with(listener(), wait, PATIENT).unwrap();
    let mut stream = connect(server.address());
    stream.write_all(SCRAPE).unwrap();
    is_called.recv_timeout(PATIENCE).unwrap();
    drop_promptly(server);
    drop(release);
    assert!(receive(&stream).ends_with(METRICS.as_bytes()));
}

#[test]
fn a_response_may_end_after_the_drop() {
    let (server, owned) = owning_server(Limits { grace: PATIENCE, ..PATIENT }, routes);
    let mut stream = connect(server.address());
    stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    drop_promptly(server);
    assert!(receive(&stream).len() > LARGE_BYTES);
    // The client is still connected, but has its response.
    assert_ends(&owned);
}

#[test]
fn an_error_of_accept_pauses_instead_of_spinning() {
    let listener = listener();
    listener.set_nonblocking(true).unwrap();
    let closing = listener.try_clone().unwrap();
    let idle = connect(listener.local_addr().unwrap());
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let mut service = Service::new(listener, stop, routes, PATIENT);
    service.turn();
    // The listener stays ready, and accepts fail.
    rustix::net::shutdown(&closing, rustix::net::Shutdown::Read).unwrap();
    let begun = Instant::now();
    for _ in 0..4 {
        service.turn();
    }
    // Two turns end at once with an error, and two wait until the pause is over.
    assert!(begun.elapsed() >= 2 * PATIENT.accept_pause, "{:?}", begun.elapsed());
    // They do not wait for the idle client.
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    drop(idle);
}

#[test]
fn random_bytes_are_answered_or_refused() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let count = move |request: &Request<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        routes(request)
    };
    let server = Server::start_with(listener(), count, PATIENT).unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2000 {
        let request = random.request();
        let mut stream = connect(server.address());
        let (first, second) = request.split_at(random.below(request.len() + 1));
        // The server may have refused it already.
        let _ = stream.write_all(first).and_then(|()| stream.write_all(second));
        let _ = stream.shutdown(Shutdown::Write);
        let response = receive(&stream);
        // A request that is complete or wrong gets an answer, and part of one gets none.
        let expected = status(&request[..request.len().min(HEAD_BYTES_MAX)]).is_some();
        assert_eq!(response.starts_with(b"HTTP/1.1 "), expected, "{request:?}");
        assert!(expected || response.is_empty(), "{request:?}");
    }
    assert!(calls.load(Ordering::Relaxed) > 400);
    assert_serves(server.address());
}
