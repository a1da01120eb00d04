//! TLS of the tools' HTTP client: the certificates that it trusts, and messages for certificates that it does not
//! trust.
//!
//! The trusted roots are the machine's own, so a company's certificate authority needs no option; on Linux
//! `SSL_CERT_FILE` names other roots. Verification cannot be switched off, since a party in the middle could read the
//! API key.

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

/// Returns a message if `error` is a TLS failure that no retry would mend, such as an untrusted certificate; `None` for
/// other errors.
pub(crate) fn mistrust(error: &ureq::Error) -> Option<String> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        // Errors of the handshake arrive wrapped.
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
        // rustls's messages state the times and the certificate's names.
        wrong => wrong.to_string(),
    }
}
