//! The environment variables that decide where models are kept and how the hub is reached, read once.
//!
//! Names, defaults and the spelling of booleans are those of the Python client, so that both agree on one machine.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything this crate takes from the process environment.
#[derive(Clone)]
#[non_exhaustive]
pub struct Environment {
    /// The cache folder: `HF_HUB_CACHE`, else `HUGGINGFACE_HUB_CACHE`, else `hub` under `HF_HOME`, else under
    /// `huggingface` in `XDG_CACHE_HOME` or `~/.cache`.
    pub cache: PathBuf,
    /// Address of the hub without a trailing slash: `HF_ENDPOINT`.
    pub endpoint: String,
    /// Access token: `HF_TOKEN`, else the content of `HF_TOKEN_PATH`, else of `$HF_HOME/token`. `None` where
    /// `HF_HUB_DISABLE_IMPLICIT_TOKEN` is on.
    pub token: Option<String>,
    /// No request is made: `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// The caller should draw no progress bar: `HF_HUB_DISABLE_PROGRESS_BARS`.
    pub progress_bars_disabled: bool,
    /// Files are put into snapshots themselves: `HF_HUB_DISABLE_SYMLINKS`.
    pub symlinks_disabled: bool,
    /// Longest wait for a connection and for the head of an answer: `HF_HUB_ETAG_TIMEOUT`.
    pub etag_timeout: Duration,
    /// Longest silence inside a download: `HF_HUB_DOWNLOAD_TIMEOUT`.
    pub download_timeout: Duration,
    /// Proxies.
    pub proxies: Proxies,
}

/// Proxy settings, each variable in either case.
#[derive(Clone, Default)]
pub struct Proxies {
    /// For `http:` addresses: `HTTP_PROXY`, else `ALL_PROXY`.
    pub http: Option<String>,
    /// For `https:` addresses: `HTTPS_PROXY`, else `ALL_PROXY`.
    pub https: Option<String>,
    /// Hosts reached directly: `NO_PROXY`, split at commas.
    pub exempt: Vec<String>,
}

impl Environment {
    /// Reads the variables of this process, and the token file if one is named or in its usual place.
    pub fn from_process() -> Self {
        Self::from_lookup(|name| std::env::var_os(name), std::env::home_dir())
    }

    /// The same from any source of variables. `home` is the user's home folder.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Self {
        let path = |name: &str| {
            lookup(name)
                .filter(|value| !value.is_empty())
                .map(|value| expand(value, home.as_deref()))
        };
        let text = |name: &str| {
            lookup(name)
                .and_then(|value| value.into_string().ok())
                .filter(|value| !value.trim().is_empty())
        };
        let flag = |name: &str| text(name).is_some_and(|value| is_true(&value));
        let seconds = |name: &str| text(name).and_then(|value| seconds(&value)).unwrap_or(DEFAULT_TIMEOUT);

        // Without any home the root folder stands in, as for the Python client.
        let caches =
            path("XDG_CACHE_HOME").unwrap_or_else(|| home.clone().unwrap_or_else(|| PathBuf::from("/")).join(".cache"));
        let hf_home = path("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| hf_home.join("hub"));
        let token = if flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            None
        } else {
            text("HF_TOKEN").or_else(|| read_token(&path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"))))
        };
        Self {
            cache,
            endpoint: text("HF_ENDPOINT")
                .unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned())
                .trim()
                .trim_end_matches('/')
                .to_owned(),
            token: token.map(|token| token.trim().to_owned()),
            offline: flag("HF_HUB_OFFLINE"),
            progress_bars_disabled: flag("HF_HUB_DISABLE_PROGRESS_BARS"),
            symlinks_disabled: flag("HF_HUB_DISABLE_SYMLINKS"),
            etag_timeout: seconds("HF_HUB_ETAG_TIMEOUT"),
            download_timeout: seconds("HF_HUB_DOWNLOAD_TIMEOUT"),
            proxies: Proxies::from_lookup(text),
        }
    }
}

/// The token is left out, so that a log of the environment does not hold it.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "set"))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl Proxies {
    fn from_lookup(text: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| text(&name.to_ascii_lowercase()).or_else(|| text(name));
        let all = either("ALL_PROXY");
        Self {
            http: either("HTTP_PROXY").or_else(|| all.clone()),
            https: either("HTTPS_PROXY").or(all),
            exempt: either("NO_PROXY")
                .map(|list| {
                    list.split(',')
                        .map(|entry| entry.trim().to_ascii_lowercase())
                        .filter(|entry| !entry.is_empty())
                        .collect()
                })
                .unwrap_or_default(),
        }
    }

    /// The proxy for an address, `None` for a direct connection. An entry `example.com`, `.example.com` or `*.example.com` of
    /// `NO_PROXY` exempts the domain and everything under it; `*` exempts all.
    pub(crate) fn for_address(&self, https: bool, host: &str) -> Option<&str> {
        let host = host.to_ascii_lowercase();
        let exempt = self.exempt.iter().any(|entry| {
            let domain = entry.trim_start_matches('*').trim_start_matches('.');
            entry == "*" || host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
        });
        let proxy = if https { &self.https } else { &self.http };
        proxy.as_deref().filter(|_| !exempt)
    }
}

/// `~` and `~/…` become the home folder; anything else stays.
fn expand(value: OsString, home: Option<&Path>) -> PathBuf {
    let path = PathBuf::from(value);
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
}

/// Zero and anything that is no number of seconds count as unset.
fn seconds(value: &str) -> Option<Duration> {
    value
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// An unreadable or empty token file is no token: most machines have none.
fn read_token(path: &Path) -> Option<String> {
    let token = std::fs::read_to_string(path).ok()?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Environment {
        let find = |name: &str| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        Environment::from_lookup(find, Some(PathBuf::from("/u")))
    }

    #[test]
    fn cache_folder_precedence() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[], "/u/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")], "/h/hub"),
            (&[("HF_HOME", "~/h")], "/u/h/hub"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")], "/new"),
            (&[("HF_HUB_CACHE", "")], "/u/.cache/huggingface/hub"),
        ];
        for (pairs, expected) in cases {
            assert_eq!(read(pairs).cache, PathBuf::from(expected), "{pairs:?}");
        }
    }

    #[test]
    fn booleans_are_four_words_in_any_case() {
        for word in ["1", "ON", "yes", "True"] {
            assert!(read(&[("HF_HUB_OFFLINE", word)]).offline, "{word}");
        }
        for word in ["0", "off", "", "2", "y"] {
            assert!(!read(&[("HF_HUB_OFFLINE", word)]).offline, "{word}");
        }
    }

    #[test]
    fn token_sources_and_the_switch_that_ignores_them() {
        let folder = std::env::temp_dir().join(format!("goldcrest-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temporary folder");
        std::fs::write(folder.join("token"), "hf_file\n").expect("token file");
        let home = folder.to_str().expect("utf-8");
        assert_eq!(read(&[("HF_HOME", home)]).token.as_deref(), Some("hf_file"));
        assert_eq!(
            read(&[("HF_HOME", home), ("HF_TOKEN", " hf_env\n")]).token.as_deref(),
            Some("hf_env")
        );
        assert_eq!(
            read(&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).token,
            None
        );
        assert_eq!(read(&[("HF_HOME", home), ("HF_TOKEN_PATH", "/nowhere")]).token, None);
        assert!(!format!("{:?}", read(&[("HF_TOKEN", "hf_secret")])).contains("hf_secret"));
        std::fs::remove_dir_all(&folder).expect("clean up");
    }

    #[test]
    fn endpoint_and_timeouts() {
        let environment = read(&[
            ("HF_ENDPOINT", "http://mirror:8080/"),
            ("HF_HUB_ETAG_TIMEOUT", "2.5"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "-1"),
        ]);
        assert_eq!(environment.endpoint, "http://mirror:8080");
        assert_eq!(environment.etag_timeout, Duration::from_millis(2500));
        assert_eq!(environment.download_timeout, DEFAULT_TIMEOUT);
    }

    #[test]
    fn proxies_and_their_exemptions() {
        let proxies = read(&[
            ("HTTPS_PROXY", "http://p:1"),
            ("ALL_PROXY", "http://a:2"),
            ("no_proxy", "Example.com, .internal"),
        ])
        .proxies;
        assert_eq!(proxies.for_address(true, "huggingface.co"), Some("http://p:1"));
        assert_eq!(proxies.for_address(false, "huggingface.co"), Some("http://a:2"));
        assert_eq!(proxies.for_address(true, "cdn.example.com"), None);
        assert_eq!(proxies.for_address(true, "EXAMPLE.com"), None);
        assert_eq!(proxies.for_address(true, "host.internal"), None);
        assert_eq!(proxies.for_address(true, "notexample.com"), Some("http://p:1"));
        assert_eq!(
            read(&[("https_proxy", "http://p:1"), ("NO_PROXY", "*")])
                .proxies
                .for_address(true, "any"),
            None
        );
    }
}
