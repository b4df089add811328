//! `https:` for real: a server with a certificate of an authority that only these tests know (its private key was thrown away; the
//! server's own is in `tls/` and worth nothing). Trust comes from a variable, so each case runs in a process of its own.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

use common::{Folder, Published, listing_text};
use goldcrest_hub::{HttpError, HubError};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/authority.pem");

/// Serves the listing of one repository over TLS and returns the address.
fn serve() -> String {
    let certificate = CertificateDer::from(include_bytes!("tls/server.der").to_vec());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(include_bytes!("tls/server-key.der").to_vec()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Ok(connection) = ServerConnection::new(config.clone()) else {
                continue;
            };
            let mut stream = StreamOwned::new(connection, stream);
            // A client that does not trust this server hangs up; that is one of the cases.
            let _ = answer(&mut stream);
        }
    });
    format!("https://localhost:{port}")
}

fn answer(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let body = listing_text(&[Published::large("m.gguf", b"GGUF")]);
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}

fn run_alone(case: &str, roots: &str) {
    let me = std::env::current_exe().expect("this test");
    let mut command = Command::new(me);
    command
        .args(["--exact", case, "--ignored"])
        .env("SSL_CERT_FILE", roots)
        .env_remove("SSL_CERT_DIR");
    let output = command.output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_known_authority_is_trusted() {
    run_alone("trusting", AUTHORITY);
}

#[test]
fn an_unknown_authority_is_refused() {
    run_alone(
        "distrusting",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/other-authority.pem"),
    );
}

#[test]
fn no_roots_are_an_error_of_their_own() {
    run_alone("rootless", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
}

#[test]
#[ignore = "run by a_known_authority_is_trusted"]
fn trusting() {
    let plan = Folder::new()
        .hub(&serve(), &[])
        .plan_download("org/model")
        .expect("an answer");
    assert_eq!(plan.bytes(), 4);
}

#[test]
#[ignore = "run by an_unknown_authority_is_refused"]
fn distrusting() {
    let error = Folder::new()
        .hub(&serve(), &[])
        .plan_download("org/model")
        .expect_err("not trusted");
    assert!(matches!(error, HubError::Http(HttpError::Tls { .. })), "{error}");
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
}

#[test]
#[ignore = "run by no_roots_are_an_error_of_their_own"]
fn rootless() {
    let error = Folder::new()
        .hub(&serve(), &[])
        .plan_download("org/model")
        .expect_err("nothing to trust");
    assert!(
        matches!(error, HubError::Http(HttpError::NoRootCertificates { .. })),
        "{error}"
    );
}
