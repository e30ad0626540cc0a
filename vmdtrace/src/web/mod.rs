//! The web server: bounded in every direction, idle between scrapes.
//!
//! One connection carries one request. A scraper comes every few seconds at
//! most, so keeping connections open would save nothing, and one deadline over
//! the whole connection then bounds clients that send or read slowly.

pub mod address;
mod routes;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time;

use crate::metrics::Detail;
use crate::snapshot::source::SnapshotSource;

/// Requests that are answered from a Snapshot at the same time, unless told
/// otherwise: two Prometheus servers, and two people who look.
pub const DEFAULT_MAX_REQUESTS: usize = 4;

/// What the server will hold and wait for, at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that take a Snapshot at the same time; more get 503.
    pub max_requests: usize,
    /// Open connections; more wait in the kernel's queue.
    pub max_connections: usize,
    /// Bytes of a request's head; more get 431. At least 8192.
    pub max_head_bytes: usize,
    /// Header fields of a request; more get 431.
    pub max_headers: usize,
    /// From accepting a connection to the end of the request's head.
    pub head_time: Duration,
    /// From accepting a connection to the last byte of the answer.
    pub connection_time: Duration,
    /// From the stop signal to the end of running requests.
    pub shutdown_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests: DEFAULT_MAX_REQUESTS,
            max_connections: 64,
            max_head_bytes: 16 * 1024,
            max_headers: 64,
            head_time: Duration::from_secs(5),
            // Prometheus gives up after its scrape time-out: 10 s by default.
            connection_time: Duration::from_secs(30),
            shutdown_time: Duration::from_secs(5),
        }
    }
}

/// Largest number of requests that may take a Snapshot at the same time.
pub const MOST_REQUESTS: usize = 256;

/// What is answered, and to how many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answering {
    pub detail: Detail,
    /// As [`Limits::max_requests`].
    pub max_requests: usize,
}

/// Reaches a server while it serves.
#[derive(Clone, Debug)]
pub struct Control(mpsc::Sender<Message>);

/// The server's end of a [`Control`].
#[derive(Debug)]
pub struct Controlled(mpsc::Receiver<Message>);

#[derive(Debug)]
enum Message {
    Change(Answering),
    Ping(oneshot::Sender<()>),
}

/// A control, and what [`serve`] takes for it.
#[must_use]
pub fn control() -> (Control, Controlled) {
    let (sender, receiver) = mpsc::channel(1);
    (Control(sender), Controlled(receiver))
}

impl Control {
    /// Connections that come from now on are answered so; those that are open end
    /// as they began. False if the server is gone.
    pub async fn change(&self, answering: Answering) -> bool {
        self.0.send(Message::Change(answering)).await.is_ok()
    }

    /// Whether the part that accepts connections does its work: waits until it says
    /// so, for ever if it hangs. False if the server is gone.
    pub async fn accepts(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        self.0.send(Message::Ping(answer)).await.is_ok() && answered.await.is_ok()
    }
}

/// Serves until `shutdown` is ready, then finishes running requests within
/// [`Limits::shutdown_time`] and returns.
pub async fn serve(
    listeners: Vec<TcpListener>,
    source: Arc<dyn SnapshotSource>,
    detail: Detail,
    limits: Limits,
    controlled: Controlled,
    shutdown: impl Future,
) {
    let server = Arc::new(Server { source, limits });
    let answering = Answering {
        detail,
        max_requests: limits.max_requests,
    };
    let (stop, stopped) = watch::channel(false);
    let mut acceptor = JoinSet::new();
    acceptor.spawn(server.accept(listeners, answering, controlled, stopped));
    shutdown.await;
    // Fails only when the acceptor is gone.
    let _gone = stop.send(true);
    if time::timeout(limits.shutdown_time, acceptor.join_next())
        .await
        .is_err()
    {
        tracing::warn!(
            "requests still ran {:?} after the stop signal and were cut off",
            limits.shutdown_time
        );
        // Dropping the acceptor drops its connections.
        acceptor.shutdown().await;
    }
}

struct Server {
    source: Arc<dyn SnapshotSource>,
    limits: Limits,
}

impl Server {
    /// Accepts until stopped, then waits for the connections there are.
    async fn accept(
        self: Arc<Self>,
        listeners: Vec<TcpListener>,
        answering: Answering,
        Controlled(mut messages): Controlled,
        stopped: watch::Receiver<bool>,
    ) {
        let mut router = self.router(answering);
        let mut stop = stopped.clone();
        let mut connections = JoinSet::new();
        loop {
            let may_accept = connections.len() < self.limits.max_connections;
            tokio::select! {
                () = stop_asked(&mut stop) => break,
                Some(message) = messages.recv() => match message {
                    Message::Change(answering) => router = self.router(answering),
                    // Who asked may be gone.
                    Message::Ping(answer) => drop(answer.send(())),
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = next_connection(&listeners), if may_accept => match accepted {
                    Ok(stream) => {
                        let server = Arc::clone(&self);
                        connections.spawn(server.connection(
                            router.clone(),
                            stream,
                            stopped.clone(),
                        ));
                    }
                    // The client's doing: it left before it was accepted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        // Mostly: out of file descriptors. Trying again at
                        // once would fail at once.
                        tracing::warn!("cannot accept a connection: {error}; waiting a second");
                        time::sleep(Duration::from_secs(1)).await;
                    }
                },
            }
        }
        drop(listeners);
        while connections.join_next().await.is_some() {}
    }

    fn router(&self, answering: Answering) -> Router {
        let Answering {
            detail,
            max_requests,
        } = answering;
        routes::router(Arc::clone(&self.source), detail, max_requests)
    }

    async fn connection(
        self: Arc<Self>,
        router: Router,
        stream: TcpStream,
        mut stopped: watch::Receiver<bool>,
    ) {
        let Limits {
            max_requests: _,
            max_connections: _,
            max_head_bytes,
            max_headers,
            head_time,
            connection_time,
            shutdown_time: _,
        } = self.limits;
        let service = TowerToHyperService::new(router);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .header_read_timeout(head_time)
            .max_headers(max_headers)
            .max_buf_size(max_head_bytes)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut deadline = pin!(time::sleep(connection_time));
        let mut stopping = false;
        loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!("connection ended early: {error}");
                    }
                    return;
                }
                () = deadline.as_mut() => {
                    tracing::debug!("connection cut off after {connection_time:?}");
                    return;
                }
                () = stop_asked(&mut stopped), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// The next connection of any listener.
async fn next_connection(listeners: &[TcpListener]) -> io::Result<TcpStream> {
    poll_fn(|context| {
        for listener in listeners {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                return Poll::Ready(accepted.map(|(stream, _)| stream));
            }
        }
        Poll::Pending
    })
    .await
}

/// Ready once the server is to stop, or is gone.
async fn stop_asked(stop: &mut watch::Receiver<bool>) {
    let _value_or_gone = stop.wait_for(|stop| *stop).await;
}
