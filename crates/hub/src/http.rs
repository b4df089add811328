//! Requests to the hub: redirects, the token, proxies, patience. The only module, beside `tls`, that names the HTTP crate.
//!
//! Redirects are followed here and not by the HTTP crate, because the token may go to the hub's own origin only, while files are
//! served from other hosts.

use std::cell::OnceCell;
use std::io::{self, Read};
use std::str::FromStr;
use std::time::Duration;

use ureq::http::{Response, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, Proxy};

use crate::environment::Environment;
use crate::tls;

const MAX_REDIRECTS: usize = 10;
/// A hub that asks for more patience than this gets none: the user decides.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Why a request gave nothing usable. Addresses are shown without their query, which may hold a signature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// No connection: name not found, refused, network down, proxy failed.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable {
        /// Host that was tried.
        host: String,
        /// The system's words.
        reason: String,
    },
    /// A wait ended (HF_HUB_ETAG_TIMEOUT, HF_HUB_DOWNLOAD_TIMEOUT).
    #[error("{host} did not answer in time ({phase})")]
    Timeout {
        /// Host that was asked.
        host: String,
        /// What was waited for.
        phase: String,
    },
    /// The secure connection could not be made.
    #[error("no secure connection to {host}: {reason} (a private authority's certificates go into SSL_CERT_FILE)")]
    Tls {
        /// Host that was asked.
        host: String,
        /// The library's words.
        reason: String,
    },
    /// There is nothing to trust.
    #[error(
        "no root certificates were found, so no https address can be used: {reason}; install them or set SSL_CERT_FILE"
    )]
    NoRootCertificates {
        /// Why none were found.
        reason: String,
    },
    /// The processor lacks the instructions that the cryptography is written with.
    #[error(
        "https needs instructions that this processor does not have; fetch the file by other means and give its path"
    )]
    TlsUnsupported,
    /// 401, 403.
    #[error("{address}: access refused ({status}{}); accept the model's terms on the hub and set HF_TOKEN", code_suffix(.code))]
    Refused {
        /// Address without its query.
        address: String,
        /// 401 or 403.
        status: u16,
        /// The hub's own code, such as `GatedRepo`.
        code: Option<String>,
    },
    /// 404.
    #[error("{address}: not found{}; check the spelling of repository, revision and file", code_suffix(.code))]
    NotFound {
        /// Address without its query.
        address: String,
        /// The hub's own code, such as `RepoNotFound`.
        code: Option<String>,
    },
    /// 408, 429, 5xx, also after waiting as told.
    #[error("{address}: the hub is busy or broken (status {status}); try again {}", wait_suffix(.retry_after))]
    Busy {
        /// Address without its query.
        address: String,
        /// Status.
        status: u16,
        /// How long the hub asked to wait.
        retry_after: Option<Duration>,
    },
    /// Another status, or an answer that is none.
    #[error("{address}: unusable answer: {reason}")]
    Unusable {
        /// Address without its query.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// A proxy variable is not understood. Its value is not shown, since it may hold a password.
    #[error("the proxy for {scheme} addresses is no address of the form http://host:port; check {variable}")]
    BadProxy {
        /// `http` or `https`.
        scheme: &'static str,
        /// The variable to look at.
        variable: &'static str,
    },
}

impl HttpError {
    /// The hub did not answer at all, as opposed to answering something unwelcome.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Timeout { .. }
                | Self::Tls { .. }
                | Self::NoRootCertificates { .. }
                | Self::TlsUnsupported
                | Self::Busy { .. }
        )
    }

    /// Going on where it stopped may help at once.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }
}

fn code_suffix(code: &Option<String>) -> String {
    code.as_ref().map(|code| format!(", {code}")).unwrap_or_default()
}

fn wait_suffix(wait: &Option<Duration>) -> String {
    wait.map_or_else(|| "later".to_owned(), |wait| format!("in {} s", wait.as_secs()))
}

/// How long to wait for the hub.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// For a connection, and for the head of an answer, each.
    pub(crate) answer: Duration,
    /// How often a busy hub is asked again.
    pub(crate) retries: u32,
}

impl Patience {
    pub(crate) fn usual(environment: &Environment) -> Self {
        Self {
            answer: environment.etag_timeout,
            retries: 3,
        }
    }
}

/// A client for one operation.
pub(crate) struct Http<'e> {
    environment: &'e Environment,
    patience: Patience,
    hub: Address,
    tls: OnceCell<TlsConfig>,
}

/// An answer with status 200, 206 or 416.
pub(crate) struct Answer {
    response: Response<Body>,
    address: Address,
}

impl<'e> Http<'e> {
    pub(crate) fn new(environment: &'e Environment, patience: Patience) -> Result<Self, HttpError> {
        let hub = Address::parse(&environment.endpoint)?;
        Ok(Self {
            environment,
            patience,
            hub,
            tls: OnceCell::new(),
        })
    }

    /// GET from byte `start` on, through redirects, asking a busy server again.
    pub(crate) fn get(&self, address: &str, start: u64) -> Result<Answer, HttpError> {
        let address = Address::parse(address)?;
        let mut wait = Duration::from_millis(500);
        for _ in 0..self.patience.retries {
            match self.follow(address.clone(), start) {
                Err(HttpError::Busy { retry_after, .. }) if retry_after.unwrap_or_default() <= LONGEST_WAIT => {
                    std::thread::sleep(retry_after.unwrap_or(wait));
                    wait *= 2;
                }
                other => return other,
            }
        }
        self.follow(address, start)
    }

    fn follow(&self, mut address: Address, start: u64) -> Result<Answer, HttpError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&address, start)?;
            match response.status().as_u16() {
                200 | 206 | 416 => return Ok(Answer { response, address }),
                301 | 302 | 303 | 307 | 308 => address = address.redirected(header(&response, "location"))?,
                _ => return Err(status_error(&address, &response)),
            }
        }
        Err(address.unusable("too many redirects"))
    }

    fn send(&self, address: &Address, start: u64) -> Result<Response<Body>, HttpError> {
        let mut request = self
            .agent(address)?
            .get(address.uri.clone())
            .header("accept-encoding", "identity");
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        if let Some(token) = self
            .environment
            .token
            .as_ref()
            .filter(|_| address.origin() == self.hub.origin())
        {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| request_error(address, error))
    }

    /// One agent an address: proxy and trust depend on it, and connections are too few to be worth keeping.
    fn agent(&self, address: &Address) -> Result<Agent, HttpError> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("goldcrest/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(self.patience.answer))
            .timeout_connect(Some(self.patience.answer))
            .timeout_recv_response(Some(self.patience.answer))
            .timeout_per_read(Some(self.environment.download_timeout))
            .proxy(self.proxy(address)?);
        if address.is_https() {
            config = config.tls_config(self.tls()?);
        }
        Ok(config.build().new_agent())
    }

    fn tls(&self) -> Result<TlsConfig, HttpError> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        let tls = tls::config()?;
        Ok(self.tls.get_or_init(|| tls).clone())
    }

    fn proxy(&self, address: &Address) -> Result<Option<Proxy>, HttpError> {
        let (scheme, variable) = if address.is_https() {
            ("https", "HTTPS_PROXY")
        } else {
            ("http", "HTTP_PROXY")
        };
        match self.environment.proxies.for_address(address.is_https(), address.host()) {
            Some(proxy) => Proxy::new(proxy)
                .map(Some)
                .map_err(|_| HttpError::BadProxy { scheme, variable }),
            None => Ok(None),
        }
    }
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.response, name)
    }

    /// An error about this answer.
    pub(crate) fn unusable(&self, reason: impl Into<String>) -> HttpError {
        self.address.unusable(reason)
    }

    /// A transient error about this answer: asking again may help.
    pub(crate) fn broken(&self, reason: &str) -> HttpError {
        self.address.broken(reason)
    }

    /// The whole body, which must not be longer than `limit_bytes`.
    pub(crate) fn text(self, limit_bytes: u64) -> Result<String, HttpError> {
        let Self { response, address } = self;
        response
            .into_body()
            .into_with_config()
            .limit(limit_bytes)
            .read_to_string()
            .map_err(|error| request_error(&address, error))
    }

    /// The body as a stream.
    pub(crate) fn into_stream(self) -> Stream {
        let Self { response, address } = self;
        Stream {
            reader: response.into_body().into_reader(),
            address,
        }
    }
}

/// A body that is being read.
pub(crate) struct Stream {
    reader: ureq::BodyReader<'static>,
    address: Address,
}

impl Stream {
    /// The error of a body that ended before its file did.
    pub(crate) fn ended_early(&self) -> HttpError {
        self.address.broken("the connection ended early")
    }

    /// The next bytes; 0 at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, HttpError> {
        self.reader
            .read(buffer)
            .map_err(|error| io_error(&self.address, &error))
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

fn status_error(address: &Address, response: &Response<Body>) -> HttpError {
    let code = header(response, "x-error-code").map(str::to_owned);
    let shown = address.shown();
    match response.status().as_u16() {
        status @ (401 | 403) => HttpError::Refused {
            address: shown,
            status,
            code,
        },
        404 => HttpError::NotFound { address: shown, code },
        status @ (408 | 429 | 500..=599) => {
            let retry_after = header(response, "retry-after")
                .and_then(|value| value.trim().parse().ok())
                .map(Duration::from_secs);
            HttpError::Busy {
                address: shown,
                status,
                retry_after,
            }
        }
        status => address.unusable(format!("status {status}")),
    }
}

fn request_error(address: &Address, error: ureq::Error) -> HttpError {
    let host = address.host().to_owned();
    match error {
        ureq::Error::Timeout(phase) => HttpError::Timeout {
            host,
            phase: phase.to_string(),
        },
        ureq::Error::HostNotFound => HttpError::Unreachable {
            host,
            reason: "no such host, or no network".to_owned(),
        },
        ureq::Error::ConnectionFailed | ureq::Error::ConnectProxyFailed(_) => HttpError::Unreachable {
            host,
            reason: error.to_string(),
        },
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::TlsRequired => HttpError::Tls {
            host,
            reason: error.to_string(),
        },
        ureq::Error::Io(error) => io_error(address, &error),
        other => address.unusable(other.to_string()),
    }
}

/// Inside a body, and below it, the HTTP and TLS crates wrap their own errors into those of the system.
fn io_error(address: &Address, error: &io::Error) -> HttpError {
    let host = address.host().to_owned();
    match error.kind() {
        io::ErrorKind::TimedOut => HttpError::Timeout {
            host,
            phase: "the next bytes".to_owned(),
        },
        io::ErrorKind::InvalidData if address.is_https() => HttpError::Tls {
            host,
            reason: error.to_string(),
        },
        _ => HttpError::Unreachable {
            host,
            reason: error.to_string(),
        },
    }
}

/// An absolute `http:` or `https:` address.
#[derive(Clone)]
struct Address {
    uri: Uri,
}

impl Address {
    fn parse(text: &str) -> Result<Self, HttpError> {
        let bad = |reason: &str| HttpError::Unusable {
            address: without_query(text),
            reason: reason.to_owned(),
        };
        let uri = Uri::from_str(text).map_err(|_| bad("this is no address"))?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http" | "https"), Some(_)) => Ok(Self { uri }),
            _ => Err(bad("this is no http or https address")),
        }
    }

    fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    /// What has to be equal for a token to be sent.
    fn origin(&self) -> (bool, String, u16) {
        let port = self.uri.port_u16().unwrap_or(if self.is_https() { 443 } else { 80 });
        (self.is_https(), self.host().to_ascii_lowercase(), port)
    }

    fn shown(&self) -> String {
        without_query(&self.uri.to_string())
    }

    fn unusable(&self, reason: impl Into<String>) -> HttpError {
        HttpError::Unusable {
            address: self.shown(),
            reason: reason.into(),
        }
    }

    fn broken(&self, reason: &str) -> HttpError {
        HttpError::Unreachable {
            host: self.host().to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Where a redirect leads. From a secure address it must lead to a secure one.
    fn redirected(&self, location: Option<&str>) -> Result<Self, HttpError> {
        let location = location.ok_or_else(|| self.unusable("a redirect without a location"))?;
        let scheme = if self.is_https() { "https" } else { "http" };
        let authority = self.uri.authority().map(ToString::to_string).unwrap_or_default();
        let target = if location.contains("://") {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{scheme}://{rest}")
        } else if location.starts_with('/') {
            format!("{scheme}://{authority}{location}")
        } else {
            let folder = self.uri.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        };
        let target = Self::parse(&target)?;
        if self.is_https() && !target.is_https() {
            return Err(self.unusable("a redirect from https to http"));
        }
        Ok(target)
    }
}

fn without_query(address: &str) -> String {
    address.split(['?', '#']).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(from: &str, location: &str) -> Result<String, HttpError> {
        Address::parse(from)?
            .redirected(Some(location))
            .map(|address| address.uri.to_string())
    }

    #[test]
    fn redirects_relative_and_absolute() {
        let from = "https://hub/a/b?q=1";
        assert_eq!(
            redirect(from, "https://cdn/x?sig=2").as_deref(),
            Ok("https://cdn/x?sig=2")
        );
        assert_eq!(redirect(from, "//cdn/x").as_deref(), Ok("https://cdn/x"));
        assert_eq!(redirect(from, "/x").as_deref(), Ok("https://hub/x"));
        assert_eq!(redirect(from, "c").as_deref(), Ok("https://hub/a/c"));
        assert!(redirect(from, "http://cdn/x").is_err());
        assert!(redirect(from, "file:///etc/passwd").is_err());
    }

    #[test]
    fn origins_compare_scheme_host_and_port() {
        let origin = |text: &str| Address::parse(text).map(|address| address.origin());
        assert_eq!(origin("https://HUB/a"), origin("https://hub:443/b"));
        assert_ne!(origin("https://hub"), origin("http://hub"));
        assert_ne!(origin("https://hub"), origin("https://hub:8443"));
        assert_ne!(origin("https://hub"), origin("https://hub.evil"));
    }

    #[test]
    fn errors_do_not_show_signatures() {
        let error = Address::parse("https://cdn/x?sig=secret").map(|address| address.unusable("why"));
        assert!(!format!("{error:?}").contains("secret"));
    }
}
