//! Files that appear whole or not at all, whatever comes between.

mod support;

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use goldcrest_format::AtomicFile;
use support::TempFolder;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_takes_its_place_whole() {
    let folder = TempFolder::new("atomic-whole");
    let path = folder.path().join("a");
    fs::write(&path, "old").unwrap();
    let mut dropped = AtomicFile::create(&path).unwrap();
    dropped.write_all(b"half").unwrap();
    let mut other = AtomicFile::create(&path).unwrap();
    other.write_all(b"new").unwrap();
    assert_eq!(
        names(folder.path()).len(),
        3,
        "each file in the making has a name of its own"
    );
    drop(dropped);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    other.finish().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(names(folder.path()), ["a"]);
}

#[test]
fn a_file_without_a_place_leaves_nothing() {
    let folder = TempFolder::new("atomic-none");
    let taken = folder.path().join("taken");
    let file = AtomicFile::create(&taken).unwrap();
    // A folder that stands in the way of the last step.
    fs::create_dir_all(taken.join("full")).unwrap();
    file.finish().unwrap_err();
    assert_eq!(names(folder.path()), ["taken"]);
    for (path, kind) in [
        (&*taken, ErrorKind::IsADirectory),
        (Path::new("/"), ErrorKind::IsADirectory),
        (Path::new(""), ErrorKind::InvalidFilename),
        (&*folder.path().join("missing/a"), ErrorKind::NotFound),
    ] {
        assert_eq!(AtomicFile::create(path).unwrap_err().kind(), kind, "{}", path.display());
    }
    assert_eq!(names(folder.path()), ["taken"]);
}

#[test]
fn what_a_killed_process_left_is_in_nobody_s_way() {
    let folder = TempFolder::new("atomic-left");
    let left: Vec<_> = (0..100)
        .map(|number| folder.write(&format!("a.{}-{number}.incomplete", std::process::id()), "left"))
        .collect();
    AtomicFile::create(&folder.path().join("a")).unwrap().finish().unwrap();
    assert!(left.iter().all(|path| fs::read_to_string(path).unwrap() == "left"));
}
