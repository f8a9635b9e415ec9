//! Box and server of different releases.

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, World};
use braid_proxy::status::ProtocolStatus;
use braid_proxy::verdict::Condition;
use braid_secure::channel::Versions;

/// The content that users request.
const BYTES: &[u8] = b"seven bytes and more";

fn speaks(oldest: u16, newest: u16, features: u32) -> Versions {
    Versions::new(oldest, newest, features).unwrap()
}

/// Creates a box and a server with these versions; returns whether a user is served.
fn asked(versions: [Versions; 2]) -> (World, bool) {
    let setup = Setup {
        versions: Some(versions),
        ..Setup::default()
    };
    let mut w = World::up(2, setup);
    w.content(CONTENT, Content::Sends(BYTES.to_vec(), true));
    w.run_for(core::time::Duration::from_secs(1));
    let user = w.open(CONTENT, &[], false);
    w.run_until(|w| w.user(user).got == BYTES || w.user(user).closed);
    let served = w.user(user).got == BYTES;
    (w, served)
}

#[test]
fn neighbours_speak_the_newest_version_of_both() {
    let next = speaks(2, 3, 0b1001);
    let agreed = |version, features: &[u8]| {
        let features = features.to_vec();
        Some(ProtocolStatus { version, features })
    };
    let before = speaks(1, 1, 0);
    let cases = [
        ([Versions::OURS; 2], agreed(2, &[0])),
        ([before, Versions::OURS], agreed(1, &[])),
        ([Versions::OURS, before], agreed(1, &[])),
        ([next, Versions::OURS], agreed(2, &[0])),
        ([Versions::OURS, next], agreed(2, &[0])),
        ([next, speaks(3, 4, 0b11000)], agreed(3, &[3])),
    ];
    for (versions, expected) in cases {
        let (mut w, served) = asked(versions);
        assert!(served, "{versions:?}");
        assert_eq!(w.box_status().servers[0].protocol, expected, "{versions:?}");
        // The status of a connection shows the version, at both ends.
        w.content(CONTENT, Content::Echoes);
        let user = w.open(CONTENT, BYTES, false);
        w.run_until(|w| w.user(user).got == BYTES);
        for status in [w.box_status(), w.server_status()] {
            let connections = &status.connections;
            assert!(!connections.is_empty());
            let all = connections.iter().all(|conn| conn.protocol == expected);
            assert!(all, "{versions:?}: {connections:?}");
        }
    }
}

#[test]
fn where_there_is_no_version_in_common_both_ends_say_so() {
    for versions in [
        [Versions::OURS, speaks(3, 4, 0)],
        [speaks(3, 4, 0), Versions::OURS],
    ] {
        let (w, served) = asked(versions);
        assert!(!served, "{versions:?}");
        let status = w.box_status();
        let server = &status.servers[0];
        assert_eq!(server.condition, Condition::OtherVersion, "{versions:?}");
        assert_eq!(server.protocol, None);
        assert!(w.server().counters().incompatible > 0);
        assert_eq!(w.server().counters().damaged, 0);
        assert_eq!(w.server().counters().connected, 0);
    }
}
