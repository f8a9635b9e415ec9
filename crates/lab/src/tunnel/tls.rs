//! TLS settings of the QUIC hosts, which all connections share.

use std::sync::{Arc, LazyLock};

use braid_testbed::tls;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};

static CLIENT: LazyLock<Arc<QuicClientConfig>> = LazyLock::new(|| {
    Arc::new(QuicClientConfig::try_from(tls::client()).expect("the suites are those of QUIC"))
});

static SERVER: LazyLock<Arc<QuicServerConfig>> = LazyLock::new(|| {
    Arc::new(QuicServerConfig::try_from(tls::server()).expect("the suites are those of QUIC"))
});

/// Returns the settings of a client.
pub fn client() -> Arc<QuicClientConfig> {
    Arc::clone(&CLIENT)
}

/// Returns the settings of a server.
pub fn server() -> Arc<QuicServerConfig> {
    Arc::clone(&SERVER)
}
