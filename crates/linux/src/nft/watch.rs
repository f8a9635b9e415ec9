//! Reads the contents of nftables tables from the kernel, and tells which process changed them.
//!
//! The tables are read by netlink and not by `nft`: another program may change its own tables many times a
//! second, and the kernel notifies every listener of each change. Starting a process each time would cost too
//! much.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable, NlasIterator,
};
use rustix::net::Protocol;

use crate::net::netlink::{Messages, Netlink};

/// `NFNLGRP_NFTABLES` (7). Group n is bit n - 1.
const NFTABLES_GROUP: u32 = 1 << 6;
/// `NFNL_SUBSYS_NFTABLES`, in the upper half of a message's type.
const NFTABLES_SUBSYSTEM: u16 = 10 << 8;
/// Length in bytes of `struct nfgenmsg`, which precedes the attributes.
const HEADER_LEN: usize = 4;
/// The attribute with the name of the table. It has the same number in all messages used here
/// (`NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE` …).
const TABLE: u16 = 1;
/// `NFTA_SET_NAME`, and `NFTA_SET_ELEM_LIST_SET`.
const SET: u16 = 2;
/// `NFTA_SET_ELEM_LIST_ELEMENTS`.
const ELEMENTS: u16 = 3;
/// `NFT_MSG_NEWGEN`, which ends the notifications of a transaction.
const NEW_GENERATION: u8 = 15;
/// `NFTA_GEN_PROC_PID` and `NFTA_GEN_PROC_NAME`: the process that committed the transaction.
const PROCESS_ID: u16 = 2;
const PROCESS_NAME: u16 = 3;
/// Maximum number of attempts to read a table. An attempt fails if a program changes rules during the read. The
/// number is a guess: a read takes less than a millisecond, and if all attempts fail, the guard reads again
/// later.
const MAX_READ_ATTEMPTS: usize = 3;

/// The objects of a table except its sets: the kind of the request (`NFT_MSG_GET…`), and the attributes that are
/// compared. Other attributes are not compared: handles and use counts, for example, differ each time the same
/// rules are loaded.
const COMPARED_OBJECTS: [(u8, &[u16]); 3] = [
    // NFT_MSG_GETTABLE: name, flags.
    (1, &[1, 2]),
    // NFT_MSG_GETCHAIN: table, name, hook, policy, type, flags.
    (4, &[1, 3, 4, 5, 7, 10]),
    // NFT_MSG_GETRULE: table, chain, expressions, comment.
    (7, &[1, 2, 4, 7]),
];
/// `NFT_MSG_GETSET`: table, name, flags, type and length of keys.
const COMPARED_SETS: (u8, &[u16]) = (10, &[1, 2, 3, 4, 5]);
/// `NFTA_SET_FLAGS`, and its bit `NFT_SET_EVAL`: packets add elements to the set.
const SET_FLAGS: u16 = 3;
const EVALUATED: u32 = 0x20;
/// `NFT_MSG_GETSETELEM`.
const GET_ELEMENTS: u8 = 13;

/// The family of a table (`NFPROTO_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Rules for IPv4 and IPv6.
    Inet = 1,
    /// Rules for the ingress hooks of devices.
    Netdev = 5,
}

/// A message about nftables, with its `nfgenmsg` parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The kind of the message, `NFT_MSG_*`.
    kind: u8,
    family: u8,
    attributes: Vec<u8>,
}

impl Message {
    /// Returns a request with attributes that are names.
    fn get(kind: u8, family: Family, names: &[(u16, &str)]) -> Self {
        let mut attributes = Vec::new();
        for (kind, name) in names {
            // Length and type, the name with its terminating zero, and padding to 4 bytes.
            let len = u16::try_from(4 + name.len() + 1).unwrap_or(u16::MAX);
            attributes.extend(len.to_ne_bytes());
            attributes.extend(kind.to_ne_bytes());
            attributes.extend(name.as_bytes());
            attributes.push(0);
            attributes.resize(attributes.len().next_multiple_of(4), 0);
        }
        Message {
            kind,
            family: family as u8,
            attributes,
        }
    }

    /// Returns the value of an attribute.
    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        find_attribute(&self.attributes, kind)
    }

    /// Returns the name in an attribute.
    fn name(&self, kind: u16) -> Option<&str> {
        let bytes = self.attribute(kind)?;
        std::str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()
    }

    /// Returns the flags of a set.
    fn flags(&self) -> u32 {
        let value = self.attribute(SET_FLAGS).and_then(<[u8]>::first_chunk);
        value.map_or(0, |value| u32::from_be_bytes(*value))
    }

    /// Returns whether the message is about a table or an object in it.
    fn is_of(&self, family: Family, table: &str) -> bool {
        self.family == family as u8 && self.name(TABLE) == Some(table)
    }

    /// Returns bytes that are equal for equal objects. They hold the message's kind and those attributes whose
    /// kind is in `compared`, each with its kind and length.
    fn part(&self, compared: &[u16]) -> Vec<u8> {
        let mut part = vec![self.kind];
        for kind in compared {
            if let Some(value) = self.attribute(*kind) {
                part.extend(kind.to_ne_bytes());
                part.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_ne_bytes());
                part.extend(value);
            }
        }
        part
    }
}

/// Returns the value of the first attribute of a kind.
fn find_attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes_of(attributes).find_map(|(found, value)| (found == kind).then_some(value))
}

/// Returns the attributes, each with its kind and value, up to the first malformed one.
fn attributes_of(attributes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let all = NlasIterator::new(attributes).map_while(Result::ok);
    all.filter_map(|nla| {
        // The length includes the 4 bytes of the header, and excludes the padding.
        let (kind, len) = (nla.kind(), usize::from(nla.length()));
        Some((kind, nla.into_inner().get(4..len)?))
    })
}

impl Messages for Message {
    const PROTOCOL: Option<Protocol> = Some(rustix::net::netlink::NETFILTER);
    const UNDECODED_NEWS: &[u16] = &[];
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        NFTABLES_SUBSYSTEM | u16::from(self.kind)
    }

    fn buffer_len(&self) -> usize {
        HEADER_LEN + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEADER_LEN].copy_from_slice(&[self.family, 0, 0, 0]);
        buffer[HEADER_LEN..].copy_from_slice(&self.attributes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        match payload.split_at_checked(HEADER_LEN) {
            Some(([family, ..], attributes)) => Ok(Message {
                kind: (header.message_type & 0xff) as u8,
                family: *family,
                attributes: attributes.to_vec(),
            }),
            _ => Err("the message has no nfgenmsg header".into()),
        }
    }
}

/// The contents of a table. Two values are equal if the same rules were loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents(Vec<Vec<u8>>);

/// A socket that reads tables.
#[derive(Debug)]
pub struct Inspector(Netlink<Message>);

impl Inspector {
    /// Opens a netlink socket for requests.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket.
    pub fn open() -> io::Result<Self> {
        Netlink::requests().map(Inspector)
    }

    /// Returns the contents of a table; `None` if there is no such table.
    ///
    /// # Errors
    /// Fails if the kernel refuses the requests, or if other programs change rules during every attempt.
    pub fn look(&mut self, family: Family, table: &str) -> io::Result<Option<Contents>> {
        let mut attempts = 1;
        loop {
            match self.look_once(family, table) {
                // Another program changed rules during the read: a listed object is gone, or the dump was
                // interrupted.
                Err(error)
                    if attempts < MAX_READ_ATTEMPTS
                        && matches!(
                            error.kind(),
                            io::ErrorKind::NotFound | io::ErrorKind::Interrupted
                        ) =>
                {
                    attempts += 1;
                }
                outcome => return outcome,
            }
        }
    }

    /// Reads a table. Fails with `NotFound` or `Interrupted` if another program changes rules during the read.
    fn look_once(&mut self, family: Family, table: &str) -> io::Result<Option<Contents>> {
        let mut parts = Vec::new();
        for (kind, compared) in COMPARED_OBJECTS {
            let found = self.dump(kind, family, &[(TABLE, table)])?;
            let ours = found.iter().filter(|message| message.is_of(family, table));
            parts.extend(ours.map(|message| message.part(compared)));
            // The first request is for the table itself.
            if parts.is_empty() {
                return Ok(None);
            }
        }
        let (kind, compared) = COMPARED_SETS;
        for set in self.dump(kind, family, &[(TABLE, table)])? {
            let Some(name) = set.name(SET).filter(|_| set.is_of(family, table)) else {
                continue;
            };
            parts.push(set.part(compared));
            if set.flags() & EVALUATED != 0 {
                continue;
            }
            let found = self.dump(GET_ELEMENTS, family, &[(TABLE, table), (SET, name)])?;
            let lists = found.iter().filter_map(|list| list.attribute(ELEMENTS));
            let elements = lists
                .flat_map(attributes_of)
                .map(|(_, value)| value.to_vec());
            let mut elements: Vec<_> = elements.collect();
            // The kernel lists the elements of a hashed set in the order of its buckets, which depends on a
            // random seed.
            elements.sort_unstable();
            parts.append(&mut elements);
        }
        Ok(Some(Contents(parts)))
    }

    fn dump(
        &mut self,
        kind: u8,
        family: Family,
        names: &[(u16, &str)],
    ) -> io::Result<Vec<Message>> {
        let found = self.0.dump(Message::get(kind, family, names))?;
        match self.0.was_interrupted() {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(found),
        }
    }
}

/// The process that changed rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Culprit {
    /// Name of the process.
    pub name: String,
    /// Id of the process.
    pub pid: u32,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.pid)
    }
}

/// A listener for changes to some tables.
#[derive(Debug)]
pub struct Monitor {
    socket: Netlink<Message>,
    tables: Vec<(Family, String)>,
    /// The process that last changed one of the tables.
    last: Option<Culprit>,
}

impl Monitor {
    /// Listens for changes of `tables` from now on.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket.
    pub fn open(tables: Vec<(Family, String)>) -> io::Result<Self> {
        Ok(Monitor {
            socket: Netlink::subscribe(NFTABLES_GROUP)?,
            tables,
            last: None,
        })
    }

    /// Returns the descriptor that is readable while notifications are pending.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Reads the pending notifications and returns whether a process may have changed one of the tables. Changes
    /// by this process count too.
    pub fn has_news(&mut self) -> bool {
        let mut is_relevant = false;
        // True if the current transaction changed one of the tables.
        let mut changed_tables = false;
        let (tables, last) = (&self.tables, &mut self.last);
        let was_overrun = self.socket.drain(|message| {
            if message.kind == NEW_GENERATION {
                if changed_tables {
                    *last = culprit(&message);
                }
                changed_tables = false;
            } else if tables.iter().any(|(f, name)| message.is_of(*f, name)) {
                (is_relevant, changed_tables) = (true, true);
            }
        });
        // Lost or unreadable notifications may have been about one of the tables.
        is_relevant || was_overrun.unwrap_or(true)
    }

    /// Returns the process that last changed one of the tables.
    pub fn last(&self) -> Option<&Culprit> {
        self.last.as_ref()
    }
}

/// Returns the process that committed a transaction. `message` is the message that ends the transaction.
fn culprit(message: &Message) -> Option<Culprit> {
    let pid = message.attribute(PROCESS_ID)?.first_chunk::<4>()?;
    Some(Culprit {
        name: message.name(PROCESS_NAME)?.to_owned(),
        pid: u32::from_be_bytes(*pid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, names: &[(u16, &str)]) -> Message {
        Message::get(kind, Family::Inet, names)
    }

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let message = message(7, &[(1, "table"), (2, "abc"), (4, "x")]);
        assert_eq!(message.attributes.len() % 4, 0);
        assert_eq!(message.name(1), Some("table"));
        assert_eq!(message.name(2), Some("abc"));
        assert_eq!(message.attribute(4), Some(&b"x\0"[..]));
        assert_eq!(message.attribute(3), None);
        assert!(message.is_of(Family::Inet, "table"));
        assert!(!message.is_of(Family::Netdev, "table"));
        assert!(!message.is_of(Family::Inet, "tabl"));
    }

    #[test]
    fn malformed_attributes_are_left_out() {
        let complete = message(7, &[(1, "table"), (2, "chain")]);
        for len in 0..complete.attributes.len() {
            let cut = Message {
                attributes: complete.attributes[..len].to_vec(),
                ..complete.clone()
            };
            assert!(cut.name(2).is_none_or(|name| name == "chain"));
        }
    }

    #[test]
    fn handles_are_not_compared() {
        // Attributes of a rule: table, chain, handle, expressions.
        let rule = |handle| message(6, &[(1, "t"), (2, "c"), (3, handle), (4, "expressions")]);
        let part = |message: Message| message.part(COMPARED_OBJECTS[2].1);
        assert_eq!(part(rule("1")), part(rule("2")));
        let other = message(6, &[(1, "t"), (2, "c"), (3, "1"), (4, "others")]);
        assert_ne!(part(rule("1")), part(other));
    }
}
