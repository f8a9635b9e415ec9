//! Segments as the scripts write them.

use core::fmt;

use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::Flags;

/// A segment, sent by the peer or expected from the stack. In an expected one `None` matches anything;
/// MPTCP options, SACK blocks and payload are always compared.
#[derive(Clone, PartialEq)]
pub struct Seg {
    /// The subflow, in order of the SYNs.
    pub flow: usize,
    pub flags: Flags,
    pub seq: u64,
    pub ack: Option<u64>,
    pub win: Option<u16>,
    pub payload: Vec<u8>,
    pub mss: Option<u16>,
    pub ws: Option<u8>,
    pub sack_ok: Option<bool>,
    /// The fast-open cookie, empty to ask for one; always compared.
    pub cookie: Option<Vec<u8>>,
    pub ts: Option<(u32, u32)>,
    pub sack: Vec<(u64, u64)>,
    pub mptcp: Vec<Mp>,
    /// The MPTCP options byte by byte; used in place of `mptcp` if given.
    pub raw: Option<Vec<u8>>,
    /// The payload bytes per packet of a super-segment.
    pub gso: Option<u16>,
    /// The ECN bits of the packet; 0 if the peer sends it and none are given.
    pub ecn: Option<u8>,
}

impl fmt::Debug for Seg {
    /// Prints the fields that are set, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {} seq {}", self.flow, self.flags, self.seq)?;
        fn some<T: fmt::Debug>(
            f: &mut fmt::Formatter<'_>,
            name: &str,
            value: &Option<T>,
        ) -> fmt::Result {
            match value {
                Some(value) => write!(f, " {name} {value:?}"),
                None => Ok(()),
            }
        }
        some(f, "ack", &self.ack)?;
        some(f, "win", &self.win)?;
        some(f, "mss", &self.mss)?;
        some(f, "ws", &self.ws)?;
        some(f, "ts", &self.ts)?;
        some(f, "ecn", &self.ecn.filter(|bits| *bits > 0))?;
        some(f, "cookie", &self.cookie)?;
        some(f, "gso", &self.gso.filter(|g| *g > 0))?;
        if !self.sack.is_empty() {
            write!(f, " sack {:?}", self.sack)?;
        }
        if !self.payload.is_empty() {
            let head = &self.payload[..self.payload.len().min(8)];
            write!(f, " {} bytes {:02x?}", self.payload.len(), head)?;
        }
        for option in &self.mptcp {
            write!(f, " {option:?}")?;
        }
        some(f, "raw", &self.raw.as_ref().filter(|r| !r.is_empty()))
    }
}

/// An MPTCP option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mp {
    Dss(Rel),
    Other(MptcpOption),
}

/// A DSS with numbers relative to the streams.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rel {
    pub ack: Option<u64>,
    pub wide_ack: bool,
    /// The mapping: data, subflow, length (DATA_FIN included).
    pub map: Option<(u64, u32, u16)>,
    pub wide_map: bool,
    pub fin: bool,
    /// The checksum of the mapping.
    pub checksum: Option<u16>,
}

/// Returns a DSS that acknowledges everything below `n`.
pub fn dack(n: u64) -> Rel {
    Rel {
        ack: Some(n),
        ..Rel::default()
    }
}

impl Rel {
    /// Adds a mapping of `len` bytes from `data` on at `sub`.
    pub fn map(self, data: u64, sub: u32, len: u16) -> Rel {
        Rel {
            map: Some((data, sub, len)),
            ..self
        }
    }

    /// Adds DATA_FIN as the mapping's last byte.
    pub fn fin(self) -> Rel {
        Rel { fin: true, ..self }
    }

    /// Adds a checksum to the mapping.
    pub fn sum(self, checksum: u16) -> Rel {
        Rel {
            checksum: Some(checksum),
            ..self
        }
    }

    /// Uses an 8-byte DATA_ACK.
    pub fn wide_ack(self) -> Rel {
        Rel {
            wide_ack: true,
            ..self
        }
    }

    /// Uses an 8-byte DSN.
    pub fn wide_map(self) -> Rel {
        Rel {
            wide_map: true,
            ..self
        }
    }
}

fn seg(flags: Flags, seq: u64, ack: Option<u64>) -> Seg {
    Seg {
        flow: 0,
        flags,
        seq,
        ack,
        win: None,
        payload: Vec::new(),
        mss: None,
        ws: None,
        sack_ok: None,
        cookie: None,
        ts: None,
        sack: Vec::new(),
        mptcp: Vec::new(),
        raw: None,
        gso: None,
        ecn: None,
    }
}

/// Returns a SYN like Linux's, without timestamps, which have tests of their own.
pub fn syn() -> Seg {
    Seg {
        mss: Some(1460),
        ws: Some(7),
        sack_ok: Some(true),
        ..seg(Flags::SYN, 0, None)
    }
}

pub fn syn_ack() -> Seg {
    Seg {
        mss: Some(1460),
        ws: Some(7),
        sack_ok: Some(true),
        ..seg(Flags::SYN | Flags::ACK, 0, Some(1))
    }
}

pub fn ack(seq: u64, ack: u64) -> Seg {
    seg(Flags::ACK, seq, Some(ack))
}

/// Returns data; PSH is not compared.
pub fn data(seq: u64, ack: u64, payload: impl AsRef<[u8]>) -> Seg {
    Seg {
        payload: payload.as_ref().to_vec(),
        ..seg(Flags::ACK, seq, Some(ack))
    }
}

pub fn fin(seq: u64, ack: u64) -> Seg {
    seg(Flags::FIN | Flags::ACK, seq, Some(ack))
}

/// Returns a RST without ACK.
pub fn rst(seq: u64) -> Seg {
    seg(Flags::RST, seq, None)
}

/// Returns a RST with ACK.
pub fn rst_ack(seq: u64, ack: u64) -> Seg {
    seg(Flags::RST | Flags::ACK, seq, Some(ack))
}

impl Seg {
    pub fn on(self, flow: usize) -> Seg {
        Seg { flow, ..self }
    }

    pub fn seq(self, seq: u64) -> Seg {
        Seg { seq, ..self }
    }

    pub fn win(self, win: u16) -> Seg {
        Seg {
            win: Some(win),
            ..self
        }
    }

    pub fn ws(self, ws: Option<u8>) -> Seg {
        Seg { ws, ..self }
    }

    pub fn mss(self, mss: u16) -> Seg {
        Seg {
            mss: Some(mss),
            ..self
        }
    }

    pub fn no_sack(self) -> Seg {
        Seg {
            sack_ok: Some(false),
            ..self
        }
    }

    /// Adds a fast-open cookie, or an empty one to ask for it.
    pub fn cookie(self, cookie: &[u8]) -> Seg {
        Seg {
            cookie: Some(cookie.to_vec()),
            ..self
        }
    }

    pub fn payload(self, payload: impl AsRef<[u8]>) -> Seg {
        Seg {
            payload: payload.as_ref().to_vec(),
            ..self
        }
    }

    /// Sets the acknowledgement number.
    pub fn acks(self, ack: u64) -> Seg {
        Seg {
            ack: Some(ack),
            ..self
        }
    }

    /// Sets timestamp value and echo, each relative to its side's first one.
    pub fn ts(self, value: u32, echo: u32) -> Seg {
        Seg {
            ts: Some((value, echo)),
            ..self
        }
    }

    pub fn sack(self, blocks: &[(u64, u64)]) -> Seg {
        Seg {
            sack: blocks.to_vec(),
            ..self
        }
    }

    pub fn dss(self, dss: Rel) -> Seg {
        self.mp(Mp::Dss(dss))
    }

    pub fn opt(self, option: MptcpOption) -> Seg {
        self.mp(Mp::Other(option))
    }

    fn mp(mut self, option: Mp) -> Seg {
        self.mptcp.push(option);
        self
    }

    /// Sets the MPTCP options as on the wire.
    pub fn raw(self, bytes: &[u8]) -> Seg {
        Seg {
            raw: Some(bytes.to_vec()),
            ..self
        }
    }

    pub fn gso(self, gso: u16) -> Seg {
        Seg {
            gso: Some(gso),
            ..self
        }
    }

    pub fn ecn(self, bits: u8) -> Seg {
        Seg {
            ecn: Some(bits),
            ..self
        }
    }

    /// Adds flags.
    pub fn flag(self, flags: Flags) -> Seg {
        Seg {
            flags: self.flags | flags,
            ..self
        }
    }

    /// Returns whether a segment from the stack matches this one.
    pub fn matches(&self, got: &Seg) -> bool {
        fn some<T: PartialEq>(want: &Option<T>, got: &Option<T>) -> bool {
            want.is_none() || want == got
        }
        let options = match &self.raw {
            Some(raw) => got.raw.as_ref() == Some(raw),
            None => self.mptcp == got.mptcp,
        };
        self.flow == got.flow
            && self.flags == got.flags.without(Flags::PSH)
            && self.seq == got.seq
            && some(&self.ack, &got.ack)
            && some(&self.win, &got.win)
            && self.payload == got.payload
            && some(&self.mss, &got.mss)
            && some(&self.ws, &got.ws)
            && some(&self.sack_ok, &got.sack_ok)
            && self.cookie == got.cookie
            && some(&self.ts, &got.ts)
            && some(&self.gso, &got.gso)
            && some(&self.ecn, &got.ecn)
            && self.sack == got.sack
            && options
    }
}

/// Returns bytes from hexadecimal digits with spaces between them.
pub fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|b| *b != b' ').collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
