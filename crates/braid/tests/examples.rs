//! Tests that the example files are valid.

use std::fs;
use std::path::{Path, PathBuf};

use braid_proxy::config::{BoxConfig, ServerConfig};
use braid_secure::keys::PrivateKey;
use braid_testbed::Spec;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Returns the text of an example, and a key in place of the one in the file that it names.
fn example(name: &str, key_file: &str) -> (String, PrivateKey) {
    let text = fs::read_to_string(examples().join(name)).expect("a readable file");
    assert!(text.contains(&format!("key_file = \"{key_file}\" ")));
    assert!(text.contains(&format!("braid key new {key_file}\n")));
    (text, PrivateKey::from_seed([1; 32]))
}

#[test]
fn box_and_server_fit_together() {
    let (text, key) = example("box.toml", "box.key");
    let box_config = BoxConfig::with_key("box.toml", &text, key).expect("a good file");
    let (text, key) = example("server.toml", "server.key");
    let server = ServerConfig::with_key("server.toml", &text, key).expect("a good file");
    let entry = &box_config.servers[0];
    assert_eq!(entry.port, server.port);
    assert_eq!(box_config.name, server.users[0].name);
    assert_ne!(entry.key, server.users[0].key);
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
