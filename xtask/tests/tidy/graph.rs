//! Rules about dependencies, as cargo itself resolves them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::Violation;
use crate::places::DEPENDENCIES;
use crate::source::root;

/// What each crate of ours may depend on. Tests may depend on more.
const EDGES: &[(&str, &[&str])] = &[
    ("goldcrest-format", &[]),
    ("goldcrest-kernels", &[]),
    ("goldcrest-hub", &[]),
    ("goldcrest-model", &["goldcrest-format"]),
    ("goldcrest-text", &["goldcrest-format"]),
    (
        "goldcrest-cpu",
        &["goldcrest-format", "goldcrest-model", "goldcrest-kernels"],
    ),
    (
        "goldcrest-engine",
        &[
            "goldcrest-format",
            "goldcrest-model",
            "goldcrest-kernels",
            "goldcrest-cpu",
        ],
    ),
    (
        "goldcrest",
        &[
            "goldcrest-format",
            "goldcrest-model",
            "goldcrest-kernels",
            "goldcrest-cpu",
            "goldcrest-engine",
            "goldcrest-text",
            "goldcrest-hub",
            "goldcrest-verify",
        ],
    ),
    ("goldcrest-verify", &["goldcrest-format", "goldcrest-engine"]),
    ("xtask", &["goldcrest-format", "goldcrest-hub"]),
];

/// Packages from outside: for who embeds the engine (download aside), and for the whole command.
const BUDGETS: &[(&[&str], usize)] = &[
    (&["goldcrest-engine", "goldcrest-text"], 100),
    (&["goldcrest", "goldcrest-hub"], 200),
];

const LICENCES: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

/// Packages that build or look for native code.
const NATIVE_BUILDERS: [&str; 5] = ["bindgen", "cc", "cmake", "pkg-config", "vcpkg"];

#[derive(Default)]
pub(crate) struct Graph {
    /// Normal and build dependencies, by crate of ours.
    dependencies: BTreeMap<String, BTreeSet<String>>,
    /// Packages from outside with version, by root of a budget.
    outside: BTreeMap<Vec<String>, BTreeSet<String>>,
    /// Licence by package from outside.
    licences: BTreeMap<String, String>,
}

impl Graph {
    pub(crate) fn of_workspace() -> Self {
        let mut graph = Self {
            dependencies: declared(),
            ..Self::default()
        };
        for (roots, _) in BUDGETS {
            let packages = tree(roots);
            let names = packages.keys().cloned().collect();
            graph
                .outside
                .insert(roots.iter().map(ToString::to_string).collect(), names);
            graph.licences.extend(packages);
        }
        graph
    }

    pub(crate) fn forbidden_edges(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (name, dependencies) in &self.dependencies {
            let Some((_, allowed)) = EDGES.iter().find(|(known, _)| known == name) else {
                found.push(in_manifest(format!(
                    "the crate {name} is not on the map; add it here and to ARCHITECTURE.md"
                )));
                continue;
            };
            for dependency in dependencies {
                let ours = self.dependencies.contains_key(dependency);
                let wrapped = DEPENDENCIES
                    .iter()
                    .any(|(known, _)| *known == dependency.replace('-', "_"));
                if ours && !allowed.contains(&dependency.as_str()) {
                    found.push(in_manifest(format!("{name} must not depend on {dependency}")));
                } else if !ours && !wrapped {
                    found.push(in_manifest(format!(
                        "{dependency}, needed by {name}, has no module that wraps it"
                    )));
                }
            }
        }
        found
    }

    pub(crate) fn over_budget(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (roots, limit) in BUDGETS {
            let roots: Vec<String> = roots.iter().map(ToString::to_string).collect();
            let count = self.outside.get(&roots).map_or(0, BTreeSet::len);
            if count > *limit {
                found.push(in_manifest(format!(
                    "{} need {count} packages, at most {limit}",
                    roots.join(" and ")
                )));
            }
        }
        found
    }

    pub(crate) fn restrictive_licences(&self) -> Vec<Violation> {
        let restrictive = self.licences.iter().filter(|(_, licence)| !is_permissive(licence));
        restrictive
            .map(|(package, licence)| in_manifest(format!("{package} has the licence {licence:?}")))
            .collect()
    }

    pub(crate) fn native_builds(&self) -> Vec<Violation> {
        let packages = self.licences.keys();
        let native =
            packages.filter(|package| NATIVE_BUILDERS.contains(&package.split(' ').next().unwrap_or_default()));
        native
            .map(|package| in_manifest(format!("{package} builds native code")))
            .collect()
    }
}

fn in_manifest(message: String) -> Violation {
    Violation {
        path: "Cargo.toml".to_owned(),
        line: 0,
        message,
    }
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo");
    assert!(
        output.status.success(),
        "cargo {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Normal and build dependencies as the manifests declare them.
fn declared() -> BTreeMap<String, BTreeSet<String>> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])).expect("JSON");
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let product = |package: &Value| {
        let dependencies = list(package, "dependencies")
            .into_iter()
            .filter(|dependency| dependency["kind"] != "dev");
        dependencies.map(|dependency| text(&dependency, "name")).collect()
    };
    list(&metadata, "packages")
        .iter()
        .map(|package| (text(package, "name"), product(package)))
        .collect()
}

/// Packages from outside that are built for some crates, `name vVERSION`, with their licences.
fn tree(roots: &[&str]) -> BTreeMap<String, String> {
    let mut arguments = vec![
        "tree",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}|{l}",
    ];
    for root in roots {
        arguments.extend(["--package", root]);
    }
    let text = cargo(&arguments);
    let lines = text
        .lines()
        .filter_map(|line| line.trim_end_matches(" (*)").split_once('|'));
    // Ours are shown with their folder.
    let outside = lines.filter(|(package, _)| !package.contains(" (/") && !package.contains(":\\"));
    outside
        .map(|(package, licence)| (package.replace(" (proc-macro)", ""), licence.to_owned()))
        .collect()
}

/// Whether an SPDX expression can be met by permissive licences alone. An old spelling of OR is a slash.
fn is_permissive(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut tokens: Vec<&str> = spaced.split_whitespace().rev().collect();
    let met = any_of(&mut tokens);
    met && tokens.is_empty()
}

fn any_of(tokens: &mut Vec<&str>) -> bool {
    let mut met = all_of(tokens);
    while tokens.last() == Some(&"OR") {
        tokens.pop();
        met |= all_of(tokens);
    }
    met
}

fn all_of(tokens: &mut Vec<&str>) -> bool {
    let mut met = one(tokens);
    while tokens.last() == Some(&"AND") {
        tokens.pop();
        met &= one(tokens);
    }
    met
}

fn one(tokens: &mut Vec<&str>) -> bool {
    match tokens.pop() {
        Some("(") => {
            let met = any_of(tokens);
            tokens.pop() == Some(")") && met
        }
        Some(name) if tokens.last() == Some(&"WITH") => {
            tokens.pop();
            let full = format!("{name} WITH {}", tokens.pop().unwrap_or_default());
            LICENCES.contains(&full.as_str())
        }
        Some(name) => LICENCES.contains(&name),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn graph(dependencies: &[(&str, &[&str])]) -> Graph {
        let dependencies = dependencies
            .iter()
            .map(|(name, needs)| ((*name).to_owned(), set(needs)))
            .collect();
        Graph {
            dependencies,
            ..Graph::default()
        }
    }

    #[test]
    fn edges_off_the_map_are_found() {
        let right: [(&str, &[&str]); 2] = [
            ("goldcrest-format", &["half"]),
            ("goldcrest-model", &["goldcrest-format"]),
        ];
        assert_eq!(graph(&right).forbidden_edges(), []);
        let wrong: [(&str, &[&str]); 2] = [("goldcrest-format", &["goldcrest-model"]), ("goldcrest-model", &[])];
        assert_eq!(graph(&wrong).forbidden_edges().len(), 1);
        assert_eq!(
            graph(&[("goldcrest-format", &["unheard-of"])]).forbidden_edges().len(),
            1
        );
        assert_eq!(graph(&[("goldcrest-new", &[])]).forbidden_edges().len(), 1);
    }

    #[test]
    fn too_many_packages_are_found() {
        let (roots, limit) = BUDGETS[0];
        let with = |count: usize| {
            let packages = (0..count).map(|i| format!("p{i} v1.0.0")).collect();
            let outside = BTreeMap::from([(roots.iter().map(ToString::to_string).collect(), packages)]);
            Graph {
                outside,
                ..Graph::default()
            }
            .over_budget()
            .len()
        };
        assert_eq!((with(limit), with(limit + 1)), (0, 1));
    }

    #[test]
    fn restrictive_licences_and_native_builds_are_found() {
        let licences = |name: &str, licence: &str| Graph {
            licences: BTreeMap::from([(name.to_owned(), licence.to_owned())]),
            ..Graph::default()
        };
        assert_eq!(licences("a v1.0.0", "GPL-3.0").restrictive_licences().len(), 1);
        assert_eq!(licences("a v1.0.0", "MIT").restrictive_licences().len(), 0);
        assert_eq!(licences("cc v1.0.0", "MIT").native_builds().len(), 1);
        assert_eq!(licences("cc-like v1.0.0", "MIT").native_builds().len(), 0);
    }

    #[test]
    fn licence_expressions() {
        let right = [
            "MIT",
            "MIT OR GPL-3.0",
            "Apache-2.0/MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ];
        for expression in right {
            assert!(is_permissive(expression), "{expression}");
        }
        for expression in ["", "GPL-3.0", "MIT AND GPL-3.0", "MPL-2.0", "(MIT", "MIT) ("] {
            assert!(!is_permissive(expression), "{expression}");
        }
    }
}
