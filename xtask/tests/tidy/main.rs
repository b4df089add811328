//! What a program can check about this repository, checked: sizes, places, words, dependencies.
//!
//! A rule is a function from a file to its violations, with a test that shows it a bad piece and sees it fire. Exemptions are
//! in tables beside their rule, each with its reason.

mod functions;
mod graph;
mod places;
mod source;
mod text;

use source::Source;

/// A broken rule, at a place.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    /// From 1; 0 where the whole file is meant.
    line: usize,
    message: String,
}

fn violation(source: &Source, line: usize, message: impl Into<String>) -> Violation {
    Violation {
        path: source.path.clone(),
        line,
        message: message.into(),
    }
}

fn report(violations: &[Violation]) {
    let lines: Vec<String> = violations
        .iter()
        .map(|found| format!("{}:{}: {}", found.path, found.line, found.message))
        .collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
}

fn check(rules: &[fn(&Source) -> Vec<Violation>]) {
    let files = source::repository();
    assert!(files.len() > 50, "only {} files were found", files.len());
    let all: Vec<Violation> = files
        .iter()
        .flat_map(|file| rules.iter().flat_map(|rule| rule(file)))
        .collect();
    report(&all);
}

#[test]
fn lines_and_files_are_short() {
    check(&[text::line_length, text::file_length]);
}

#[test]
fn functions_are_short_and_take_few_parameters() {
    check(&[functions::length, functions::parameters]);
}

#[test]
fn nothing_is_left_unfinished() {
    check(&[text::unfinished]);
}

#[test]
fn no_text_names_a_machine_or_a_registry() {
    check(&[text::machine_paths]);
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why() {
    check(&[places::unsafe_code]);
}

#[test]
fn environment_variables_are_read_in_two_crates() {
    check(&[places::environment]);
}

#[test]
fn family_names_stay_in_the_families() {
    check(&[places::family_names]);
}

#[test]
fn each_dependency_is_wrapped_once() {
    check(&[places::dependency_names]);
}

#[test]
fn exemptions_are_of_files_that_exist() {
    let files = source::repository();
    let exempt = text::exempt_paths().chain(places::exempt_paths());
    let gone: Vec<&str> = exempt
        .filter(|path| !files.iter().any(|file| file.path.starts_with(path)))
        .collect();
    assert!(gone.is_empty(), "exempt, but not there: {gone:?}");
}

#[test]
fn crates_depend_on_what_the_map_allows() {
    report(&graph::Graph::of_workspace().forbidden_edges());
}

#[test]
fn dependencies_stay_within_their_budget() {
    report(&graph::Graph::of_workspace().over_budget());
}

#[test]
fn licences_are_permissive() {
    report(&graph::Graph::of_workspace().restrictive_licences());
}

#[test]
fn no_dependency_builds_c() {
    report(&graph::Graph::of_workspace().native_builds());
}
