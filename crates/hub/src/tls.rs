//! Trust and cryptography for `https:`. The only module that names the certificate and crypto-provider crates.
//!
//! Roots are the operating system's, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`; none are built in, so that a company's own
//! authority works and a withdrawn one does not.

use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::http::HttpError;

/// The configuration of a client.
pub(crate) fn config() -> Result<TlsConfig, HttpError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reason = found
            .errors
            .first()
            .map_or_else(|| "the operating system has none".to_owned(), ToString::to_string);
        return Err(HttpError::NoRootCertificates { reason });
    }
    let roots = found
        .certs
        .iter()
        .map(|certificate| Certificate::from_der(certificate.as_ref()).to_owned());
    let builder = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::from(roots));
    // The provider asserts its instructions at first use; asked here, the answer is an error instead.
    if !has_instructions() {
        return Err(HttpError::TlsUnsupported);
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    let builder = builder.unversioned_rustls_crypto_provider(std::sync::Arc::new(rustls_graviola::default_provider()));
    Ok(builder.build())
}

#[cfg(target_arch = "x86_64")]
fn has_instructions() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("aes")
        && has!("ssse3")
        && has!("pclmulqdq")
        && has!("avx")
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("adx")
}

#[cfg(target_arch = "aarch64")]
fn has_instructions() -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_instructions() -> bool {
    false
}
