//! Listen addresses, written as Go programs write them.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// The port of vmdtrace: above 9999, since 9100 to 9999 is given out.
pub const DEFAULT_LISTEN_ADDRESS: &str = "127.0.0.1:10973";

/// Connections the kernel queues while the server is at its bound.
const BACKLOG: i32 = 128;

/// Where to listen: `127.0.0.1:10973`, `[::1]:10973`, `localhost:10973`, or
/// `:10973` for all addresses of both IP versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    text: String,
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    All,
    Address(SocketAddr),
    Name(String),
}

/// Why a text is not a listen address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseListenAddressError {
    #[error("no port: write HOST:PORT, or :PORT for all addresses")]
    NoPort,
    #[error("the port is not a number from 0 to 65535")]
    BadPort,
    #[error("an IPv6 address must be in brackets, such as [::1]:10973")]
    BareIpv6,
    #[error("the host is neither an address nor a name")]
    BadHost,
}

/// An address could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "cannot listen on {address}: it is in use; stop what uses it or choose another --web.listen-address"
    )]
    InUse { address: String },
    #[error(
        "cannot listen on {address}: it is not an address of this machine; choose another --web.listen-address"
    )]
    NotLocal { address: String },
    #[error(
        "cannot listen on {address}: the port needs the capability CAP_NET_BIND_SERVICE; choose one from 1024 on"
    )]
    Privileged { address: String },
    #[error("cannot listen on {address}: the host name does not resolve to an address")]
    Unresolved { address: String, source: io::Error },
    #[error("cannot listen on {address}")]
    Other { address: String, source: io::Error },
}

impl FromStr for ListenAddress {
    type Err = ParseListenAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = text
            .rsplit_once(':')
            .ok_or(ParseListenAddressError::NoPort)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(ParseListenAddressError::BareIpv6);
        }
        if port.is_empty() {
            return Err(ParseListenAddressError::NoPort);
        }
        // u16's own parser takes a sign.
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ParseListenAddressError::BadPort);
        }
        let port = port.parse().map_err(|_| ParseListenAddressError::BadPort)?;
        let host = if host.is_empty() {
            Host::All
        } else if let Ok(address) = text.parse() {
            Host::Address(address)
        } else if host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        {
            Host::Name(host.to_owned())
        } else {
            return Err(ParseListenAddressError::BadHost);
        };
        Ok(Self {
            text: text.to_owned(),
            host,
            port,
        })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ListenAddress {
    /// Opens the listening socket, non-blocking. May resolve a name, so it may
    /// block.
    pub fn bind(&self) -> Result<TcpListener, BindError> {
        let result = match &self.host {
            Host::All => self.bind_all(),
            Host::Address(address) => listen(*address, true),
            Host::Name(name) => listen(self.resolve(name)?, true),
        };
        result.map_err(|source| {
            let address = self.text.clone();
            match source.kind() {
                io::ErrorKind::AddrInUse => BindError::InUse { address },
                io::ErrorKind::AddrNotAvailable => BindError::NotLocal { address },
                io::ErrorKind::PermissionDenied => BindError::Privileged { address },
                _ => BindError::Other { address, source },
            }
        })
    }

    /// Both IP versions on one socket, or IPv4 alone where IPv6 is switched off.
    fn bind_all(&self) -> io::Result<TcpListener> {
        match listen((Ipv6Addr::UNSPECIFIED, self.port).into(), false) {
            Err(error)
                if matches!(
                    error.raw_os_error().map(Errno::from_raw),
                    Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL)
                ) =>
            {
                listen(([0, 0, 0, 0], self.port).into(), true)
            }
            result => result,
        }
    }

    /// One address for a name, IPv4 before IPv6, as Go does.
    fn resolve(&self, name: &str) -> Result<SocketAddr, BindError> {
        let unresolved = |source| BindError::Unresolved {
            address: self.text.clone(),
            source,
        };
        let addresses: Vec<SocketAddr> = (name, self.port)
            .to_socket_addrs()
            .map_err(unresolved)?
            .collect();
        let preferred = addresses
            .iter()
            .find(|address| address.is_ipv4())
            .or(addresses.first());
        preferred
            .copied()
            .ok_or_else(|| unresolved(io::ErrorKind::NotFound.into()))
    }
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A restart must not wait for connections of the last run to time out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ListenAddress, ParseListenAddressError> {
        text.parse()
    }

    #[test]
    fn accepts_what_go_programs_accept() {
        assert_eq!(parse(":10973").unwrap().host, Host::All);
        let v4 = parse("127.0.0.1:10973").unwrap();
        assert_eq!(v4.host, Host::Address(([127, 0, 0, 1], 10973).into()));
        let v6 = parse("[::1]:10973").unwrap();
        assert_eq!(v6.host, Host::Address((Ipv6Addr::LOCALHOST, 10973).into()));
        assert_eq!(
            parse("localhost:1").unwrap().host,
            Host::Name("localhost".to_owned())
        );
        parse(DEFAULT_LISTEN_ADDRESS).unwrap();
    }

    #[test]
    fn says_what_is_wrong() {
        use ParseListenAddressError::{BadHost, BadPort, BareIpv6, NoPort};
        for (text, error) in [
            ("", NoPort),
            ("localhost", NoPort),
            ("localhost:", NoPort),
            ("localhost:65536", BadPort),
            ("localhost:+1", BadPort),
            ("localhost:http", BadPort),
            ("::1:10973", BareIpv6),
            ("[::1:10973", BadHost),
            ("[::g]:10973", BadHost),
            ("http://localhost:10973", BareIpv6),
            ("a b:1", BadHost),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn an_address_in_use_is_named() {
        let first = parse("127.0.0.1:0").unwrap().bind().unwrap();
        let taken = first.local_addr().unwrap().to_string();
        let error = parse(&taken).unwrap().bind().unwrap_err();
        assert!(
            matches!(&error, BindError::InUse { address } if *address == taken),
            "{error:?}"
        );
        assert!(error.to_string().contains(&taken), "{error}");
    }

    #[test]
    fn an_address_of_another_machine_is_named() {
        // TEST-NET-1, which no machine has.
        let error = parse("192.0.2.1:0").unwrap().bind().unwrap_err();
        assert!(matches!(error, BindError::NotLocal { .. }), "{error:?}");
    }

    #[test]
    fn all_addresses_include_ipv4() {
        let listener = parse(":0").unwrap().bind().unwrap();
        let port = listener.local_addr().unwrap().port();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    }
}
