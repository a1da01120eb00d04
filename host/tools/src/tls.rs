//! HTTPS: the certificates that the client trusts, and its errors for others.
//!
//! The roots are the machine's own, so that a company's authority needs no option here; on Linux `SSL_CERT_FILE` names
//! others. Verification cannot be switched off, since a party that can read the answers can read the key.

use rustls::crypto::ring;
use rustls::{CertificateError, Error};
use std::sync::Arc;
use ureq::tls::{RootCerts, TlsConfig};

pub(crate) fn config() -> TlsConfig {
    TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build()
}

/// Returns why TLS failed, if another attempt would fail the same way: the certificate, the protocol, the roots. Returns
/// `None` for other errors.
pub(crate) fn mistrust(error: &ureq::Error) -> Option<String> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        // Errors of the handshake are wrapped.
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref()?,
        ureq::Error::Tls(words) => return Some((*words).to_owned()),
        _ => return None,
    };
    Some(match error {
        Error::InvalidCertificate(wrong) => {
            format!("its certificate is refused: {}", words_for(wrong))
        }
        // A plain HTTP server answers a handshake with text.
        Error::InvalidMessage(_) => format!("it does not speak TLS ({error}); is it http://?"),
        error => format!("no TLS connection: {error}"),
    })
}

fn words_for(wrong: &CertificateError) -> String {
    match wrong {
        CertificateError::UnknownIssuer => "this machine does not know who issued it \
            (add the authority to the machine's roots, or name its file in SSL_CERT_FILE)"
            .to_owned(),
        // rustls states the times, and the certificate's names.
        wrong => wrong.to_string(),
    }
}
