//! A hub in miniature on the loopback interface, and folders that go away.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use goldcrest_hub::{Environment, Hub, HubError, Located};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as it came: the target of the first line and the headers, names in lower case.
#[derive(Debug, Clone)]
pub struct Request {
    pub target: String,
    pub headers: HashMap<String, String>,
}

impl Request {
    /// Where the requested range begins.
    pub fn start(&self) -> Option<usize> {
        self.headers
            .get("range")?
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

/// An answer. The body is cut off after `sent_bytes`, and `pause` comes before its last byte.
#[derive(Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    sent_bytes: usize,
    announced: bool,
    delay: Duration,
    pause: Duration,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let sent_bytes = body.len();
        let (headers, delay, pause) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        Self {
            status,
            headers,
            body,
            sent_bytes,
            announced: true,
            delay,
            pause,
        }
    }

    /// The file from where the request wants it.
    pub fn file(request: &Request, content: &[u8]) -> Self {
        match request.start() {
            None => Self::new(200, content),
            Some(start) => Self::new(206, &content[start..]).header(
                "content-range",
                &format!("bytes {start}-{}/{}", content.len() - 1, content.len()),
            ),
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The connection breaks after this many bytes of the body.
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.sent_bytes = bytes.min(self.body.len());
        self
    }

    /// Without a content length the body ends with the connection.
    pub fn unannounced(mut self) -> Self {
        self.announced = false;
        self
    }

    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub fn pausing(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        std::thread::sleep(self.delay);
        let mut head = format!("HTTP/1.1 {} x\r\nconnection: close\r\n", self.status);
        if self.announced {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        let sent = &self.body[..self.sent_bytes];
        let (first, last) = sent.split_at(sent.len().saturating_sub(1));
        stream.write_all(first)?;
        stream.flush()?;
        std::thread::sleep(self.pause);
        stream.write_all(last)
    }
}

/// A server that runs until the test's process ends.
pub struct Server {
    pub address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, log) = (Arc::new(answer), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (answer.clone(), log.clone());
                std::thread::spawn(move || serve(stream, &*answer, &log));
            }
        });
        Self { address, requests }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("log").clone()
    }

    /// Requests whose target contains a text.
    pub fn count(&self, part: &str) -> usize {
        self.requests()
            .iter()
            .filter(|request| request.target.contains(part))
            .count()
    }
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Reply, log: &Mutex<Vec<Request>>) {
    let mut lines = BufReader::new(stream.try_clone().expect("handle"))
        .lines()
        .map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    let request = Request {
        target,
        headers: headers.collect(),
    };
    log.lock().expect("log").push(request.clone());
    // A client that hung up in the meantime is part of some tests.
    let _ = answer(&request).send(&mut stream);
}

/// One file of a repository.
pub struct Published {
    pub name: &'static str,
    pub content: Vec<u8>,
    /// Large files are named by their SHA-256, small ones by a git object id.
    pub etag: String,
}

impl Published {
    pub fn large(name: &'static str, content: &[u8]) -> Self {
        Self {
            name,
            content: content.to_vec(),
            etag: sha256(content),
        }
    }

    pub fn small(name: &'static str, content: &[u8]) -> Self {
        Self {
            name,
            content: content.to_vec(),
            etag: sha256(content)[..40].to_owned(),
        }
    }
}

/// The answer of the hub about a revision.
pub fn listing(files: &[Published]) -> Reply {
    Reply::new(200, listing_text(files))
}

pub fn listing_text(files: &[Published]) -> String {
    let entries = files.iter().map(|file| {
        let (name, etag, bytes) = (file.name, &file.etag, file.content.len());
        if etag.len() == 64 {
            format!(
                r#"{{"rfilename":"{name}","size":{bytes},"blobId":"x","lfs":{{"sha256":"{etag}","size":{bytes}}}}}"#
            )
        } else {
            format!(r#"{{"rfilename":"{name}","size":{bytes},"blobId":"{etag}"}}"#)
        }
    });
    let siblings = entries.collect::<Vec<_>>().join(",");
    format!(r#"{{"sha":"{COMMIT}","cardData":{{"license":"mit"}},"siblings":[{siblings}]}}"#)
}

/// A well-behaved hub that holds one repository.
pub fn hub_with(files: Vec<Published>) -> Server {
    Server::start(move |request| {
        if request.target.starts_with("/api/models/") {
            return listing(&files);
        }
        let found = files
            .iter()
            .find(|file| request.target.ends_with(&format!("/resolve/{COMMIT}/{}", file.name)));
        found.map_or_else(|| Reply::new(404, ""), |file| Reply::file(request, &file.content))
    })
}

pub fn sha256(content: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A temporary folder.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("goldcrest-hub-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("temporary folder");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A client with this cache; short waits, so that tests of silence are quick.
    pub fn hub(&self, endpoint: &str, more: &[(&str, &str)]) -> Hub {
        let cache = self.0.to_str().expect("utf-8");
        let mut all = vec![
            ("HF_HUB_CACHE", cache),
            ("HF_ENDPOINT", endpoint),
            ("HF_TOKEN_PATH", "/nonexistent"),
        ];
        all.extend([("HF_HUB_ETAG_TIMEOUT", "2"), ("HF_HUB_DOWNLOAD_TIMEOUT", "2")]);
        let find = |name: &str| {
            more.iter()
                .chain(&all)
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        Hub::new(Environment::from_lookup(find, None))
    }

    /// Paths of all files and links below, relative, in order.
    pub fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        visit(&self.0, "", &mut found);
        found.sort();
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("clean up");
    }
}

fn visit(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("folder").flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().expect("type").is_dir() {
            visit(&entry.path(), &format!("{name}/"), found);
        } else {
            found.push(name);
        }
    }
}

/// Plans and fetches, without looking at the progress.
pub fn pull(hub: &Hub, name: &str) -> Result<Located, HubError> {
    hub.fetch(&hub.plan_download(name)?, &mut |_| {})
}
