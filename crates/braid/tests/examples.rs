//! The example files are good.

use std::fs;
use std::path::{Path, PathBuf};

use braid_proxy::config::{BoxConfig, ServerConfig};
use braid_testbed::Spec;

const SECRET: &str = "secret = \"vXbm2Kx1VQk0pQm7cSg0o3Yd8nq4cT5zRfWl6uJh9Ae=\"";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// The text of an example, with the secret in place of the file it names.
fn text(name: &str) -> String {
    let text = fs::read_to_string(examples().join(name)).expect("a readable file");
    assert!(text.contains("secret_file = \"secret\""));
    text.replace("secret_file = \"secret\"", SECRET)
}

#[test]
fn box_and_server_fit_together() {
    let box_config = BoxConfig::from_toml("box.toml", &text("box.toml")).expect("a good file");
    let server = ServerConfig::from_toml("server.toml", &text("server.toml")).expect("a good file");
    let entry = &box_config.servers[0];
    assert_eq!(entry.user, server.users[0].name);
    assert_eq!(entry.secret, server.users[0].secret);
    assert_eq!(entry.port, server.port);
}

#[test]
fn testbeds_are_read() {
    let Ok(files) = fs::read_dir(examples().join("testbed")) else {
        return;
    };
    for file in files {
        let path = file.expect("a readable directory").path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            Spec::read(&path).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
