//! What the hub says about a revision: commit, licence, files with size and etag. One request.

use std::path::{Component, Path};

use serde_json::Value;

use crate::cache::is_commit;
use crate::digest::is_sha256;
use crate::http::{Http, HttpError};
use crate::name::is_word;

/// Far above any real answer; a repository of 10,000 files takes about 4 MB.
const MAX_LISTING_BYTES: u64 = 64 << 20;

pub(crate) struct Listing {
    pub(crate) commit: String,
    /// Names of the licences as the model card states them.
    pub(crate) license: Option<String>,
    pub(crate) files: Vec<ListedFile>,
}

pub(crate) struct ListedFile {
    /// Relative path with slashes; never leaves its folder.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Name of the blob in the cache: SHA-256 for large files, git object id for small ones.
    pub(crate) etag: String,
}

impl ListedFile {
    pub(crate) fn sha256(&self) -> Option<&str> {
        Some(self.etag.as_str()).filter(|etag| is_sha256(etag))
    }
}

pub(crate) fn request(http: &Http<'_>, endpoint: &str, repository: &str, revision: &str) -> Result<Listing, HttpError> {
    let revision = revision.replace('/', "%2F");
    let answer = http.get(
        &format!("{endpoint}/api/models/{repository}/revision/{revision}?blobs=true"),
        0,
    )?;
    let address = answer.unusable("");
    let bad = move |reason: &str| match address.clone() {
        HttpError::Unusable { address, .. } => HttpError::Unusable {
            address,
            reason: reason.to_owned(),
        },
        other => other,
    };
    let text = answer.text(MAX_LISTING_BYTES)?;
    let json: Value = serde_json::from_str(&text).map_err(|error| bad(&format!("no JSON: {error}")))?;
    parse(&json).map_err(|reason| bad(&reason))
}

fn parse(json: &Value) -> Result<Listing, String> {
    let commit = text(json, "sha")
        .filter(|commit| is_commit(commit))
        .ok_or("\"sha\" is no commit")?;
    let siblings = json
        .get("siblings")
        .and_then(Value::as_array)
        .ok_or("\"siblings\" is no list")?;
    let files = siblings.iter().map(listed_file).collect::<Result<Vec<_>, _>>()?;
    Ok(Listing {
        commit: commit.to_owned(),
        license: license(json),
        files,
    })
}

fn listed_file(json: &Value) -> Result<ListedFile, String> {
    let name = text(json, "rfilename").ok_or("a file without \"rfilename\"")?;
    if !is_inside(name) {
        return Err(format!("the file name {name:?} leaves its folder"));
    }
    let lfs = json.get("lfs").filter(|lfs| lfs.is_object());
    let bytes = lfs
        .unwrap_or(json)
        .get("size")
        .or_else(|| json.get("size"))
        .and_then(Value::as_u64);
    let etag = lfs
        .and_then(|lfs| text(lfs, "sha256").or_else(|| text(lfs, "oid")))
        .or_else(|| text(json, "blobId"));
    match (bytes, etag.filter(|etag| is_word(etag))) {
        (Some(bytes), Some(etag)) => Ok(ListedFile {
            name: name.to_owned(),
            bytes,
            etag: etag.to_owned(),
        }),
        _ => Err(format!("{name} has no \"size\" or no \"blobId\"")),
    }
}

fn license(json: &Value) -> Option<String> {
    let card = json.get("cardData");
    let stated = card.and_then(|card| card.get("license"));
    let from_card = match stated {
        Some(Value::Array(all)) => Some(all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")),
        Some(Value::String(one)) if one == "other" => card
            .and_then(|card| text(card, "license_name"))
            .or(Some("other"))
            .map(str::to_owned),
        Some(Value::String(one)) => Some(one.clone()),
        _ => None,
    };
    let tags = json.get("tags").and_then(Value::as_array);
    let from_tags = || {
        tags?
            .iter()
            .filter_map(Value::as_str)
            .find_map(|tag| tag.strip_prefix("license:"))
            .map(str::to_owned)
    };
    from_card.filter(|license| !license.is_empty()).or_else(from_tags)
}

fn text<'a>(json: &'a Value, key: &str) -> Option<&'a str> {
    json.get(key).and_then(Value::as_str)
}

fn is_inside(name: &str) -> bool {
    let plain = !name.is_empty() && !name.contains(['\\', '\0', ':']);
    plain
        && !name.split('/').any(str::is_empty)
        && Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn small_and_large_files_and_the_licence() {
        let sha = "b".repeat(64);
        let listing = parse(&json!({
            "sha": "a".repeat(40),
            "cardData": {"license": "apache-2.0"},
            "siblings": [
                {"rfilename": "config.json", "size": 12, "blobId": "c".repeat(40)},
                {"rfilename": "m.gguf", "size": 7, "blobId": "d".repeat(40), "lfs": {"sha256": sha, "size": 7, "pointerSize": 3}},
            ],
        }))
        .expect("a listing");
        assert_eq!(listing.license.as_deref(), Some("apache-2.0"));
        let seen: Vec<_> = listing
            .files
            .iter()
            .map(|file| (file.name.as_str(), file.bytes, file.sha256()))
            .collect();
        assert_eq!(seen, [("config.json", 12, None), ("m.gguf", 7, Some(sha.as_str()))]);
    }

    #[test]
    fn licences_in_all_places() {
        for (json, expected) in [
            (
                json!({"cardData": {"license": ["mit", "apache-2.0"]}}),
                Some("mit, apache-2.0"),
            ),
            (
                json!({"cardData": {"license": "other", "license_name": "own-terms"}}),
                Some("own-terms"),
            ),
            (json!({"cardData": {"license": "other"}}), Some("other")),
            (json!({"tags": ["gguf", "license:gemma"]}), Some("gemma")),
            (json!({}), None),
        ] {
            assert_eq!(license(&json).as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn hostile_answers_are_refused() {
        let with_file = |file: Value| parse(&json!({"sha": "a".repeat(40), "siblings": [file]}));
        for name in ["../x", "/etc/passwd", "a/../../x", "", "a//b", "a\\..\\b", "./x"] {
            assert!(
                with_file(json!({"rfilename": name, "size": 1, "blobId": "b"})).is_err(),
                "{name:?}"
            );
        }
        assert!(with_file(json!({"rfilename": "a", "size": 1, "blobId": "../b"})).is_err());
        assert!(with_file(json!({"rfilename": "a", "size": -1, "blobId": "b"})).is_err());
        assert!(with_file(json!({"rfilename": "a", "blobId": "b"})).is_err());
        assert!(parse(&json!({"sha": "main", "siblings": []})).is_err());
        assert!(parse(&json!({"sha": "a".repeat(40)})).is_err());
    }
}
