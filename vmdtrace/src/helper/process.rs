//! The helper's side: loads, then answers requests until the server is gone.

use std::{
    ffi::OsString,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Context as _;
use clap::ValueEnum;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigSet, Signal},
};

use super::{
    capabilities,
    channel::Channel,
    protocol::{Reply, Request, State},
};
use crate::{
    commands::directory,
    host::Roots,
    logging,
    probes::{
        Loaded as _, Tracer, fdinfo, messages,
        msi_messages::{Ring, Stream as _},
    },
    snapshot::source::{Level, SourceOptions},
};

/// The hidden command.
pub const COMMAND: &str = "attach-helper";

/// Room for a request, and to see that it is longer.
const REQUEST_BYTES: usize = 16;

/// Load and attach the programs for `vmdtrace serve`, which starts this itself
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Args {
    #[arg(long, value_name = "GLOB")]
    also_lines: Vec<String>,
    #[arg(long, value_enum, default_value_t)]
    level: Level,
    #[arg(long)]
    no_kprobes: bool,
    #[arg(long)]
    shares: bool,
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys", value_parser = directory)]
    sysfs: PathBuf,
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc", value_parser = directory)]
    procfs: PathBuf,
    #[arg(long = "log.level", value_enum, default_value_t)]
    log_level: logging::Level,
    #[arg(long = "log.format", value_enum, default_value_t)]
    log_format: logging::Format,
}

/// The arguments that start a helper.
#[must_use]
pub fn arguments(options: &SourceOptions, log: logging::Settings) -> Vec<OsString> {
    let SourceOptions {
        roots: Roots { sysfs, procfs },
        also_lines,
        level,
        kprobes,
        shares,
        // Read by the server itself.
        activity: _,
    } = options;
    let mut arguments = vec![
        COMMAND.into(),
        flag("level", word(level)),
        flag("path.sysfs", sysfs),
        flag("path.procfs", procfs),
        flag("log.level", word(&log.level)),
        flag("log.format", word(&log.format)),
    ];
    arguments.extend(also_lines.iter().map(|glob| flag("also-lines", glob)));
    if !kprobes {
        arguments.push("--no-kprobes".into());
    }
    if *shares {
        arguments.push("--shares".into());
    }
    arguments
}

fn flag(name: &str, value: impl Into<OsString>) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value.into());
    flag
}

fn word(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Loads, and answers the server behind standard input until that is gone. What the
/// programs have to tell goes to standard output.
///
/// # Errors
/// If it was not started by a server, or the server says what nobody asks for.
pub fn run(args: &Args) -> anyhow::Result<()> {
    const BY_HAND: &str = "this command is started by `vmdtrace serve`, not by hand";
    let requests = Channel::inherited(io::stdin()).context(BY_HAND)?;
    let events = Channel::inherited(io::stdout()).context(BY_HAND)?;
    logging::start(args.log_level, args.log_format)?;
    // Shown by ps; otherwise it would be that of the link it was started by.
    rustix::thread::set_name(c"vmdtrace-helper")?;
    // It ends when the server does, not with it: then there are kprobe events to remove.
    // (SIGABRT is what systemd's watchdog sends.)
    [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGABRT,
    ]
    .into_iter()
    .collect::<SigSet>()
    .thread_block()?;
    let tracer = match load(args, events) {
        Ok(tracer) => tracer,
        Err(error) => {
            let reply = Reply::not_loaded(format!("{error:#}"));
            return Ok(requests.send(&reply.encode()?, &[])?);
        }
    };
    say_loaded(&requests, &tracer)?;
    let result = serve(&requests, |request| answer(&tracer, request));
    tracer.close();
    result
}

fn load(args: &Args, events: Channel) -> anyhow::Result<Tracer> {
    let Args {
        also_lines,
        level,
        no_kprobes,
        shares,
        sysfs,
        procfs,
        log_level: _,
        log_format: _,
    } = args.clone();
    let roots = Roots { sysfs, procfs };
    let kprobes = !no_kprobes;
    capabilities::keep_only(capabilities::to_load(kprobes, &roots))
        .context("cannot give up capabilities")?;
    let tracer = Tracer::load_for(&SourceOptions {
        roots: roots.clone(),
        also_lines,
        level,
        kprobes,
        shares,
        activity: false,
    })?;
    // Before there are other threads.
    capabilities::keep_only(capabilities::to_attach(kprobes, &roots))
        .context("cannot give up capabilities")?;
    if let Some(logger) = tracer.take_logger() {
        messages::pass_on(logger)?;
    }
    match tracer.take_msi_messages() {
        Ok(ring) => pass_on(Ring(ring), events)?,
        Err(error) => tracing::warn!("operations on interrupts are not logged: {error:#}"),
    }
    Ok(tracer)
}

/// Hands the messages of a ring to the server as they come. While it does not take
/// them, the ring fills up, and the programs count what is lost.
fn pass_on(mut ring: Ring, events: Channel) -> io::Result<()> {
    thread::Builder::new()
        .name("msi-messages".to_owned())
        .spawn(move || {
            loop {
                let mut waiting = [PollFd::new(ring.as_fd(), PollFlags::POLLIN)];
                match poll(&mut waiting, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(error) => return tracing::warn!("messages cannot be waited for: {error}"),
                }
                let mut sent = Ok(());
                let drained = ring.drain(&mut |bytes| {
                    if sent.is_ok() {
                        sent = events.send(bytes, &[]);
                    }
                });
                // The server is gone.
                if sent.and(drained).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

fn say_loaded(requests: &Channel, tracer: &Tracer) -> anyhow::Result<()> {
    let arrays = tracer.array_descriptors()?;
    let (programs, of_programs): (Vec<_>, Vec<_>) =
        tracer.program_descriptors()?.into_iter().unzip();
    let descriptors: Vec<_> = arrays
        .iter()
        .chain(&of_programs)
        .map(|descriptor| descriptor.as_fd())
        .collect();
    let reply = Reply::Loaded {
        facts: tracer.arrays().facts(),
        map_memory: fdinfo::map_memory(Path::new("/proc/self")),
        programs: programs.into_iter().map(str::to_owned).collect(),
        states: states(tracer),
    };
    Ok(requests.send(&reply.encode()?, &descriptors)?)
}

/// Answers one request after the other until the server is gone. Anything that is no
/// request ends it.
fn serve(requests: &Channel, mut answer: impl FnMut(Request) -> Reply) -> anyhow::Result<()> {
    loop {
        let received = requests
            .receive(REQUEST_BYTES)
            .context("the server sent no request")?;
        let Some(packet) = received else {
            return Ok(());
        };
        if !packet.descriptors.is_empty() {
            anyhow::bail!("the server sent descriptors, which no request has");
        }
        let request = Request::decode(&packet.bytes).context("the server sent no request")?;
        let reply = answer(request).encode()?;
        match requests.send(&reply, &[]) {
            Ok(()) => {}
            // It did not wait for the answer.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error).context("cannot answer the server"),
        }
    }
}

fn answer(tracer: &Tracer, request: Request) -> Reply {
    let failed = |error: anyhow::Error| Reply::failed(format!("{error:#}"));
    match request {
        Request::Attach => {
            tracer.attach();
            Reply::Attached(states(tracer))
        }
        Request::Losses => tracer.read_losses().map_or_else(failed, Reply::losses),
        Request::Operations => tracer
            .read_operations()
            .map_or_else(failed, Reply::operations),
        Request::Outside => tracer.read_outside().map_or_else(failed, Reply::outside),
        Request::LogLevel(level) => logging::set_level(level).map_or_else(failed, |()| {
            tracing::debug!("the level of the log is {}", word(&level));
            Reply::Done
        }),
    }
}

fn states(tracer: &Tracer) -> Vec<State> {
    tracer.states().into_iter().map(State::from).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proptest::prelude::*;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_helper_is_started_with_what_the_server_was() {
        let folder = tempfile::tempdir().unwrap();
        let options = SourceOptions {
            roots: Roots {
                sysfs: folder.path().to_owned(),
                procfs: "/proc".into(),
            },
            also_lines: vec!["virtio*".to_owned(), "-x --level".to_owned()],
            level: Level::Counters,
            kprobes: false,
            shares: true,
            activity: false,
        };
        let log = logging::Settings {
            level: logging::Level::Trace,
            format: logging::Format::Json,
        };
        let arguments = arguments(&options, log);
        let words = [OsString::from("vmdtrace")].into_iter().chain(arguments);
        let Command::AttachHelper(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("another command");
        };
        let expected = Args {
            also_lines: options.also_lines,
            level: options.level,
            no_kprobes: true,
            shares: true,
            sysfs: options.roots.sysfs,
            procfs: options.roots.procfs,
            log_level: log.level,
            log_format: log.format,
        };
        assert_eq!(args, expected);
    }

    /// What is answered to these messages, and how it ends.
    fn answers(
        messages: impl FnOnce(&Channel) + Send,
        answer: impl FnMut(Request) -> Reply,
    ) -> (Vec<Reply>, anyhow::Result<()>) {
        let (server, helper) = Channel::pair().unwrap();
        // All fit into the socket.
        messages(&server);
        rustix::net::shutdown(&server, rustix::net::Shutdown::Write).unwrap();
        let result = serve(&helper, answer);
        drop(helper);
        let mut replies = Vec::new();
        loop {
            match server.receive(1000) {
                Ok(Some(packet)) => replies.push(Reply::decode(&packet.bytes).unwrap()),
                Ok(None) => return (replies, result),
                // Told once, when something was left unread.
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
            }
        }
    }

    fn asked(request: Request) -> Reply {
        Reply::Failed(format!("{request:?}"))
    }

    #[test]
    fn requests_are_answered_in_order_until_the_server_is_gone() {
        let requests = [Request::Operations, Request::Attach, Request::Losses];
        let (replies, result) = answers(
            |server| {
                for request in requests {
                    server.send(&request.encode().unwrap(), &[]).unwrap();
                }
            },
            asked,
        );
        result.unwrap();
        assert_eq!(replies, requests.map(asked));
    }

    #[test]
    fn a_server_that_stops_may_not_wait_for_an_answer() {
        let (server, helper) = Channel::pair().unwrap();
        server
            .send(&Request::Attach.encode().unwrap(), &[])
            .unwrap();
        let mut server = Some(server);
        serve(&helper, |request| {
            server = None;
            asked(request)
        })
        .unwrap();
    }

    #[test]
    fn a_descriptor_is_no_request() {
        let file = tempfile::tempfile().unwrap();
        let attach = Request::Attach.encode().unwrap();
        let (replies, result) = answers(
            |server| {
                server.send(&attach, &[file.as_fd()]).unwrap();
                server.send(&attach, &[]).unwrap();
            },
            asked,
        );
        assert!(result.unwrap_err().to_string().contains("descriptors"));
        assert_eq!(replies, []);
    }

    proptest! {
        /// Nothing is done that is not one of the requests, and nothing at all after
        /// the first message that is none.
        #[test]
        fn garbage_ends_it(
            messages in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(0..4u8, 1..2),
                    proptest::collection::vec(any::<u8>(), 1..40),
                ],
                0..20,
            )
        ) {
            let good: Vec<_> = messages
                .iter()
                .map_while(|bytes| Request::decode(bytes).ok())
                .collect();
            let mut done = Vec::new();
            let (replies, result) = answers(
                |server| {
                    for message in &messages {
                        server.send(message, &[]).unwrap();
                    }
                },
                |request| {
                    done.push(request);
                    asked(request)
                },
            );
            prop_assert_eq!(&done, &good);
            prop_assert_eq!(replies.len(), good.len());
            prop_assert_eq!(result.is_ok(), good.len() == messages.len());
        }
    }
}
