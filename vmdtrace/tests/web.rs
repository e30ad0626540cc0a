//! The web server over real sockets, with a source of Snapshots made by hand.

#![expect(
    clippy::unwrap_used,
    reason = "tests may; clippy's own exemption leaves out their helpers"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use vmdtrace::host::topology::Topology;
use vmdtrace::metrics::Detail;
use vmdtrace::snapshot::source::{SnapshotError, SnapshotSource};
use vmdtrace::snapshot::{Counters, Host, Probe, ProbeState, Snapshot, probes};
use vmdtrace::web::{Answering, Control, Limits, control, serve};

/// Longer than anything here takes; only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A source whose Snapshots can be held back.
#[derive(Default)]
struct FakeSource {
    gate: Mutex<Gate>,
    moved: Condvar,
    taken: AtomicUsize,
    broken: Option<&'static str>,
    panics: bool,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    waiting: usize,
}

impl FakeSource {
    fn closed() -> Self {
        let gate = Mutex::new(Gate {
            closed: true,
            waiting: 0,
        });
        Self {
            gate,
            ..Self::default()
        }
    }

    fn open_gate(&self) {
        self.gate.lock().unwrap().closed = false;
        self.moved.notify_all();
    }

    /// Returns when `count` Snapshots are being held back.
    async fn held_back(self: &Arc<Self>, count: usize) {
        let source = Arc::clone(self);
        let waited = tokio::task::spawn_blocking(move || {
            let gate = source.gate.lock().unwrap();
            let (gate, _) = source
                .moved
                .wait_timeout_while(gate, PATIENCE, |gate| gate.waiting < count)
                .unwrap();
            gate.waiting
        });
        assert_eq!(waited.await.unwrap(), count);
    }
}

impl SnapshotSource for FakeSource {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        let mut gate = self.gate.lock().unwrap();
        gate.waiting += 1;
        self.moved.notify_all();
        let (mut gate, _) = self
            .moved
            .wait_timeout_while(gate, PATIENCE, |gate| gate.closed)
            .unwrap();
        gate.waiting -= 1;
        drop(gate);

        assert!(!self.panics, "this source was told to panic");
        self.taken.fetch_add(1, Ordering::SeqCst);
        if self.broken == Some("snapshot") {
            return Err(SnapshotError::new("the map CELLS cannot be read"));
        }
        let probe = |name: &str| Probe {
            name: name.to_owned(),
            state: if self.broken == Some(name) {
                ProbeState::Blocked
            } else {
                ProbeState::Attached
            },
            mechanism: "raw_tracepoint".to_owned(),
            reason: (self.broken == Some(name)).then(|| "lockdown is on".to_owned()),
            missed_runs: None,
            runs: None,
        };
        Ok(Snapshot {
            taken_ns: 0,
            counting_since_ns: None,
            detail: Default::default(),
            activity: None,
            host: Host::default(),
            topology: Topology::default(),
            counters: Counters::default(),
            probes: vec![
                probe(probes::IRQ_HANDLER_ENTRY),
                probe(probes::IRQ_HANDLER_EXIT),
            ],
        })
    }

    fn attach_pending(&self) {}

    fn topology_changed(&self) {}

    fn cpus_changed(&self) {}
}

struct Server {
    addresses: Vec<SocketAddr>,
    source: Arc<FakeSource>,
    control: Control,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(source: FakeSource, limits: Limits) -> Self {
        let listeners = vec![
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let addresses = listeners
            .iter()
            .map(|listener| listener.local_addr().unwrap())
            .collect();
        let source = Arc::new(source);
        let (stop, stopped) = oneshot::channel();
        let (control, controlled) = control();
        let task = tokio::spawn(serve(
            listeners,
            Arc::clone(&source) as _,
            Detail::default(),
            limits,
            controlled,
            stopped,
        ));
        Self {
            addresses,
            source,
            control,
            stop,
            task,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addresses[0]).await.unwrap()
    }

    async fn send(&self, request: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn get(&self, path: &str) -> Response {
        Response::read(self.send(&get(path)).await).await
    }

    async fn stop(self) {
        let _stopped_itself = self.stop.send(());
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

#[derive(Debug)]
struct Response {
    status: u16,
    head: String,
    body: String,
}

impl Response {
    /// Reads until the server closes: that it does so is part of the test.
    async fn read(mut stream: TcpStream) -> Self {
        let mut text = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut text))
            .await
            .unwrap()
            .unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1);
        lines
            .filter_map(|line| line.split_once(": "))
            .find(|(key, _)| *key == name)
            .map(|(_, v)| v)
    }
}

#[tokio::test]
async fn a_scrape_is_one_fresh_snapshot() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    let response = server.get("/metrics").await;
    assert_eq!(response.status, 200);
    assert_eq!(
        response.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let length: usize = response.header("content-length").unwrap().parse().unwrap();
    assert_eq!(length, response.body.len());
    assert!(
        response
            .body
            .contains("\nvmdtrace_probe_attached{probe=\"irq_handler_entry\"} 1\n")
    );
    assert!(response.body.contains("vmdtrace_build_info{version=\""));
    assert!(
        response
            .body
            .contains("vmdtrace_scrape_duration_seconds{collector=\"snapshot\"} ")
    );
    assert_eq!(server.source.taken.load(Ordering::SeqCst), 1);
    server.get("/metrics").await;
    assert_eq!(server.source.taken.load(Ordering::SeqCst), 2);
    server.stop().await;
}

#[tokio::test]
async fn what_is_answered_changes_while_it_serves() {
    let limits = Limits {
        max_requests: 1,
        ..Limits::default()
    };
    let server = Server::start(FakeSource::closed(), limits).await;
    assert!(server.control.accepts().await);
    let first = server.send(&get("/metrics")).await;
    server.source.held_back(1).await;
    assert_eq!(server.get("/metrics").await.status, 503);

    let answering = Answering {
        detail: Detail::default(),
        max_requests: 2,
    };
    assert!(server.control.change(answering).await);
    assert!(server.control.accepts().await);
    let more = [
        server.send(&get("/metrics")).await,
        server.send(&get("/metrics")).await,
    ];
    server.source.held_back(3).await;
    assert_eq!(server.get("/metrics").await.status, 503);
    server.source.open_gate();
    assert_eq!(Response::read(first).await.status, 200);
    for stream in more {
        assert_eq!(Response::read(stream).await.status, 200);
    }

    let control = server.control.clone();
    server.stop().await;
    assert!(!control.accepts().await);
    assert!(!control.change(answering).await);
}

#[tokio::test]
async fn a_scrape_has_what_collect_asks_for() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    // As Prometheus writes it.
    let response = server
        .get("/metrics?collect%5B%5D=probes&collect[]=bios")
        .await;
    assert_eq!(response.status, 200);
    let families: Vec<_> = response
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(
        families,
        [
            "vmdtrace_build_info",
            "vmdtrace_probe_attached",
            "vmdtrace_probe_info",
            "vmdtrace_scrape_duration_seconds"
        ]
    );
    let took = |collector: &str| {
        let series = format!("\nvmdtrace_scrape_duration_seconds{{collector=\"{collector}\"}} ");
        response.body.contains(&series)
    };
    assert!(took("snapshot") && took("probes") && took("bios") && !took("process"));
    for (query, problem) in [
        (
            "collect[]=probe",
            "no collector \"probe\"; there are topology, probes",
        ),
        ("collect[]=lines", "start vmdtrace with --metrics.lines"),
        ("collect[]=", "no collector \"\""),
        ("probes", "no parameter \"probes\"; only collect[]"),
        ("collect[]=%ff", "no collector \"\u{fffd}\""),
    ] {
        let response = server.get(&format!("/metrics?{query}")).await;
        assert_eq!(response.status, 400, "{query}");
        assert!(response.body.contains(problem), "{query}: {response:?}");
    }
    // None of these took a Snapshot.
    assert_eq!(server.source.taken.load(Ordering::SeqCst), 1);
    server.stop().await;
}

#[tokio::test]
async fn every_listener_serves() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    for address in &server.addresses {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(get("/healthz").as_bytes()).await.unwrap();
        assert_eq!(Response::read(stream).await.body, "ok\n");
    }
    server.stop().await;
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    for path in ["/", "/healthz", "/readyz"] {
        let get = server.get(path).await;
        let head = server
            .send(&format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await;
        let head = Response::read(head).await;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        assert!(!get.body.is_empty());
        for name in ["content-type", "content-length"] {
            assert_eq!(head.header(name), get.header(name), "{path}");
        }
    }
    let head = server
        .send("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    let head = Response::read(head).await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    server.stop().await;
}

#[tokio::test]
async fn the_landing_page_links_to_the_metrics() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    let response = server.get("/").await;
    assert_eq!(
        response.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(response.body.contains("href=\"/metrics\""));
    server.stop().await;
}

#[tokio::test]
async fn wrong_paths_and_methods_are_told_so() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    let response = server.get("/metric").await;
    assert_eq!(response.status, 404);
    assert!(response.body.contains("/metric"), "{response:?}");
    assert_eq!(
        response.header("content-type"),
        Some("text/plain; charset=utf-8")
    );

    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let response = Response::read(server.send(post).await).await;
    assert_eq!(response.status, 405);
    assert!(response.body.contains("GET"), "{response:?}");
    assert_eq!(response.header("allow"), Some("get,head"));
    assert_eq!(server.source.taken.load(Ordering::SeqCst), 0);
    server.stop().await;
}

#[tokio::test]
async fn readiness_is_interrupt_accounting() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    assert_eq!(server.get("/readyz").await.status, 200);
    server.stop().await;

    let broken = Some(probes::IRQ_HANDLER_EXIT);
    let server = Server::start(
        FakeSource {
            broken,
            ..Default::default()
        },
        Limits::default(),
    )
    .await;
    let response = server.get("/readyz").await;
    assert_eq!(response.status, 503);
    for part in [probes::IRQ_HANDLER_EXIT, "blocked", "lockdown is on"] {
        assert!(response.body.contains(part), "{response:?}");
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_failed_snapshot_fails_the_scrape_with_its_reason() {
    let broken = Some("snapshot");
    let server = Server::start(
        FakeSource {
            broken,
            ..Default::default()
        },
        Limits::default(),
    )
    .await;
    for path in ["/metrics", "/readyz"] {
        let response = server.get(path).await;
        assert_eq!(response.status, 500);
        assert_eq!(
            response.body,
            "500: cannot take a snapshot: the map CELLS cannot be read\n"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_panic_is_one_failed_request() {
    let source = FakeSource {
        panics: true,
        ..Default::default()
    };
    let limits = Limits {
        max_requests: 1,
        ..Limits::default()
    };
    let server = Server::start(source, limits).await;
    // Twice: the first must not keep its place.
    for _ in 0..2 {
        assert_eq!(server.get("/metrics").await.status, 500);
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn scrapes_run_side_by_side_and_excess_ones_are_refused() {
    let limits = Limits {
        max_requests: 2,
        ..Limits::default()
    };
    let server = Server::start(FakeSource::closed(), limits).await;
    let first = server.send(&get("/metrics")).await;
    let second = server.send(&get("/metrics")).await;
    server.source.held_back(2).await;

    let excess = server.get("/metrics").await;
    assert_eq!(excess.status, 503);
    assert_eq!(excess.header("retry-after"), Some("1"));
    assert!(excess.body.contains("--web.max-requests"));
    // What takes no Snapshot is still served.
    assert_eq!(server.get("/healthz").await.status, 200);

    server.source.open_gate();
    assert_eq!(Response::read(first).await.status, 200);
    assert_eq!(Response::read(second).await.status, 200);
    assert_eq!(server.get("/metrics").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_does_not_free_its_place_early() {
    let limits = Limits {
        max_requests: 1,
        ..Limits::default()
    };
    let server = Server::start(FakeSource::closed(), limits).await;
    let client = server.send(&get("/metrics")).await;
    server.source.held_back(1).await;
    drop(client);
    assert_eq!(server.get("/metrics").await.status, 503);
    server.source.open_gate();
    server.stop().await;
}

#[tokio::test]
async fn a_slow_head_is_cut_off() {
    let limits = Limits {
        head_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = Server::start(FakeSource::default(), limits).await;
    let mut silent = server.connect().await;
    let mut slow = server.send("GET /metrics HTTP/1.1\r\nHost: loc").await;
    let mut rest = Vec::new();
    timeout(PATIENCE, slow.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    timeout(PATIENCE, silent.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    assert_eq!(server.source.taken.load(Ordering::SeqCst), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_connection_has_a_deadline() {
    let limits = Limits {
        connection_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = Server::start(FakeSource::closed(), limits).await;
    let mut held = server.send(&get("/metrics")).await;
    let mut rest = Vec::new();
    timeout(PATIENCE, held.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest.is_empty());
    server.source.open_gate();
    server.stop().await;
}

#[tokio::test]
async fn connections_are_bounded() {
    let limits = Limits {
        max_connections: 1,
        head_time: Duration::from_millis(200),
        ..Limits::default()
    };
    let server = Server::start(FakeSource::default(), limits).await;
    let started = Instant::now();
    // Takes the one place and says nothing.
    let _silent = server.connect().await;
    assert_eq!(server.get("/healthz").await.status, 200);
    assert!(
        started.elapsed() >= limits.head_time,
        "the second client did not wait"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_large_head_is_refused() {
    let limits = Limits {
        max_head_bytes: 8192,
        max_headers: 8,
        ..Limits::default()
    };
    let server = Server::start(FakeSource::default(), limits).await;
    let long = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n",
        "x".repeat(8192)
    );
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(9));
    for request in [long, many] {
        let response = Response::read(server.send(&request).await).await;
        assert_eq!(response.status, 431, "{response:?}");
    }
    assert_eq!(server.source.taken.load(Ordering::SeqCst), 0);
    server.stop().await;
}

#[tokio::test]
async fn nonsense_is_refused() {
    let server = Server::start(FakeSource::default(), Limits::default()).await;
    let response = Response::read(server.send("\u{16}\u{3}\u{1} hello\r\n\r\n").await).await;
    assert_eq!(response.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn stopping_finishes_what_runs_and_takes_nothing_new() {
    let server = Server::start(FakeSource::closed(), Limits::default()).await;
    let running = server.send(&get("/metrics")).await;
    let mut idle = server.connect().await;
    server.source.held_back(1).await;
    // Connections are accepted in order: the idle one was.
    assert_eq!(server.get("/healthz").await.status, 200);

    server.stop.send(()).unwrap();
    // The idle connection is closed at once, the running request goes on.
    assert_eq!(
        timeout(PATIENCE, idle.read(&mut [0]))
            .await
            .unwrap()
            .unwrap(),
        0
    );
    assert!(!server.task.is_finished());
    server.source.open_gate();
    assert_eq!(Response::read(running).await.status, 200);
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
    for address in server.addresses {
        TcpStream::connect(address).await.unwrap_err();
    }
}

#[tokio::test]
async fn stopping_does_not_wait_for_ever() {
    let limits = Limits {
        shutdown_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = Server::start(FakeSource::closed(), limits).await;
    let mut hanging = server.send(&get("/metrics")).await;
    server.source.held_back(1).await;
    server.stop.send(()).unwrap();
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, hanging.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest.is_empty());
    server.source.open_gate();
}
